"""Counting tokens, listing models and what a login waits for: answered in the provider's shape, recorded nowhere."""

import asyncio
import gzip
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.conftest import Staged
from tests.fakes.vllm import Reply, prompt_of
from tests.proxy.asks import ANTHROPIC, CHAT, GOOGLE, RESPONSES, Ask, with_tool
from tests.proxy.stage import Stage, until

PROMPT = len(prompt_of({"role": "user", "content": "Say hello."}))
"""The stand-in engine's tokens of the prompt that every ask here has."""


def counting(ask: Ask) -> Ask:
    """The request that asks how long the prompt of this one is."""
    match ask.provider:
        case "anthropic":
            kept = {name: value for name, value in ask.body.items() if name != "max_tokens"}
            return replace(ask, target="/v1/messages/count_tokens?beta=true", body=kept)
        case "openai-responses":
            return replace(ask, target="/v1/responses/input_tokens")
        case _:
            return replace(ask, target="/v1beta/models/gemini-9:countTokens")


COUNTS: list[tuple[Ask, str]] = [
    (counting(ANTHROPIC), "input_tokens"),
    (counting(RESPONSES), "input_tokens"),
    (counting(GOOGLE), "totalTokens"),
]


@pytest.mark.parametrize(("ask", "field"), COUNTS, ids=str)
async def test_P025_a_count_is_the_engines_own_and_no_turn(ask: Ask, field: str, stage: Staged) -> None:
    async with stage() as on:
        for got in (await on.post(ask), await on.post_through(ask)):
            assert (got.status, got.headers["content-type"]) == (200, "application/json")
            assert got.json[field] == PROMPT
        assert (on.fake.requests, on.calls()) == ([], [])
        assert [flow.comment for flow in on.flows()] == ["count: no turn, not recorded"] * 2


@pytest.mark.parametrize(("ask", "field"), COUNTS, ids=str)
async def test_P024_a_count_and_the_usage_of_the_call_agree(ask: Ask, field: str, stage: Staged) -> None:
    sampled = {"anthropic": ANTHROPIC, "openai-responses": RESPONSES, "google": GOOGLE}[ask.provider]
    async with stage() as on:
        counted = (await on.post(ask)).json[field]
        body = (await on.post(sampled)).json
        usage = body.get("usage") or body["usageMetadata"]
        assert counted in (usage.get("input_tokens"), usage.get("promptTokenCount"))
        assert counted == len(on.calls()[0].prompt_ids)


async def test_P026_fifty_counts_at_once_are_answered_while_a_call_runs(stage: Staged) -> None:
    async with stage(Reply(delay_s=30)) as on:
        call = asyncio.create_task(on.post(CHAT))
        await until(lambda: on.fake.running == 1)
        answers = await asyncio.gather(*(on.post(counting(ANTHROPIC)) for _ in range(50)))
        assert on.fake.running == 1
        assert [got.json["input_tokens"] for got in answers] == [PROMPT] * 50
        call.cancel()
        await asyncio.wait([call])


async def test_a_count_reads_a_compressed_body(stage: Staged) -> None:
    async with stage() as on:
        ask = counting(ANTHROPIC)
        got = await on.post(ask, data=gzip.compress(orjson.dumps(ask.body)), headers={"content-encoding": "gzip"})
        assert (got.status, got.json["input_tokens"]) == (200, PROMPT)


@pytest.mark.parametrize(("ask", "_field"), COUNTS, ids=str)
async def test_a_count_that_cannot_be_is_an_error_in_the_providers_shape(ask: Ask, _field: str, stage: Staged) -> None:
    async with stage() as on:
        assert_error(await on.post(ask, data=b"{not json"), 400)
        assert_error(await on.post(ask, data=b"{}", headers={"content-encoding": "lzw"}), 415)
        assert_error(await on.post(ask, key="sk-wrong"), 401)
        await on.fake.stop()
        assert (await on.post(ask)).status in (500, 502)
        assert on.calls() == []


def assert_error(got: Any, status: int) -> None:
    assert got.status == status, got.body
    assert got.json["error"]["message"]


# Model lists


def listing(ask: Ask, name: str = "") -> Ask:
    path = "/v1beta/models" if ask.provider == "google" else "/v1/models"
    return replace(ask, target=path + (f"/{name}" if name else ""), body={})


