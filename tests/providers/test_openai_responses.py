"""OpenAI Responses: what Codex and Pi send becomes exactly this Chat, and the official SDK reads the reply."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, BadRequestError, DefaultAsyncHttpxClient
from openai.types.responses import Response

import polar_mitm.providers.openai_responses as openai_responses
from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatReply,
    FinishReason,
    Image,
    Json,
    NotCarried,
    Sampling,
    System,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Usage,
    User,
    text_of,
)
from polar_mitm.providers.base import Begun, Request, Route
from polar_mitm.providers.openai_responses import ResponsesAsk
from polar_mitm.providers.openai_responses_seal import seal, unseal
from polar_mitm.providers.openai_transcript import UNANSWERED
from tests.providers.early import early
from tests.providers.served import replaced, served, size

pytestmark = pytest.mark.filterwarnings("error")

SHELL_SCHEMA: Json = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
SHELL: Json = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": SHELL_SCHEMA,
}
AGENTS: Json = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Sub-agents.",
    "tools": [
        {"type": "function", "name": "spawn_agent", "description": "Start one.", "parameters": SHELL_SCHEMA},
        {"type": "function", "name": "close_agent", "parameters": SHELL_SCHEMA},
    ],
}
PATCH: Json = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}
PATCH_TEXT = '*** Begin Patch\n*** Add File: é.txt\n+"hi"\n*** End Patch'
PATCH_ARGUMENTS = orjson.dumps({"input": PATCH_TEXT}).decode()
SEARCH: Json = {"type": "web_search", "external_web_access": False}
HI: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
HI_CHAT = User((Text("hi"),))
PIXEL = "data:image/png;base64,iVBORw0KGgo="
# As the model wrote it: spaces and an escape that no serialiser would bring back.
ARGUMENTS = '{"cmd":  "echo hello \\u003e out.txt"}'


def message(role: str, text: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def call(call_id: str, name: str = "exec_command", arguments: str = "{}", **more: Any) -> Json:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        **more,
    }


def output(call_id: str, text: object = "ok", kind: str = "function_call_output") -> Json:
    return {"type": kind, "id": f"fco_{call_id}", "call_id": call_id, "output": text}


def parse(headers: dict[str, str] | None = None, **body: Any) -> ResponsesAsk:
    request = Request("POST", "api.openai.com", "/v1/responses", headers=headers or {})
    return openai_responses.parse(request, Route("generate"), {"model": "m1", "input": "hi", **body})


def messages(*items: Json, **body: Any) -> tuple[Any, ...]:
    return parse(input=list(items), **body).chat.messages


def refused(**body: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        parse(**body)
    assert caught.value.kind == "invalid_request"
    return caught.value


def reply(
    text: str = "",
    *,
    reasoning: str = "",
    calls: tuple[ToolCall, ...] = (),
    finish: FinishReason = "stop",
) -> ChatReply:
    return ChatReply("0a1b", 1764460800, text, reasoning, calls, finish, Usage(100, 20, 64, 7))


def items(ask: ResponsesAsk, answer: ChatReply) -> list[Json]:
    return list(openai_responses.render(ask, answer)["output"])


def events(ask: ResponsesAsk, answer: ChatReply) -> list[Json]:
    return [event(frame) for frame in openai_responses.stream(ask, answer)]


def event(frame: bytes) -> Json:
    """The data of one frame, whose `event:` line must name its type."""
    name, data, *rest = frame.decode().split("\n")
    assert rest == ["", ""]
    value: Json = orjson.loads(data.removeprefix("data: "))
    assert name == f"event: {value['type']}"
    return value


FULL = parse(tools=[SHELL, AGENTS, PATCH, {"type": "local_shell"}])
WHOLE = reply(
    "On it.",
    reasoning="Make the file.",
    calls=(
        ToolCall("call_1", "exec_command", ARGUMENTS),
        ToolCall("call_2", "multi_agent_v1__spawn_agent", '{"cmd": "x"}'),
        ToolCall("call_3", "apply_patch", PATCH_ARGUMENTS),
        ToolCall("call_4", "local_shell", '{"command": ["ls", "-l"], "timeout_ms": 500}'),
    ),
    finish="tool_calls",
)


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("POST", "/v1/responses", True),
        ("POST", "/responses/", True),
        ("POST", "/backend-api/codex/responses", True),
        ("POST", "/s/ses_1/v1/responses", True),
        ("GET", "/v1/responses", False),
        ("POST", "/v1/responses/compact", True),
        ("POST", "/v1/responses/resp_1", False),
        ("GET", "/v1/responses/resp_1/cancel", False),
        ("POST", "/v1/myresponses", False),
        ("POST", "/v1/chat/completions", False),
    ],
)
def test_calls_are_posts(method: str, path: str, known: bool) -> None:
    route = openai_responses.recognise(Request(method, "example.org", path))
    assert route == (Route("generate") if known else None)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1/"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/backend-api/codex/responses/resp_1/input_items"),
    ],
)
def test_a_stored_reply_is_not_found_in_the_services_words(method: str, path: str) -> None:
    request = Request(method, "example.org", path)
    assert openai_responses.recognise(request) == Route("fixed")
    with pytest.raises(CallError, match=r"^Response with id 'resp_1' not found\.$") as raised:
        openai_responses.fixed(request)
    assert openai_responses.error(raised.value)[0] == 404


def test_a_socket_is_no_question_for_a_stored_reply() -> None:
    request = Request("GET", "example.org", "/v1/responses/x", headers={"upgrade": "websocket"})
    assert openai_responses.recognise(request) is None


def test_P078_a_second_turn_as_codex_sends_it_becomes_this_chat() -> None:
    ask = parse(
        headers={"session-id": "s1", "thread-id": "t1", "x-codex-window-id": "t1:0", "authorization": "Bearer x"},
        model="gpt-5.2-codex",
        input=[
            message("developer", "You are Codex."),
            message("user", "<environment_context>"),
            message("user", "make out.txt"),
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": seal("Do it.")},
            call("call_1", arguments=ARGUMENTS, internal_chat_message_metadata_passthrough={"a": 1}, status="done"),
            output("call_1", "Chunk ID: 1\nOutput:\n"),
        ],
        tools=[SHELL, AGENTS, SEARCH],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="s1",
        client_metadata={"x-codex-installation-id": "i1"},
        text={"verbosity": "low"},
    )  # fmt: skip
    assert (ask.model, ask.stream) == ("gpt-5.2-codex", True)
    assert ask.harness_ids == {
        "session-id": "s1",
        "thread-id": "t1",
        "x-codex-window-id": "t1:0",
        "prompt_cache_key": "s1",
    }
    assert ask.chat.messages == (
        System("You are Codex."),
        User((Text("<environment_context>"),)),
        User((Text("make out.txt"),)),
        Assistant("", "Do it.", (ToolCall("call_1", "exec_command", ARGUMENTS),)),
        ToolResult("call_1", (Text("Chunk ID: 1\nOutput:\n"),)),
    )
    assert ask.chat.tools == (
        Tool("exec_command", "Runs a command.", SHELL_SCHEMA, False),
        Tool("multi_agent_v1__spawn_agent", "Sub-agents.\n\nStart one.", SHELL_SCHEMA),
        Tool("multi_agent_v1__close_agent", "", SHELL_SCHEMA),
    )
    assert ask.chat.tool_choice == ToolChoice("auto")
    assert ask.chat.parallel_tool_calls is False
    assert [lost.field for lost in ask.chat.not_carried] == [
        "client_metadata",
        "text.verbosity",
        "tools.web_search",
    ]


def test_P061_tools_in_the_input_are_hoisted_and_their_calls_translated() -> None:
    exec_tool = {"type": "custom", "name": "exec", "description": "Runs JavaScript."}
    lite = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "namespace", "name": "functions", "description": "", "tools": [exec_tool]}, SHELL],
    }
    history_call = {
        "type": "custom_tool_call",
        "call_id": "c1",
        "namespace": "functions",
        "name": "exec",
        "input": "1+1",
    }
    history_output = output("c1", [{"type": "input_text", "text": "2"}], "custom_tool_call_output")
    ask = parse(input=[lite, message("developer", "You are Codex."), HI, history_call, history_output])
    assert [tool.name for tool in ask.chat.tools] == ["functions__exec", "exec_command"]
    assert ask.chat.messages == (
        System("You are Codex."),
        HI_CHAT,
        Assistant(tool_calls=(ToolCall("c1", "functions__exec", '{"input": "1+1"}'),)),
        ToolResult("c1", (Text("2"),)),
    )
    [item] = items(ask, reply(calls=(ToolCall("c2", "functions__exec", '{"input": "2+2"}'),)))
    assert (item["type"], item["namespace"], item["name"], item["input"]) == (
        "custom_tool_call",
        "functions",
        "exec",
        "2+2",
    )


def test_P063_contiguous_assistant_items_are_one_assistant_message() -> None:
    reasoning = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "think"}]}
    later = message("assistant", "Done.")
    assert messages(HI, reasoning, message("assistant", "On it."), call("a"), output("a"), later, HI) == (
        HI_CHAT,
        Assistant("On it.", "think", (ToolCall("a", "exec_command", "{}"),)),
        ToolResult("a", (Text("ok"),)),
        Assistant("Done."),
        HI_CHAT,
    )


def test_P064_parallel_calls_are_one_assistant_message_before_their_outputs() -> None:
    a, b = ToolCall("a", "exec_command", "{}"), ToolCall("b", "exec_command", "{}")
    assert messages(HI, call("a"), call("b"), output("a"), output("b"), call("c")) == (
        HI_CHAT,
        Assistant(tool_calls=(a, b)),
        ToolResult("a", (Text("ok"),)),
        ToolResult("b", (Text("ok"),)),
        Assistant(tool_calls=(ToolCall("c", "exec_command", "{}"),)),
        ToolResult("c", (UNANSWERED,)),
    )


def test_P076_instructions_and_leading_developer_messages_are_one_system_message_and_later_ones_stay_in_place() -> None:
    later = message("system", "be brief")
    assert messages(message("developer", "two"), HI, later, instructions="one") == (
        System("one\n\ntwo"),
        HI_CHAT,
        User((Text("<system>\nbe brief\n</system>"),)),
    )


some_item = st.sampled_from(
    [
        HI,
        message("developer", "d"),
        message("assistant", "a"),
        call("c"),
        output("c"),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]},
    ]
)


@given(st.lists(some_item, min_size=3, max_size=8))
def test_P147_appending_items_after_a_user_or_tool_item_never_changes_what_came_before(history: list[Json]) -> None:
    whole = messages(HI, *history)
    for count in range(len(history)):
        shorter = messages(HI, *history[:count])
        if isinstance(shorter[-1], ToolResult) and shorter[-1].parts == (UNANSWERED,):
            continue  # no such request is made: the harness still runs the tool
        if isinstance(shorter[-1], Assistant):  # it may still grow by what the same turn said
            shorter = shorter[:-1]
        assert whole[: len(shorter)] == shorter


def test_input_may_be_one_string_and_messages_may_leave_out_their_type() -> None:
    assert parse(input="hi", instructions="be kind").chat.messages == (System("be kind"), HI_CHAT)
    assert messages({"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}) == (
        HI_CHAT,
        Assistant("yes"),
    )


def test_parts_keep_their_order_and_what_cannot_be_read_is_recorded() -> None:
    content = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": PIXEL, "detail": "high"},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_image", "file_id": "file-2"},
        {"type": "input_image", "image_url": "https://example.org/cat.png"},
    ]
    chat = parse(input=[{"role": "user", "content": content}, call("c"), output("c", content[:2])]).chat
    stand_ins = (
        Text("[a file, which cannot be shown here]"),
        Text("[an image, which cannot be shown here]"),
        Text("[an image, which cannot be shown here]"),
    )
    assert chat.messages[0] == User((Text("a"), Image(PIXEL), *stand_ins))
    assert chat.messages[2] == ToolResult("c", (Text("a"), Image(PIXEL)))
    assert {lost.field for lost in chat.not_carried} == {
        "input.*.content.*.detail",
        "input.*.content.*.input_file",
        "input.*.content.*.file_id",
        "input.*.content.*.image_url",
        "input.*.output.*.detail",
    }


def test_P115_reasoning_comes_back_from_our_seal_or_from_its_visible_text() -> None:
    content = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "seen"}], "summary": []}
    foreign = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "short"}],
        "encrypted_content": "gAAAA",
    }
    assert messages(HI, content)[1] == Assistant(reasoning="seen")
    assert messages(HI, {**content, "encrypted_content": seal("é whole\n")})[1] == Assistant(reasoning="é whole\n")
    chat = parse(input=[HI, foreign]).chat
    assert chat.messages[1] == Assistant(reasoning="short")
    why = "sealed by another service; the model is given what is readable"
    assert chat.not_carried == (NotCarried("input.*.encrypted_content", why),)
    assert messages(HI, {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}) == (HI_CHAT,)


@given(st.text())
def test_a_seal_opens_to_the_same_text_and_a_damaged_one_to_nothing(text: str) -> None:
    assert unseal(seal(text)) == text
    assert unseal(seal(text) + "!") is None
    assert unseal("polar.v1.é") is None


def test_items_of_hosted_tools_are_left_out_and_recorded() -> None:
    chat = parse(input=[HI, {"type": "web_search_call", "id": "ws_1", "status": "completed"}]).chat
    assert chat.messages == (HI_CHAT,)
    assert [lost.field for lost in chat.not_carried] == ["input.*.web_search_call"]


def test_a_local_shell_call_and_its_output_are_a_call_of_the_function_of_that_name() -> None:
    action = {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 500, "working_directory": None}
    shell_call = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": action, "status": "completed"}
    assert messages(HI, shell_call, {"type": "local_shell_call_output", "id": "c1", "output": "x"})[1:] == (
        Assistant(tool_calls=(ToolCall("c1", "local_shell", '{"command": ["ls", "-l"], "timeout_ms": 500}'),)),
        ToolResult("c1", (Text("x"),)),
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["hi"]}, "input.0"),
        ({"input": [{}]}, "input.0.type"),
        ({"input": [{"type": "telepathy"}]}, "input.0.type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": [{"type": "hologram"}]}]}, "input.0.content.0.type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]}, "input.0.arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input.0.call_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"tools": [{"name": "f"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools.0.tools.0.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_a_wrong_request_is_refused_by_the_path_of_the_field_at_fault(body: Json, param: str) -> None:
    error = refused(**body)
    assert error.param == param
    assert param in error.message


def test_P077_a_previous_response_is_refused_by_name_and_never_ignored() -> None:
    error = refused(previous_response_id="resp_7")
    status, body = openai_responses.error(error)
    assert status == 400
    assert body["error"]["code"] == "previous_response_not_found"
    assert body["error"]["param"] == "previous_response_id"
    assert "'resp_7' not found" in body["error"]["message"]


def test_sampling_and_structured_output_are_carried() -> None:
    schema = {"type": "json_schema", "name": "answer", "schema": SHELL_SCHEMA, "strict": True}
    chat = parse(max_output_tokens=50, temperature=0.3, top_p=0.8, text={"format": schema}).chat
    assert chat.sampling == Sampling(max_tokens=50, temperature=0.3, top_p=0.8)
    assert chat.json_schema == SHELL_SCHEMA
    assert parse(text={"format": {"type": "json_object"}}).chat.json_schema == {}
    assert parse(text={"format": {"type": "text"}}).chat.json_schema is None


def test_P052_P056_a_custom_tool_is_offered_as_a_function_of_one_string_with_its_grammar() -> None:
    [tool] = parse(tools=[PATCH]).chat.tools
    assert tool.name == "apply_patch"
    assert tool.description == (
        "Edits files.\n\nGive the raw text as the string `input`.\n\n"
        'The text must match this lark grammar:\nstart: "*** Begin Patch"'
    )
    assert tool.parameters["required"] == ["input"]
    assert tool.parameters["properties"]["input"]["type"] == "string"


def test_P054_the_reply_item_of_a_custom_tool_is_a_custom_tool_call_with_the_raw_text() -> None:
    assert items(FULL, reply(calls=(ToolCall("call_3", "apply_patch", PATCH_ARGUMENTS),))) == [
        {
            "id": "ctc_0a1b0",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_3",
            "name": "apply_patch",
            "input": PATCH_TEXT,
        }
    ]


def test_P058_a_namespaced_call_goes_back_with_its_namespace_and_comes_in_the_same_way() -> None:
    answer = reply(calls=(ToolCall("c", "multi_agent_v1__spawn_agent", ARGUMENTS),))
    [item] = items(FULL, answer)
    assert item == {
        "id": "fc_0a1b0",
        "type": "function_call",
        "status": "completed",
        "call_id": "c",
        "name": "spawn_agent",
        "namespace": "multi_agent_v1",
        "arguments": ARGUMENTS,
    }
    assert messages(HI, item)[1] == Assistant(tool_calls=answer.tool_calls)


def test_P059_a_namespace_is_expanded_and_its_description_said_once() -> None:
    assert [(tool.name, tool.description) for tool in parse(tools=[AGENTS]).chat.tools] == [
        ("multi_agent_v1__spawn_agent", "Sub-agents.\n\nStart one."),
        ("multi_agent_v1__close_agent", ""),
    ]


def test_P062_P053_hosted_tools_are_left_out_and_each_is_recorded() -> None:
    mcp = [{"type": "mcp", "server_label": label} for label in ("one", "two")]
    chat = parse(tools=[SEARCH, SHELL, {"type": "image_generation"}, *mcp]).chat
    assert [tool.name for tool in chat.tools] == ["exec_command"]
    assert [lost.field for lost in chat.not_carried] == [
        "tools.web_search",
        "tools.image_generation",
        "tools.mcp.one",
        "tools.mcp.two",
    ]


def test_P012_forcing_a_hosted_tool_is_refused() -> None:
    assert "cannot be forced" in refused(tools=[SEARCH, SHELL], tool_choice={"type": "web_search"}).message


CLASHING: list[Json] = [
    {"type": "function", "name": "a__b", "parameters": {"type": "object"}},
    {"type": "namespace", "name": "a", "description": "", "tools": [{"type": "function", "name": "b"}]},
    {"type": "namespace", "name": "a", "description": "", "tools": [{"type": "custom", "name": "b"}]},
    {"type": "function", "name": "shell", "parameters": {"type": "object"}},
    {"type": "shell"},
]


def test_tools_whose_names_are_alike_to_the_model_each_keep_a_name_and_their_type() -> None:
    ask = parse(tools=[*CLASHING, CLASHING[0]])
    names = [tool.name for tool in ask.chat.tools]
    assert names == ["a__b", "a__b_2", "a__b_3", "shell", "shell_2"]
    calls = tuple(ToolCall(f"c{number}", name, '{"input": "x"}') for number, name in enumerate(names))
    items = openai_responses.render(ask, reply(calls=calls, finish="tool_calls"))["output"]
    assert [(item["type"], item.get("name"), item.get("namespace")) for item in items] == [
        ("function_call", "a__b", None),
        ("function_call", "b", "a"),
        ("custom_tool_call", "b", "a"),
        ("function_call", "shell", None),
        ("shell_call", None, None),
    ]
    again = messages(HI, *items, tools=CLASHING)[1]
    assert [made.name for made in again.tool_calls] == names


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "a__b"}, "a__b"),
        ({"type": "function", "name": "b", "namespace": "a"}, "a__b_2"),
        ({"type": "custom", "name": "b"}, "a__b_3"),
        ({"type": "function", "name": "shell"}, "shell"),
        ({"type": "shell"}, "shell_2"),
    ],
)
def test_any_of_them_can_be_forced(choice: Json, name: str) -> None:
    assert parse(tools=CLASHING, tool_choice=choice).chat.tool_choice == ToolChoice("named", name)


def test_a_tool_that_a_search_found_cannot_be_forced() -> None:
    """The prompt stands before it, so the engine's grammar does not know it."""
    search: Json = {"type": "tool_search", "execution": "client", "description": "", "parameters": {"type": "object"}}
    found: Json = {"type": "function", "name": "late", "parameters": {"type": "object"}}
    asked: Json = {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {}}
    told: Json = {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": [found]}
    forced = refused(tools=[search], input=[HI, asked, told], tool_choice={"type": "function", "name": "late"})
    assert forced.param == "tool_choice.name"
    assert "'late' was found by a search" in forced.message


@pytest.mark.parametrize(
    ("choice", "meaning"),
    [
        (None, ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "exec_command"}, ToolChoice("named", "exec_command")),
        ({"type": "function", "name": "close_agent"}, ToolChoice("named", "multi_agent_v1__close_agent")),
        ({"type": "custom", "name": "apply_patch"}, ToolChoice("named", "apply_patch")),
        ({"type": "local_shell"}, ToolChoice("named", "local_shell")),
        ({"type": "allowed_tools", "mode": "required", "tools": []}, ToolChoice("required")),
    ],
)
def test_the_tool_choice_is_carried(choice: object, meaning: ToolChoice) -> None:
    ask = parse(tools=[SHELL, AGENTS, PATCH, {"type": "local_shell"}], tool_choice=choice)
    assert ask.chat.tool_choice == meaning


