"""Anthropic's client tools without a schema: a function for the model, and a call under the tool's own name back."""

import typing
from typing import Any

import anthropic as sdk
import pytest
from anthropic.lib.tools._toolsets._registry import BROWSER_DEFAULT_DISABLED_MEMBERS
from anthropic.types import beta
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from polar_mitm.chat import Assistant, CallError, ChatReply, Text, Tool, ToolCall, ToolChoice, ToolResult, Usage
from polar_mitm.providers import anthropic
from polar_mitm.providers.anthropic_client_tools import CLIENT_TOOLS
from polar_mitm.providers.anthropic_reply import AnthropicAsk
from polar_mitm.providers.anthropic_toolsets import TOOLSETS
from polar_mitm.providers.base import Request, Route
from tests.providers.served import replaced, served, size

HI = {"role": "user", "content": "hi"}
BASH = {"type": "bash_20250124", "name": "bash"}
EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 900}
MEMORY = {"type": "memory_20250818", "name": "memory"}
SCREEN = {"type": "computer_20251124", "name": "computer", "display_width_px": 800, "display_height_px": 600}
TOOLSET = {"type": "computer_toolset_20260801"}
BROWSER = {"type": "browser_toolset_20260801"}


def parse(*tools: Any, messages: Any = (HI,), **fields: Any) -> AnthropicAsk:
    body = {"model": "m", "max_tokens": 9, "messages": [*messages], "tools": [*tools], **fields}
    return anthropic.parse(Request("POST", "h", "/v1/messages"), Route("generate"), body)


def offered(*tools: Any) -> Tool:
    (tool,) = parse(*tools).chat.tools
    return tool


def test_each_is_a_function_under_its_own_name_and_nothing_of_it_is_lost() -> None:
    chat = parse(BASH, EDITOR, MEMORY, {**SCREEN, "display_number": 1, "enable_zoom": True}).chat
    assert [tool.name for tool in chat.tools] == ["bash", "str_replace_based_edit_tool", "memory", "computer"]
    assert chat.not_carried == ()
    assert all(tool.description and tool.parameters["type"] == "object" for tool in chat.tools)
    editor, computer = chat.tools[1], chat.tools[3]
    assert "At most 900 characters" in editor.description
    assert "800 x 600" in computer.description and ":1." in computer.description
    assert "zoom" in computer.parameters["properties"]["action"]["enum"]


def test_bash_takes_a_command_or_a_restart() -> None:
    assert offered(BASH).parameters == {
        "type": "object",
        "properties": {"command": {"type": "string"}, "restart": {"type": "boolean"}},
        "required": [],
    }


@pytest.mark.parametrize(
    ("kind", "commands", "inserted"),
    [
        ("text_editor_20241022", ["view", "create", "str_replace", "insert", "undo_edit"], "new_str"),
        ("text_editor_20250124", ["view", "create", "str_replace", "insert", "undo_edit"], "new_str"),
        ("text_editor_20250429", ["view", "create", "str_replace", "insert"], "insert_text"),
        ("text_editor_20250728", ["view", "create", "str_replace", "insert"], "insert_text"),
    ],
)
def test_an_editor_has_the_commands_of_its_version(kind: str, commands: list[str], inserted: str) -> None:
    tool = offered({"type": kind, "name": "edit"})
    assert tool.parameters["properties"]["command"]["enum"] == commands
    assert all(f"`{command}`" in tool.description for command in commands)
    assert f"`insert` puts `{inserted}`" in tool.description
    known = {"command", "path", "view_range", "file_text", "old_str", "new_str", "insert_line"}
    assert tool.parameters["properties"].keys() == known | {inserted}


def test_memory_has_the_fields_of_the_sdks_commands() -> None:
    commands: list[type[BaseModel]] = [
        beta.BetaMemoryTool20250818ViewCommand,
        beta.BetaMemoryTool20250818CreateCommand,
        beta.BetaMemoryTool20250818StrReplaceCommand,
        beta.BetaMemoryTool20250818InsertCommand,
        beta.BetaMemoryTool20250818DeleteCommand,
        beta.BetaMemoryTool20250818RenameCommand,
    ]
    parameters = offered(MEMORY).parameters
    assert parameters["properties"].keys() == {name for command in commands for name in command.model_fields}
    assert parameters["properties"]["command"]["enum"] == [
        command.model_fields["command"].annotation.__args__[0]  # type: ignore[union-attr]
        for command in commands
    ]