def ids(body: Any) -> list[str]:
    return [model.get("id") or model["name"].removeprefix("models/") for model in body.get("data") or body["models"]]


MODEL_ASKS = [listing(ANTHROPIC), listing(CHAT), listing(GOOGLE)]


async def get(on: Stage, ask: Ask, key: str) -> Any:
    return await on.request("GET", on.base_url() + ask.target, headers=ask.with_key(key).headers)


@pytest.mark.parametrize("ask", MODEL_ASKS, ids=str)
async def test_the_served_model_is_listed_in_the_providers_shape(ask: Ask, stage: Staged) -> None:
    async with stage() as on:
        got = await get(on, ask, on.session.token)
        assert got.status == 200, got.body
        assert ids(got.json) == ["fake"]
        assert on.calls() == []


@pytest.mark.parametrize("ask", MODEL_ASKS, ids=str)
async def test_any_model_can_be_asked_for_by_name(ask: Ask, stage: Staged) -> None:
    async with stage() as on:
        got = await get(on, listing(ask, "some-model-9"), on.session.token)
        assert got.status == 200, got.body
        assert "some-model-9" in (got.json.get("id") or got.json["name"])


@pytest.mark.parametrize("ask", MODEL_ASKS, ids=str)
async def test_models_are_shown_to_open_sessions_only(ask: Ask, stage: Staged) -> None:
    async with stage() as on:
        got = await get(on, ask, "sk-wrong")
        assert_error(got, 401)


# What a login or a start waits for


@pytest.mark.parametrize(
    ("method", "url", "field"),
    [
        ("GET", "https://chatgpt.com/backend-api/wham/accounts/check", "accounts"),
        ("POST", "https://cloudcode-pa.googleapis.com/v1internal:loadCodeAssist", "currentTier"),
        ("POST", "https://oauth2.googleapis.com/tokeninfo", "scope"),
    ],
)
async def test_what_a_login_waits_for_is_answered_with_any_credentials(
    method: str, url: str, field: str, stage: Staged
) -> None:
    async with stage() as on:
        headers = {"authorization": "Bearer somebodys-login"}
        got = await on.request(method, url, json={}, headers=headers, proxy=on.proxy_url(), ssl=on.trust)
        assert got.status == 200, got.body
        assert field in got.json
        assert on.calls() == []


async def test_claude_codes_hello_is_answered_without_a_body_or_a_key(stage: Staged) -> None:
    async with stage() as on:
        got = await on.request("HEAD", f"http://127.0.0.1:{on.proxy.base_url_port}/api/hello")
        assert (got.status, got.body) == (200, b"")


async def test_a_tool_counts_too(stage: Staged) -> None:
    """The stand-in counts messages only; what it is asked holds the tools."""
    async with stage() as on:
        asked: list[Any] = []
        tokenize = on.engine.count

        async def watched(request: Any, **options: Any) -> int:
            asked.append(request)
            return await tokenize(request, **options)

        on.engine.count = watched  # type: ignore[method-assign]  # to see what is counted
        assert (await on.post(counting(with_tool(ANTHROPIC)))).status == 200
        assert [tool.name for tool in asked[0].tools] == ["run"]


async def test_a_request_for_no_token_is_told_the_prompts_length_and_is_no_turn(stage: Staged) -> None:
    async with stage() as on:
        asked = {**ANTHROPIC.body, "max_tokens": 0}
        counted = await on.post(replace(ANTHROPIC, target="/v1/messages/count_tokens"))
        for streamed in (False, True):
            got = await on.post(replace(ANTHROPIC, body={**asked, "stream": streamed}))
            assert got.status == 200, got.body
            assert got.headers["request-id"].startswith("req_")
            assert got.headers["content-type"] == ("text/event-stream" if streamed else "application/json")
            if not streamed:
                assert (got.json["content"], got.json["stop_reason"]) == ([], "max_tokens")
                assert got.json["usage"]["input_tokens"] == counted.json["input_tokens"]
                assert got.json["usage"]["output_tokens"] == 0
            else:
                assert b"content_block" not in got.body
                assert b'"stop_reason":"max_tokens"' in got.body
        assert (on.calls(), on.fake.requests) == ([], [])
        on.engine._capabilities = replace(on.engine.capabilities, max_model_len=3)
        assert "prompt is too long" in (await on.post(replace(ANTHROPIC, body=asked))).json["error"]["message"]
