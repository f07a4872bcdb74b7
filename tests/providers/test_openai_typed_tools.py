"""Tools with a type of their own go to the model as functions, and their calls come back as items of their type."""

from typing import Any

import orjson
import pytest
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseFunctionShellToolCall,
    ResponseToolSearchCall,
)
from openai.types.responses.response_output_item import LocalShellCall

import polar_mitm.providers.openai_responses as openai_responses
from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatReply,
    FinishReason,
    Json,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Usage,
)
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.openai_responses import ResponsesAsk
from polar_mitm.providers.openai_responses_typed import MISSHAPEN

HI: Json = {"role": "user", "content": "hi"}
SKILL: Json = {"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}
TOOLS: list[Json] = [
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local", "skills": [SKILL]}},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object"}},
]


def parse(*items: Json, **body: Any) -> ResponsesAsk:
    request = Request("POST", "h", "/v1/responses")
    return openai_responses.parse(
        request, Route("generate"), {"model": "m1", "input": [HI, *items], "tools": TOOLS, **body}
    )


def reply(name: str, arguments: object, finish: FinishReason = "stop") -> ChatReply:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return ChatReply("0a1b", 1764460800, "", "", (ToolCall("c1", name, text),), finish, Usage(1, 1))


CASES = [
    (
        "local_shell",
        {"command": ["ls", "-l"], "timeout_ms": 5},
        {"action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5}},
        LocalShellCall,
    ),
    (
        "shell",
        {"commands": ["ls", "pwd"], "timeout_ms": 5},
        {"action": {"commands": ["ls", "pwd"], "timeout_ms": 5}, "environment": {"type": "local"}},
        ResponseFunctionShellToolCall,
    ),
    (
        "apply_patch",
        {"type": "update_file", "path": "a.py", "diff": "@@\n-x\n+y\n"},
        {"operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-x\n+y\n"}},
        ResponseApplyPatchToolCall,
    ),
    (
        "apply_patch",
        {"type": "delete_file", "path": "a.py"},
        {"operation": {"type": "delete_file", "path": "a.py"}},
        ResponseApplyPatchToolCall,
    ),
    (
        "tool_search",
        {"query": "mail", "limit": 3},
        {"execution": "client", "arguments": {"query": "mail", "limit": 3}},
        ResponseToolSearchCall,
    ),
]


def test_the_model_is_given_each_as_a_function() -> None:
    ask = parse()
    assert [tool.name for tool in ask.chat.tools] == ["local_shell", "shell", "apply_patch", "tool_search"]
    assert ask.chat.tools[1].description.endswith("Skills:\n- pdf (/skills/pdf): Reads PDFs.")
    assert ask.chat.tools[3] == Tool("tool_search", "Finds tools.", {"type": "object"})
    assert ask.chat.not_carried == ()


@pytest.mark.parametrize(("name", "arguments", "own", "model"), CASES)
def test_a_call_is_an_item_of_the_tools_own_type_and_comes_in_again_as_the_call(
    name: str, arguments: Json, own: Json, model: Any
) -> None:
    ask, answer = parse(), reply(name, arguments)
    [item] = openai_responses.render(ask, answer)["output"]
    model.model_validate(item, strict=True)
    assert (item["type"], item["call_id"], item["status"]) == (f"{name}_call", "c1", "completed")
    assert {field: item[field] for field in own} == own
    assert openai_responses.repairs(ask, answer) == ()
    said = parse(item).chat.messages[1]
    assert isinstance(said, Assistant)
    assert (said.tool_calls[0].id, said.tool_calls[0].name) == ("c1", name)
    assert orjson.loads(said.tool_calls[0].arguments) == arguments
    added, done = (
        event["item"]
        for event in (orjson.loads(frame.split(b"\ndata: ")[1]) for frame in openai_responses.stream(ask, answer))
        if "item" in event
    )
    model.model_validate(added, strict=True)
    assert (added["status"], done) == ("in_progress", item)


