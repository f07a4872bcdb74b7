"""Compaction, token counts and Codex's login question: the side requests of the Responses API."""

from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.responses import InputTokenCountResponse, ResponseCompactionItem

import polar_mitm.providers.openai_responses as openai_responses
from polar_mitm.chat import (
    Assistant,
    ChatReply,
    FinishReason,
    Json,
    System,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
    Usage,
    User,
)
from polar_mitm.providers import recognise
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.openai_responses import ResponsesAsk
from polar_mitm.providers.openai_responses_compaction import CUT_SHORT, REQUEST
from polar_mitm.providers.openai_responses_seal import seal
from tests.providers.served import served

TOOL: Json = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}}
TRIGGER: Json = {"type": "compaction_trigger"}
HI: Json = {"role": "user", "content": "hi"}
HISTORY: list[Json] = [
    {"type": "message", "role": "developer", "content": "Be Codex."},
    {"type": "message", "id": "msg_u", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
]
CHAT = (
    System("Be Codex."),
    User((Text("go"),)),
    Assistant(tool_calls=(ToolCall("c", "run", "{}"),)),
    ToolResult("c", (Text("done"),)),
)
RECALLED = User((Text("<summary of the conversation so far>\nwe went\n</summary of the conversation so far>"),))


def parse(path: str = "/v1/responses", headers: dict[str, str] | None = None, **body: Any) -> ResponsesAsk:
    request = Request("POST", "h", path, headers=headers or {})
    route = openai_responses.recognise(request)
    assert route is not None
    return openai_responses.parse(request, route, {"model": "m1", **body})


def reply(text: str = "we went", reasoning: str = "", finish: FinishReason = "stop") -> ChatReply:
    return ChatReply("0a1b", 1764460800, text, reasoning, (), finish, Usage(100, 20, 64, 7))


def data(frames: list[bytes]) -> list[Json]:
    return [orjson.loads(frame.split(b"\ndata: ")[1]) for frame in frames]


ITEM = {"id": "cmp_0a1b", "type": "compaction", "encrypted_content": seal("we went")}


def test_P080_a_trigger_at_the_end_asks_the_model_for_a_summary_with_the_tools_shown_and_not_callable() -> None:
    ask = parse(input=[*HISTORY, TRIGGER], tools=[TOOL], tool_choice="auto", parallel_tool_calls=False)
    assert ask.compacts
    assert ask.chat.messages == (*CHAT, REQUEST)
    turn = parse(input=HISTORY, tools=[TOOL]).chat
    assert turn.tools and ask.chat.tools == turn.tools
    assert (ask.chat.tool_choice, ask.chat.parallel_tool_calls) == (ToolChoice("none"), None)
    assert ask.chat.not_carried == ()
    assert parse(input=[*HISTORY, TRIGGER]).chat.tool_choice == ToolChoice()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact"])
def test_what_a_summary_makes_of_a_forced_call_and_of_a_schema_is_noted(path: str) -> None:
    schema = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
    chat = parse(path, input=[*HISTORY, TRIGGER], tools=[TOOL], tool_choice="required", text=schema).chat
    assert (chat.tool_choice, chat.json_schema) == (ToolChoice("none"), None)
    assert [lost.field for lost in chat.not_carried] == ["tool_choice", "text.format"]


@pytest.mark.parametrize("answer", [reply(), reply("", "we went"), reply(finish="length")])
def test_P080_the_reply_to_a_trigger_holds_exactly_one_compaction_item(answer: ChatReply) -> None:
    ask = parse(input=[*HISTORY, TRIGGER], stream=True)
    whole = openai_responses.render(ask, answer)
    assert (whole["object"], whole["status"], whole["output"]) == ("response", "completed", [ITEM])
    created, running, added, done, completed = data(list(openai_responses.stream(ask, answer)))
    assert [event["type"].removeprefix("response.") for event in (created, running, added, done, completed)] == [
        "created",
        "in_progress",
        "output_item.added",
        "output_item.done",
        "completed",
    ]
    assert added["item"] == {**ITEM, "encrypted_content": ""}
    assert done["item"] == ITEM
    assert completed["response"] == whole
    assert openai_responses.repairs(ask, answer) == ((CUT_SHORT,) if answer.finish_reason == "length" else ())


def test_P080_the_summary_comes_back_as_a_users_text_and_another_services_is_noted() -> None:
    chat = parse(input=[ITEM, HI]).chat
    assert chat.messages == (RECALLED, User((Text("hi"),)))
    assert chat.not_carried == ()
    chat = parse(input=[{**ITEM, "encrypted_content": "gAAAA"}, HI]).chat
    assert chat.messages == (User((Text("hi"),)),)
    assert [lost.field for lost in chat.not_carried] == ["input.*.encrypted_content"]


def test_a_trigger_that_is_not_last_is_noted_and_nothing_else() -> None:
    ask = parse(input=[HI, TRIGGER, HI])
    assert not ask.compacts
    assert [lost.field for lost in ask.chat.not_carried] == ["input.*.compaction_trigger"]


def test_P079_compact_gives_the_users_messages_and_one_compaction_item() -> None:
    ask = parse("/v1/responses/compact", input=HISTORY, instructions="Be brief.", stream=True)
    assert (ask.compacts, ask.stream) == (True, False)
    assert ask.chat.messages == (System("Be brief.\n\nBe Codex."), *CHAT[1:], REQUEST)
    body = openai_responses.render(ask, reply())
    usage = body.pop("usage")
    assert (usage["input_tokens"], usage["output_tokens"]) == (100, 20)
    assert body == {
        "id": "resp_0a1b",
        "object": "response.compaction",
        "created_at": 1764460800,
        "output": [
            {
                "id": "msg_u",
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": [{"type": "input_text", "text": "go"}],
            },
            ITEM,
        ],
    }
    assert openai_responses.stop_reason(body) == "completed"


def test_P079_a_kept_message_has_a_list_of_parts_however_it_was_sent() -> None:
    sent: list[Json] = [{"role": "user", "content": "hi"}, {"role": "user", "content": HISTORY[1]["content"]}]
    first, second, _ = openai_responses.render(parse("/v1/responses/compact", input=sent), reply())["output"]
    assert first == {
        "id": "msg_0a1b0",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "hi"}],
    }
    assert second["content"] == HISTORY[1]["content"]