def test_a_tool_declared_twice_counts_as_declared_last() -> None:
    newer = {**SHELL, "description": "Newer."}
    chat = parse(tools=[SHELL, PATCH, newer]).chat
    assert [(tool.name, tool.description[:6]) for tool in chat.tools] == [
        ("exec_command", "Newer."),
        ("apply_patch", "Edits "),
    ]
    assert [lost.field for lost in chat.not_carried] == ["tools.exec_command"]


def test_fields_are_reported_only_where_something_was_lost() -> None:
    idle = parse(
        store=False, truncation="disabled", service_tier="auto", metadata={}, include=["reasoning.encrypted_content"]
    )
    assert idle.chat.not_carried == ()
    lost = parse(store=True, truncation="auto", include=["file_search_call.results"], surprise=1).chat.not_carried
    assert lost == (
        NotCarried("store", "nothing is stored at the service"),
        NotCarried("truncation", "a history that is too long is an error, never cut"),
        NotCarried("surprise", "unknown field"),
        NotCarried("include.file_search_call.results", "the reply holds nothing of that kind"),
    )


# One of everything, so that junk in any one place meets the code that reads that place.
EVERYTHING: Json = {
    "model": "m1",
    "instructions": "be kind",
    "input": [
        message("developer", "d"),
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PIXEL, "detail": "low"},
            {"type": "input_file", "file_id": "f"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}], "encrypted_content": seal("r")},
        message("assistant", "b"),
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        call("c1", namespace="multi_agent_v1"),
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "x"},
        {"type": "local_shell_call", "call_id": "c3", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        output("c1"),
        output("c2", [{"type": "input_text", "text": "x"}], "custom_tool_call_output"),
        {"type": "local_shell_call_output", "id": "c3", "output": "x"},
        {"type": "additional_tools", "role": "developer", "tools": [PATCH]},
        {"type": "web_search_call", "id": "ws"},
        {"type": "shell_call", "call_id": "c4", "action": {"commands": ["ls"]}},
        {"type": "apply_patch_call", "call_id": "c5", "operation": {"type": "delete_file", "path": "a"}},
        {"type": "tool_search_call", "call_id": "c6", "execution": "client", "arguments": {"query": "q"}},
        {"type": "shell_call_output", "call_id": "c4", "output": [
            {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        {"type": "apply_patch_call_output", "call_id": "c5", "status": "completed", "output": "ok"},
        {"type": "tool_search_output", "call_id": "c6", "execution": "client", "tools": [PATCH]},
        {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
        {"type": "compaction", "encrypted_content": seal("s")},
        {"type": "compaction_trigger"},
        HI,
    ],
    "tools": [
        SHELL, AGENTS, {"type": "local_shell"}, SEARCH, {"type": "apply_patch"},
        {"type": "shell", "environment": {"type": "local", "skills": [{"name": "n", "path": "p", "description": "d"}]}},
        {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "exec_command"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "client_metadata": {"thread-id": "t"},
    "reasoning": {"effort": "low"},
    "stream": True,
    "store": False,
    "max_output_tokens": 5,
    "temperature": 1.0,
    "prompt_cache_key": "k",
}  # fmt: skip
# Whole numbers as wide as the proxy's JSON reader gives them; wider ones it reads as floats.
whole_numbers = st.integers(-(2**63), 2**64 - 1)
junk = st.recursive(
    st.none() | st.booleans() | whole_numbers | st.floats(allow_nan=False) | st.text(max_size=3) | st.just("namespace"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "name", "text"]), inner),
    max_leaves=4,
)
places = st.integers(0, size(EVERYTHING) - 1)


@settings(max_examples=400, deadline=None)
@given(places, junk, places, junk)
def test_parse_raises_nothing_but_call_errors_and_what_it_takes_can_be_answered(
    first: int, one: object, second: int, other: object
) -> None:
    body = replaced(replaced(EVERYTHING, first, one), second, other)
    try:
        ask = openai_responses.parse(Request("POST", "h", "/v1/responses"), Route("generate"), body)
    except CallError as error:
        assert error.kind == "invalid_request"
    else:
        calls = tuple(ToolCall(f"c{n}", tool.name, '{"input": "x"}') for n, tool in enumerate(ask.chat.tools))
        assert events(ask, reply("x", calls=calls))[-1]["response"]["status"] == "completed"
        assert b"response.failed" in openai_responses.stream_error(ask, CallError("engine", "gone"), Begun("b", 1), 1)


def test_one_of_everything_is_taken() -> None:
    chat = openai_responses.parse(Request("POST", "h", "/v1/responses"), Route("generate"), EVERYTHING).chat
    kinds = [type(message).__name__ for message in chat.messages]
    results = ["ToolResult"] * 3
    assert kinds == ["System", "User", "Assistant", *results, "Assistant", *results, "User", "User"]
    # A custom tool and a type of OpenAI's may share a name.
    assert [tool.name for tool in chat.tools if "patch" in tool.name] == ["apply_patch", "apply_patch_2"]
    assert len(chat.tools) == 8


def test_a_text_reply_is_exactly_this_json() -> None:
    asked: Json = {"tools": [SHELL], "tool_choice": "auto", "temperature": 0.5, "metadata": {"a": "b"}}
    ask = parse(model="gpt-x", instructions="be kind", **asked)
    assert openai_responses.render(ask, reply("Done.")) == {
        "id": "resp_0a1b",
        "object": "response",
        "created_at": 1764460800,
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "be kind",
        "max_output_tokens": None,
        "metadata": {"a": "b"},
        "model": "gpt-x",
        "output": [
            {
                "id": "msg_0a1b",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [SHELL],
        "top_p": None,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 7},
            "total_tokens": 120,
        },
        "user": None,
    }


def test_a_reply_has_its_items_in_the_order_the_model_made_them() -> None:
    reasoning, text, *calls = items(FULL, WHOLE)
    assert reasoning == {
        "id": "rs_0a1b",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Make the file."}],
        "encrypted_content": seal("Make the file."),
    }
    assert text["content"][0]["text"] == "On it."
    assert [(item["id"], item["type"], item["call_id"]) for item in calls] == [
        ("fc_0a1b0", "function_call", "call_1"),
        ("fc_0a1b1", "function_call", "call_2"),
        ("ctc_0a1b2", "custom_tool_call", "call_3"),
        ("lsh_0a1b3", "local_shell_call", "call_4"),
    ]
    assert calls[0]["arguments"] == ARGUMENTS
    assert calls[3]["action"] == {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 500}


def test_a_call_of_a_tool_nobody_declared_goes_back_as_the_model_made_it() -> None:
    [item] = items(FULL, reply(calls=(ToolCall("c", "invented", "not json"),)))
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "invented", "not json")


def test_a_local_shell_call_without_a_command_gives_the_client_what_the_model_wrote() -> None:
    [item] = items(FULL, reply(calls=(ToolCall("c", "local_shell", '{"command": "ls"}'),)))
    assert item["action"]["command"] == ['{"command": "ls"}']


def test_P101_a_reply_of_reasoning_alone_still_ends_in_a_message() -> None:
    assert [item["type"] for item in items(FULL, reply(reasoning="hm"))] == ["reasoning", "message"]


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_P087_a_cut_off_reply_is_incomplete_and_so_is_its_last_item(finish: FinishReason, reason: str) -> None:
    answer = reply("On it.", calls=(ToolCall("c", "exec_command", '{"cmd"'),), finish=finish)
    response = openai_responses.render(FULL, answer)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert events(FULL, answer)[-1] == {
        "type": "response.incomplete",
        "sequence_number": len(events(FULL, answer)) - 1,
        "response": response,
    }


def test_P067_a_text_streams_in_the_full_order_of_events() -> None:
    text_at = {"item_id": "msg_0a1b", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}
    item = {"id": "msg_0a1b", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    done = openai_responses.render(parse(), reply("Done."))
    begun = {**done, "status": "in_progress", "output": [], "usage": None}
    order: list[tuple[str, Json]] = [
        ("created", {"response": begun}),
        ("in_progress", {"response": begun}),
        ("output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress", "content": []}}),
        ("content_part.added", {**text_at, "part": {**part, "text": ""}}),
        ("output_text.delta", {**text_at, "delta": "Done.", "logprobs": []}),
        ("output_text.done", {**text_at, "text": "Done.", "logprobs": []}),
        ("content_part.done", {**text_at, "part": part}),
        ("output_item.done", {"output_index": 0, "item": item}),
        ("completed", {"response": done}),
    ]
    assert events(parse(), reply("Done.")) == [
        {"type": f"response.{name}", "sequence_number": number, **data} for number, (name, data) in enumerate(order)
    ]


def test_P068_announced_items_have_every_field_there_and_empty() -> None:
    added = [event["item"] for event in events(FULL, WHOLE) if event["type"] == "response.output_item.added"]
    assert added[0] == {"id": "rs_0a1b", "type": "reasoning", "status": "in_progress", "summary": [], "content": []}
    assert added[1]["content"] == []
    assert (added[2]["arguments"], added[2]["call_id"], added[2]["name"]) == ("", "call_1", "exec_command")
    assert added[3]["namespace"] == "multi_agent_v1"
    assert added[4]["input"] == ""


def test_calls_and_reasoning_stream_as_their_own_kinds_of_event() -> None:
    kinds = [event["type"].removeprefix("response.") for event in events(FULL, WHOLE)]
    start, end = ["output_item.added"], ["output_item.done"]
    assert kinds == [
        "created",
        "in_progress",
        *start, "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done", *end,
        *start, "content_part.added", "output_text.delta", "output_text.done", "content_part.done", *end,
        *start, "function_call_arguments.delta", "function_call_arguments.done", *end,
        *start, "function_call_arguments.delta", "function_call_arguments.done", *end,
        *start, "custom_tool_call_input.delta", "custom_tool_call_input.done", *end,
        *start, *end,
        "completed",
    ]  # fmt: skip


replies = st.builds(
    reply,
    st.text(max_size=20),
    reasoning=st.text(max_size=10),
    calls=st.sampled_from([(), WHOLE.tool_calls, WHOLE.tool_calls[2:]]),
    finish=st.sampled_from(["stop", "length", "tool_calls"]),
)


@given(replies)
def test_P070_P071_P073_P074_items_keep_their_ids_deltas_add_up_and_the_one_last_event_holds_the_reply(
    answer: ChatReply,
) -> None:
    stream = events(FULL, answer)
    whole = openai_responses.render(FULL, answer)
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    terminal = [event for event in stream if event["type"].split(".")[1] in ("completed", "incomplete", "failed")]
    assert terminal == [stream[-1]]
    assert stream[-1]["response"] == whole

    announced: dict[str, int] = {}
    deltas: dict[str, str] = {}
    done: list[Json] = []
    for event in stream:
        if event["type"] == "response.output_item.added":
            announced[event["item"]["id"]] = event["output_index"]
        elif event["type"] == "response.output_item.done":
            done.append(event["item"])
        elif "item_id" in event:
            assert announced[event["item_id"]] == event["output_index"] == len(done)
            deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event.get("delta", "")
    assert done == whole["output"]
    for item in done:
        shown = item.get("arguments", item.get("input"))
        assert deltas.get(item["id"], "") == (item["content"][0]["text"] if "content" in item else shown or "")


def framed(sent: bytes) -> list[Json]:
    return [event(frame + b"\n\n") for frame in sent.removesuffix(b"\n\n").split(b"\n\n")]


def test_P137_keepalives_are_the_beginning_of_the_answer_and_that_it_is_in_progress() -> None:
    """Codex takes no comment for a sign of life, and the SDKs want `created` before all else."""
    whole = framed(b"".join(openai_responses.stream(FULL, reply("Done."))))
    kept = framed(early(openai_responses, FULL, reply("Done."), 3))
    assert [item["type"] for item in kept[:4]] == ["response.created", *["response.in_progress"] * 3]
    assert [item["sequence_number"] for item in kept] == list(range(len(whole) + 2))
    assert [item | {"sequence_number": 0} for item in (*kept[:2], *kept[4:])] == [
        item | {"sequence_number": 0} for item in whole
    ]
    for again in kept[2:4]:
        assert (again["response"]["id"], again["response"]["tools"]) == (whole[0]["response"]["id"], [])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CallError("engine", "gone"), "server_error"),
        (CallError("timeout", "slow"), "server_error"),
        (CallError("invalid_request", "no"), "invalid_prompt"),
        (CallError("no_model", "gone"), "invalid_prompt"),
    ],
)
def test_P074_P075_a_call_that_fails_late_is_a_whole_stream_that_ends_in_failed(error: CallError, code: str) -> None:
    created, running, failed = framed(early(openai_responses, FULL, error, 1))
    assert (created["type"], created["sequence_number"]) == ("response.created", 0)
    assert (running["type"], running["sequence_number"]) == ("response.in_progress", 1)
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 2)
    assert created["response"]["id"] == failed["response"]["id"]
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": code, "message": error.message}