@pytest.mark.parametrize(
    ("kind", "has", "lacks"),
    [
        ("computer_20241022", {"key", "type", "screenshot"}, {"scroll", "zoom"}),
        ("computer_20250124", {"scroll", "hold_key", "wait"}, {"zoom"}),
        ("computer_20251124", {"scroll", "hold_key", "wait"}, {"zoom"}),
    ],
)
def test_a_computer_has_the_actions_of_its_version(kind: str, has: set[str], lacks: set[str]) -> None:
    actions = offered({**SCREEN, "type": kind}).parameters["properties"]["action"]["enum"]
    assert has <= {*actions} and not lacks & {*actions}


def test_the_sdks_types_know_no_other_client_tool() -> None:
    """A newer SDK with another one fails here."""
    served_elsewhere = ("web_", "code_execution", "tool_search", "advisor", "mcp_toolset", "custom")
    kinds = {
        kind
        for tool in beta.BetaToolUnionParam.__args__  # type: ignore[attr-defined]
        for kind in tool.__annotations__["type"].__forward_arg__.replace('"', " ").replace("'", " ").split()
        if "_20" in kind
    }
    assert {kind for kind in kinds if not kind.startswith(served_elsewhere)} == {*CLIENT_TOOLS, *TOOLSETS}


def test_it_can_be_forced_deferred_strict_and_shown_by_example_like_any_other() -> None:
    assert parse(BASH, tool_choice={"type": "tool", "name": "bash"}).chat.tool_choice == ToolChoice("named", "bash")
    tool = offered({**BASH, "strict": True, "input_examples": [{"command": "ls"}], "cache_control": {}})
    assert tool.strict is True and tool.description.endswith('Examples of input:\n{"command": "ls"}')
    chat = parse({**BASH, "defer_loading": True}).chat
    assert (chat.tools, [lost.field for lost in chat.not_carried]) == ((), ["tools.bash"])


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"type": "bash_20250124"}, "tools.0.name: field required"),
        ({"type": "computer_20250124", "name": "computer"}, "tools.0.display_width_px: field required"),
        ({**EDITOR, "max_characters": "x"}, "tools.0.max_characters: expected an integer, got a string"),
        ({**TOOLSET, "configs": {"key": {"enabled": 1}}}, "tools.0.configs.key.enabled: expected a boolean"),
        ({**TOOLSET, "configs": {"keys": {}}}, "tools.0.configs.keys: the computer toolset has no such tool"),
    ],
)
def test_a_wrong_declaration_is_refused_by_its_path(tool: Any, message: str) -> None:
    with pytest.raises(CallError) as caught:
        parse(tool)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("toolset", TOOLSETS.values(), ids=lambda toolset: toolset.name)
def test_a_toolset_has_the_members_and_the_fields_of_the_sdks_types(toolset: Any) -> None:
    family = toolset.name.title()
    union: Any = getattr(beta, f"Beta{family}MemberName")
    assert {*toolset.members} == {*typing.get_args(union)}
    for name, (_, parameters) in toolset.members.items():
        published = getattr(beta, f"Beta{family}{name.title().replace('_', '')}Input").model_fields
        fields = {field.alias or key: field.is_required() for key, field in published.items()}
        assert parameters["properties"].keys() == fields.keys(), name
        assert {*parameters["required"]} == {key for key, needed in fields.items() if needed}, name


def test_the_browser_keeps_back_what_the_sdk_says_is_off_unless_it_is_switched_on() -> None:
    off = TOOLSETS[BROWSER["type"]].off
    assert off == BROWSER_DEFAULT_DISABLED_MEMBERS
    assert not {f"browser__{name}" for name in off} & {tool.name for tool in parse(BROWSER).chat.tools}
    configs = {"javascript_exec": {"enabled": True}}
    assert "browser__javascript_exec" in {tool.name for tool in parse({**BROWSER, "configs": configs}).chat.tools}


