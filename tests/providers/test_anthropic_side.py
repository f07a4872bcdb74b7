"""The Anthropic API beside messages, down to the official SDK reading it."""

from typing import Any

import anthropic as sdk
import pytest

from polar_mitm.chat import System, Text, Tool, User
from polar_mitm.providers import anthropic, recognise
from polar_mitm.providers.base import ModelCard, Request, Route
from tests.providers.served import served

VERSION = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    "path", ["/v1/messages/count_tokens", "/messages/count_tokens", "/s/ses_1/v1/messages/count_tokens"]
)
def test_P025_counting_tokens_is_recognised_under_any_prefix_and_with_a_query(path: str) -> None:
    request = Request("POST", "127.0.0.1", path, {"beta": "true"})
    assert anthropic.recognise(request) == Route("count")
    assert anthropic.recognise(Request("GET", "127.0.0.1", path)) is None


@pytest.mark.parametrize(
    ("host", "headers", "path", "route"),
    [
        ("api.anthropic.com", {}, "/v1/models", Route("models")),
        ("127.0.0.1", VERSION, "/s/ses_1/v1/models", Route("models")),
        ("127.0.0.1", VERSION, "/v1/models/claude-opus-5-5", Route("models", model="claude-opus-5-5")),
        ("127.0.0.1", VERSION, "/v1/models/org%2Fbig", Route("models", model="org/big")),
        ("127.0.0.1", VERSION, "/v1/models/", None),
        ("127.0.0.1", {}, "/v1/models", None),
        ("api.openai.com", {}, "/v1/models", None),
    ],
)
def test_a_model_list_is_anthropics_only_if_the_client_is(
    host: str, headers: dict[str, str], path: str, route: Route | None
) -> None:
    assert anthropic.recognise(Request("GET", host, path, {}, headers)) == route
    assert anthropic.recognise(Request("POST", host, path, {}, headers)) is None


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_the_hello_of_claude_code_is_answered(method: str) -> None:
    request = Request(method, "127.0.0.1", "/s/ses_1/api/hello")
    assert recognise(request) == (anthropic, Route("fixed"))
    assert anthropic.fixed(request) == {}


@pytest.mark.parametrize("path", ["/api/claude_code/settings", "/api/event_logging/v2/batch", "/v1/messages/batches"])
def test_no_other_path_is_recognised(path: str) -> None:
    assert anthropic.recognise(Request("GET", "api.anthropic.com", path)) is None
    assert anthropic.recognise(Request("POST", "api.anthropic.com", path)) is None


def client(url: str) -> sdk.AsyncAnthropic:
    return sdk.AsyncAnthropic(base_url=url, api_key="sk-ant-x", max_retries=0)


@pytest.mark.filterwarnings("error")
async def test_P025_the_sdk_counts_a_prompt_with_system_and_tools() -> None:
    asked: Any = {
        "model": "claude-opus-5-5",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "Read", "input_schema": {"type": "object"}}],
    }
    async with served(anthropic) as server, client(server.url) as anthropic_sdk:
        plain = await anthropic_sdk.messages.count_tokens(**asked)
        beta = await anthropic_sdk.beta.messages.count_tokens(**asked)
    assert (plain.to_dict(), beta.to_dict()) == ({"input_tokens": 42}, {"input_tokens": 42})
    assert server.paths == ["/v1/messages/count_tokens"] * 2
    for ask in server.asks:
        assert ask.chat.messages == (System("Be brief."), User((Text("hi"),)))
        assert ask.chat.tools == (Tool("Read", "", {"type": "object"}),)


@pytest.mark.filterwarnings("error")
async def test_the_sdk_lists_the_served_models() -> None:
    async with served(anthropic) as server, client(server.url) as anthropic_sdk:
        page = await anthropic_sdk.models.list()
    assert [(model.id, model.display_name, model.max_input_tokens, model.type) for model in page.data] == [
        ("tiny", "tiny", 4096, "model"),
        ("org/big", "org/big", None, "model"),
    ]
    assert (page.first_id, page.last_id, page.has_more) == ("tiny", "org/big", False)
    assert page.data[0].created_at.year == 1970


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("name", "length"), [("org/big", None), ("claude-opus-5-5", 4096)])
async def test_the_sdk_is_told_of_any_model_it_names(name: str, length: int | None) -> None:
    async with served(anthropic) as server, client(server.url) as anthropic_sdk:
        model = await anthropic_sdk.models.retrieve(name)
        beta = await anthropic_sdk.beta.models.retrieve(name)
    assert (model.id, model.max_tokens, model.lifecycle) == (name, length, "active")
    assert beta.id == name


def test_every_field_that_the_sdks_model_type_has_is_given() -> None:
    given = anthropic.models(Route("models", model="m"), [ModelCard("m", 1)])
    assert set(sdk.types.ModelInfo.model_fields) == set(given)
    sdk.types.ModelInfo.model_validate(given, strict=False)


def test_an_empty_model_list_has_no_first_and_no_last() -> None:
    listed = anthropic.models(Route("models"), [])
    assert listed == {"data": [], "has_more": False, "first_id": None, "last_id": None}