def test_an_error_has_the_status_and_body_of_the_chat_api() -> None:
    body = {"message": "why", "type": "server_error", "param": None, "code": None}
    assert openai_responses.error(CallError("engine", "why")) == (502, {"error": body})


def test_a_full_context_is_told_in_the_words_that_clients_look_for() -> None:
    error = CallError("context_overflow", "why", over=(5000, 4096))
    told = openai_responses.error(error)[1]["error"]
    assert told["code"] == "context_length_exceeded"
    assert told["message"].startswith("This model's maximum context length is 4096 tokens. However, your messages ")
    assert "exceeds the context window of this model" in told["message"]
    *_, failed = framed(early(openai_responses, FULL, error, 1))
    assert failed["response"]["error"] == {"code": told["code"], "message": told["message"]}


def sdk(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{url}/v1", api_key="key", max_retries=0, http_client=DefaultAsyncHttpxClient(trust_env=False)
    )


TOOLS: Any = [SHELL, AGENTS, PATCH, {"type": "local_shell"}]


async def test_the_official_sdk_reads_a_reply_and_sends_it_back_as_history() -> None:
    async with served(openai_responses, WHOLE, reply("Done.")) as server, sdk(server.url) as client:
        first = await client.responses.create(model="m1", input="go", tools=TOOLS, instructions="be kind")
        Response.model_validate(first.model_dump(warnings="error", by_alias=True, exclude_unset=True), strict=True)
        assert first.output_text == "On it."
        assert first.usage is not None
        assert first.usage.input_tokens_details.cached_tokens == 64

        history: Any = [{"role": "user", "content": "go"}, *(item.to_dict() for item in first.output)]
        history += [output(f"call_{number}") for number in (1, 2)]
        history += [output("call_3", "ok", "custom_tool_call_output")]
        history += [{"type": "local_shell_call_output", "id": "call_4", "output": "ok"}]
        second = await client.responses.create(model="m1", input=history, tools=TOOLS, instructions="be kind")
        assert second.output_text == "Done."

        said = server.asks[1].chat.messages[2]
        assert isinstance(said, Assistant)
        assert (said.text, said.reasoning) == ("On it.", "Make the file.")
        assert [(c.id, c.name) for c in said.tool_calls] == [(c.id, c.name) for c in WHOLE.tool_calls]
        assert said.tool_calls[0].arguments == ARGUMENTS
        assert orjson.loads(said.tool_calls[2].arguments) == {"input": PATCH_TEXT}
        results = server.asks[1].chat.messages[3:]
        assert [(m.call_id, text_of(m.parts)) for m in results if isinstance(m, ToolResult)] == [
            (f"call_{number}", "ok") for number in (1, 2, 3, 4)
        ]
        assert server.asks[1].chat.messages[:2] == server.asks[0].chat.messages
        assert server.asks[1].chat.not_carried == ()