def test_the_state_of_a_browser_is_told_to_the_model() -> None:
    tabs = [
        {"tab_id": "1", "title": "Home", "url": "https://e.org/", "active": True},
        {"tab_id": "2", "title": "", "url": ""},
    ]
    changes = [{"type": "download_started", "download_id": "d", "url": "https://e.org/f"}]
    state = {"type": "browser_state", "tabs": tabs, "state_changes": changes, "cache_control": {"type": "ephemeral"}}
    used = {"type": "tool_use", "id": "t", "name": "list_tabs", "toolset_name": "browser", "input": {}}
    told = {"type": "tool_result", "tool_use_id": "t", "toolset_name": "browser", "content": [state]}
    history = (HI, {"role": "assistant", "content": [used]}, {"role": "user", "content": [told]})
    chat = parse(BROWSER, messages=history).chat
    assert chat.messages[2] == ToolResult(
        "t",
        (
            Text(
                "[tab 1, active] Home https://e.org/\n[tab 2]\n"
                '{"type": "download_started", "download_id": "d", "url": "https://e.org/f"}'
            ),
        ),
    )
    assert chat.not_carried == ()


def test_members_that_are_off_or_deferred_are_not_given() -> None:
    configs = {"zoom": {"enabled": False}, "key": {"enabled": True}, "wait": {"defer_loading": True}}
    chat = parse({**TOOLSET, "configs": configs}).chat
    names = [tool.name for tool in chat.tools]
    assert "computer__key" in names and "computer__zoom" not in names and "computer__wait" not in names
    assert [lost.field for lost in chat.not_carried] == ["tools.computer__wait"]


USED = {"type": "tool_use", "id": "t", "name": "scroll", "toolset_name": "computer", "input": {"scroll_amount": 3}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "toolset_name": "computer", "content": "ok"}


def test_a_members_call_in_the_history_has_the_functions_name() -> None:
    history = (HI, {"role": "assistant", "content": [USED]}, {"role": "user", "content": [RESULT]})
    chat = parse(TOOLSET, messages=history).chat
    assert chat.messages[1] == Assistant(tool_calls=(ToolCall("t", "computer__scroll", '{"scroll_amount": 3}'),))
    assert chat.not_carried == ()


EVERY = {
    "model": "m",
    "max_tokens": 9,
    "messages": [HI, {"role": "assistant", "content": [USED]}, {"role": "user", "content": [RESULT]}],
    "tools": [BASH, EDITOR, MEMORY, SCREEN, {**TOOLSET, "configs": {"key": {"enabled": True}}}, BROWSER],
    "tool_choice": {"type": "tool", "name": "bash"},
}


@given(
    st.integers(0, size(EVERY) - 1),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.just([])
    | st.just({}),
)
@settings(deadline=None)
def test_a_request_with_any_one_value_replaced_is_parsed_or_refused_with_a_call_error(at: int, value: Any) -> None:
    try:
        anthropic.parse(Request("POST", "h", "/v1/messages"), Route("generate"), replaced(EVERY, at, value))
    except CallError as error:
        assert error.kind == "invalid_request"


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_the_sdk_reads_the_calls_as_those_of_the_declared_tools(as_stream: bool) -> None:
    calls = (
        ToolCall("t1", "bash", '{"command": "ls"}'),
        ToolCall("t2", "computer__scroll", '{"scroll_amount": 3, "scroll_direction": "up"}'),
    )
    reply = ChatReply("ab", 1, "", "", calls, "tool_calls", Usage(1, 2))
    asked: Any = {"model": "m", "max_tokens": 9, "messages": [HI], "tools": [BASH, TOOLSET]}
    async with (
        served(anthropic, reply) as server,
        sdk.AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0) as client,
    ):
        if as_stream:
            async with client.beta.messages.stream(**asked) as stream:
                message: Any = await stream.get_final_message()
        else:
            message = await client.beta.messages.create(**asked)
    first, second = message.to_dict()["content"]
    assert first == {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}
    assert (second["name"], second["toolset_name"]) == ("scroll", "computer")
    assert second["input"] == {"scroll_amount": 3, "scroll_direction": "up"}