def sdk(url: str) -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0, http_client=http)


async def test_P079_the_official_sdk_compacts_and_goes_on_from_what_it_got() -> None:
    async with served(openai_responses, reply(), reply("yes")) as server, sdk(server.url) as client:
        compacted = await client.responses.compact(model="m1", input="go")
        assert compacted.object == "response.compaction"
        ResponseCompactionItem.model_validate(compacted.output[-1].model_dump(), strict=True)
        # The SDK's own type has no user messages among the output items, though its text says that they are there.
        items: Any = [*(item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output), HI]
        await client.responses.create(model="m1", input=items)
    assert server.paths == ["/v1/responses/compact", "/v1/responses"]
    assert server.asks[1].chat.messages == (User((Text("go"),)), RECALLED, User((Text("hi"),)))
    assert server.asks[1].chat.not_carried == ()


@pytest.mark.parametrize(
    ("metadata", "compacts"),
    [('{"request_kind":"compaction"}', True), ('{"request_kind":"turn"}', False), ("[]", False), ("{", False)],
)
def test_codex_says_itself_which_ordinary_request_asks_for_a_summary(metadata: str, compacts: bool) -> None:
    assert parse(headers={"x-codex-turn-metadata": metadata}, input="hi").compacts is compacts
    assert parse(client_metadata={"x-codex-turn-metadata": metadata}, input="hi").compacts is compacts


def test_a_token_count_reads_the_same_prompt_and_needs_no_model() -> None:
    body: Json = {"input": HISTORY, "tools": [TOOL], "instructions": "Be brief."}
    ask = parse("/v1/responses/input_tokens", **{**body, "model": None})
    assert ask.chat.messages == parse(**body).chat.messages
    assert ask.chat.tools == parse(**body).chat.tools
    counted = openai_responses.count(ask, 123)
    assert InputTokenCountResponse.model_validate(counted, strict=True).input_tokens == 123


def test_codex_is_told_after_a_login_that_its_account_may_be_used_anywhere() -> None:
    request = Request("GET", "chatgpt.com", "/backend-api/wham/accounts/check", headers={"chatgpt-account-id": "acc_1"})
    found = recognise(request)
    assert found is not None
    assert (found[0].NAME, found[1]) == ("openai-responses", Route("fixed"))
    account = {"workspace_backend_origin": "NO_CONSTRAINT", "account_routing_override": "NO_CONSTRAINT"}
    assert openai_responses.fixed(request) == {"accounts": [{"id": "acc_1", **account}]}
    assert openai_responses.fixed(Request("GET", "h", "/"))["accounts"][0]["id"] == "local"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/backend-api/codex/models"),
        ("GET", "/backend-api/wham/usage"),
    ],
)
def test_what_is_not_kept_here_is_nobodys_path(method: str, path: str) -> None:
    assert recognise(Request(method, "chatgpt.com", path)) is None