@pytest.mark.parametrize("answer", [WHOLE, reply("only text"), reply(calls=WHOLE.tool_calls[2:3])])
async def test_the_official_sdk_assembles_a_stream_into_the_plain_reply(answer: ChatReply) -> None:
    async with served(openai_responses, answer, answer, answer) as server, sdk(server.url) as client:
        async for raw in await client.responses.create(model="m1", input="go", tools=TOOLS, stream=True):
            raw.model_dump(warnings="error")
            type(raw).model_validate(raw.model_dump(by_alias=True, exclude_unset=True), strict=True)

        async with client.responses.stream(model="m1", input="go", tools=TOOLS) as stream:
            streamed = await stream.get_final_response()
        plain = await client.responses.create(model="m1", input="go", tools=TOOLS)
    assert streamed.output_text == plain.output_text
    shown = streamed.model_dump(by_alias=True, exclude_none=True)
    for item in shown["output"]:
        item.pop("parsed_arguments", None)  # the SDK's own addition
    assert shown == plain.model_dump(by_alias=True, exclude_none=True)


async def test_the_official_sdk_sees_a_cut_off_reply_as_incomplete_and_a_late_failure_as_failed() -> None:
    cut = reply("cut", finish="length")
    gone = CallError("engine", "the engine is gone")
    async with served(openai_responses, cut, cut, gone) as server, sdk(server.url) as client:
        plain = await client.responses.create(model="m1", input="go")
        assert plain.incomplete_details is not None
        assert plain.incomplete_details.reason == "max_output_tokens"

        async with client.responses.stream(model="m1", input="go") as stream:
            last = [event async for event in stream][-1]
        assert last.type == "response.incomplete"
        assert last.response.output_text == "cut"

        async with client.responses.stream(model="m1", input="go") as stream:
            last = [event async for event in stream][-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert (last.response.error.code, last.response.error.message) == ("server_error", "the engine is gone")


async def test_the_official_sdk_raises_the_error_of_a_refused_call() -> None:
    async with served(openai_responses) as server, sdk(server.url) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.responses.create(model="m1", input="go", previous_response_id="resp_7")
    assert refusal.value.code == "previous_response_not_found"
