"""The Google API beside generateContent, down to the official SDK reading it."""

from typing import Any

import pytest
from google import genai
from google.genai import types

from polar_mitm.chat import System, Text, Tool, User
from polar_mitm.providers import google, openai_chat, recognise, speaker
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.google_reply import GoogleAsk
from tests.providers.served import served

KEY = {"x-goog-api-key": "k"}

# The one warning let through is about how the SDK itself uses aiohttp.
NO_WARNINGS = pytest.mark.filterwarnings("error", "ignore:Inheritance class AiohttpClientSession:DeprecationWarning")


@pytest.mark.parametrize(
    ("path", "googles"),
    [
        ("/v1beta/models/gemini-3-pro:embedContent", True),
        ("/v1alpha/files", True),
        ("/v1internal:unheardOf", True),
        ("/proxy/v1beta/cachedContents/c", True),
        ("/v1beta/openai/embeddings", False),
        ("/v1/files", False),
    ],
)
def test_who_asks_at_a_path_that_only_google_has_reads_googles_errors(path: str, googles: bool) -> None:
    assert speaker(Request("GET", "127.0.0.1", path)) is (google if googles else openai_chat)


@pytest.mark.parametrize(
    ("host", "headers", "path", "route"),
    [
        ("127.0.0.1", {}, "/v1beta/models", Route("models")),
        ("127.0.0.1", {}, "/s/ses_1/v1beta/models/gemini-3-pro", Route("models", model="gemini-3-pro")),
        ("generativelanguage.googleapis.com", {}, "/v1/models", Route("models")),
        ("127.0.0.1", KEY, "/v1/models/org%2Fbig", Route("models", model="org/big")),
        ("127.0.0.1", {}, "/v1beta/models/org/big", Route("models", model="org/big")),
        ("127.0.0.1", {}, "/v1/models", None),
        ("api.openai.com", {}, "/v1/models/gpt-5.5", None),
        ("127.0.0.1", KEY, "/v1/files", None),
    ],
)
def test_a_model_list_is_googles_only_if_the_client_is(
    host: str, headers: dict[str, str], path: str, route: Route | None
) -> None:
    assert google.recognise(Request("GET", host, path, {}, headers)) == route
    assert google.recognise(Request("POST", host, path, {}, headers)) is None


def test_a_key_in_the_query_makes_a_model_list_googles() -> None:
    assert recognise(Request("GET", "127.0.0.1", "/v1/models", {"key": "k"})) == (google, Route("models"))


@pytest.mark.parametrize(
    ("request_", "keys"),
    [
        (Request("POST", "oauth2.googleapis.com", "/tokeninfo"), {"scope", "expires_in"}),
        (Request("GET", "www.googleapis.com", "/oauth2/v2/userinfo"), {"id", "email", "verified_email"}),
        (
            Request("POST", "cloudcode-pa.googleapis.com", "/v1internal:loadCodeAssist"),
            {"currentTier", "allowedTiers", "cloudaicompanionProject"},
        ),
    ],
)
def test_what_a_google_login_waits_for_is_answered(request_: Request, keys: set[str]) -> None:
    assert recognise(request_) == (google, Route("fixed"))
    assert set(google.fixed(request_)) == keys


def test_the_loaded_tier_and_project_are_what_gemini_cli_needs_to_go_on() -> None:
    loaded = google.fixed(Request("POST", "h", "/v1internal:loadCodeAssist"))
    assert loaded["currentTier"]["id"] == "standard-tier"
    assert [tier["isDefault"] for tier in loaded["allowedTiers"]] == [True]
    assert loaded["cloudaicompanionProject"]


@pytest.mark.parametrize(
    ("method", "host", "path"),
    [
        ("POST", "oauth2.googleapis.com", "/token"),
        ("GET", "127.0.0.1", "/tokeninfo"),
        ("GET", "oauth2.googleapis.com", "/userinfo"),
        ("GET", "cloudcode-pa.googleapis.com", "/v1internal:loadCodeAssist"),
        ("POST", "cloudcode-pa.googleapis.com", "/v1internal:retrieveUserQuota"),
        ("POST", "cloudcode-pa.googleapis.com", "/v1internal:listExperiments"),
    ],
)
def test_no_other_path_is_recognised(method: str, host: str, path: str) -> None:
    assert google.recognise(Request(method, host, path)) is None


def parse_count(body: Any, model: str | None = "gemini-3-pro") -> GoogleAsk:
    return google.parse(Request("POST", "h", "/"), Route("count", model=model), body)


HI = [{"role": "user", "parts": [{"text": "hi"}]}]


@pytest.mark.parametrize(
    "body",
    [
        {"contents": HI, "systemInstruction": {"parts": [{"text": "Be brief."}]}},
        {"generateContentRequest": {"model": "models/x", "contents": HI, "systemInstruction": "Be brief."}},
        {"generate_content_request": {"contents": HI, "system_instruction": "Be brief."}},
    ],
)
def test_a_prompt_to_count_is_read_bare_and_as_a_whole_request(body: Any) -> None:
    ask = parse_count(body)
    assert ask.chat.messages == (System("Be brief."), User((Text("hi"),)))
    assert (ask.model, ask.stream, google.count(ask, 7)) == ("gemini-3-pro", False, {"totalTokens": 7})


def test_code_assist_wraps_the_question_for_a_count_but_not_its_answer() -> None:
    ask = parse_count({"request": {"model": "models/gemini-3-pro", "contents": HI}}, model=None)
    assert (ask.model, ask.chat.messages, ask.chat.not_carried) == ("gemini-3-pro", (User((Text("hi"),)),), ())
    assert google.count(ask, 7) == {"totalTokens": 7}


def client(url: str) -> genai.client.AsyncClient:
    return genai.Client(api_key="x", http_options=types.HttpOptions(base_url=url)).aio


@NO_WARNINGS
async def test_the_sdk_counts_tokens() -> None:
    async with served(google) as server, client(server.url) as sdk:
        counted = await sdk.models.count_tokens(model="gemini-3-pro", contents="hi")
    assert counted.total_tokens == 42
    assert server.asks[0].chat.messages == (User((Text("hi"),)),)
    assert server.asks[0].chat.tools == ()


@NO_WARNINGS
async def test_the_sdk_lists_the_served_models() -> None:
    async with served(google) as server, client(server.url) as sdk:
        listed = [model async for model in await sdk.models.list()]
    assert [(model.name, model.display_name, model.input_token_limit) for model in listed] == [
        ("models/tiny", "tiny", 4096),
        ("models/org/big", "org/big", None),
    ]
    assert listed[0].supported_actions == ["generateContent", "countTokens"]


@NO_WARNINGS
async def test_the_sdk_is_told_of_any_model_it_names() -> None:
    async with served(google) as server, client(server.url) as sdk:
        model = await sdk.models.get(model="gemini-3-pro")
    assert (model.name, model.input_token_limit, model.output_token_limit) == ("models/gemini-3-pro", 4096, 4096)


def test_tools_count_as_they_do_in_the_request_itself() -> None:
    tools = [{"functionDeclarations": [{"name": "read_file"}]}]
    assert parse_count({"contents": HI, "tools": tools}).chat.tools == (Tool("read_file"),)