@pytest.mark.parametrize("name", ["local_shell", "shell", "apply_patch", "tool_search"])
@pytest.mark.parametrize("arguments", ["rm it", "[1]", '{"command": "ls", "path": 7}'])
def test_a_call_that_does_not_fit_gives_the_client_what_the_model_wrote(name: str, arguments: str) -> None:
    ask, answer = parse(), reply(name, arguments)
    [item] = openai_responses.render(ask, answer)["output"]
    assert item["type"] == f"{name}_call"
    if (name, arguments[0]) != ("tool_search", "{"):
        assert arguments in str(item).replace("\\'", "'")
        assert openai_responses.repairs(ask, answer) == (f"{name}: {MISSHAPEN}",)


@pytest.mark.parametrize(("name", "status"), [("shell", "incomplete"), ("apply_patch", "in_progress")])
def test_P087_a_call_that_was_cut_off_is_not_completed(name: str, status: str) -> None:
    response = openai_responses.render(parse(), reply(name, '{"comm', "length"))
    assert response["status"] == "incomplete"
    assert response["output"][0]["status"] == status


def test_results_of_each_kind_are_read() -> None:
    call = {"call_id": "c1"}
    shell: list[Json] = [
        {"type": "shell_call", **call, "action": {"commands": ["ls", "sleep 9"]}},
        {
            "type": "shell_call_output",
            **call,
            "output": [
                {"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 1}},
                {"stdout": "", "stderr": "b", "outcome": {"type": "timeout"}},
            ],
        },
    ]
    assert parse(*shell).chat.messages[2] == ToolResult("c1", (Text("a\n[exit code 1]\nb\n[timeout]"),))
    patch: list[Json] = [
        {"type": "apply_patch_call", **call, "operation": {"type": "delete_file", "path": "a"}},
        {"type": "apply_patch_call_output", **call, "status": "failed", "output": "no such file"},
    ]
    assert parse(*patch).chat.messages[2] == ToolResult("c1", (Text("[failed]\nno such file"),))


SEND: Json = {"type": "function", "name": "send", "parameters": {"type": "object"}, "defer_loading": True}
SEARCHED: list[Json] = [
    {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "mail"}},
    {
        "type": "tool_search_output",
        "call_id": "c1",
        "execution": "client",
        "tools": [{"type": "namespace", "name": "mail", "description": "Mail.", "tools": [SEND]}],
    },
]


def test_found_tools_are_told_where_they_were_found_so_that_the_prompt_keeps_its_prefix() -> None:
    ask = parse(*SEARCHED)
    assert ask.chat.tools == parse().chat.tools
    found = ask.chat.messages[2]
    assert isinstance(found, ToolResult)
    assert isinstance(found.parts[0], Text)
    assert orjson.loads(found.parts[0].text)["function"]["name"] == "mail__send"
    [item] = openai_responses.render(ask, reply("mail__send", "{}"))["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "mail", "send")


def test_a_search_of_the_service_and_its_shell_are_left_out_and_noted() -> None:
    hosted = [
        {"type": "shell", "environment": {"type": "container_auto"}},
        {"type": "tool_search"},
        SEND,
    ]
    ask = parse({"type": "tool_search_output", "execution": "server", "tools": []}, tools=hosted)
    assert [tool.name for tool in ask.chat.tools] == ["send"]
    assert [lost.field for lost in ask.chat.not_carried] == [
        "tools.shell",
        "tools.tool_search",
        "tools.*.defer_loading",
        "input.*.tool_search_output",
    ]


def test_P012_a_typed_tool_may_be_forced_where_the_client_runs_it() -> None:
    assert parse(tool_choice={"type": "shell"}).chat.tool_choice == ToolChoice("named", "shell")
    assert parse(tool_choice={"type": "apply_patch"}).chat.tool_choice == ToolChoice("named", "apply_patch")
    with pytest.raises(CallError, match="no tool of type 'shell' is declared for the client to run"):
        parse(tools=[{"type": "shell", "environment": {"type": "container_auto"}}], tool_choice={"type": "shell"})


def test_a_configuration_update_replaces_what_the_request_said() -> None:
    format_ = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    update = {"type": "configuration_update", "reasoning": {"effort": "none"}, "text": {"format": format_}}
    chat = parse(update, reasoning={"effort": "high"}).chat
    assert (chat.thinking.enabled, chat.json_schema) == (False, {"type": "object"})
