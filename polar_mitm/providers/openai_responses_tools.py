"""Tools of the Responses API: functions, custom tools, namespaces and local_shell as functions a Chat model can call.

The model sees plain functions. A `Toolbox` remembers how each was declared, so that a call goes back in the form its
client executes, and replayed calls are translated the same way. Hosted tools, which only OpenAI runs, are left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import orjson

from polar_mitm.chat import Json, Tool, ToolCall, ToolChoice
from polar_mitm.providers.common import Notes, arguments_object, arguments_text
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_common import (
    ALLOWED_TOOLS_WHY,
    Fates,
    function_tool,
    names,
    note_rest,
    word_choice,
)

LOCAL_SHELL = "local_shell"

TOOL_READ = names("type name description parameters strict format tools")
TOOL_FATES: Fates = {
    "defer_loading": "every declared tool is given to the model at once",
    "output_schema": "chat templates have no place for a result's schema",
    "allowed_callers": "the model itself makes every call",
    "async": "calls are answered in turn",
}
IDLE = {"defer_loading": (False,), "async": (False,), "allowed_callers": (["direct"],)}

LOCAL_SHELL_TOOL = Tool(
    LOCAL_SHELL,
    "Runs a command on the user's machine.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments."},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
    },
)


@dataclass(slots=True, frozen=True)
class Declared:
    """How the client declared a tool that the model knows as a function."""

    kind: Literal["function", "custom", "local_shell"]
    name: str
    namespace: str = ""


class Toolbox:
    """The tools of one request, by the name that the model calls them."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._tools: dict[str, Tool] = {}
        self._declared: dict[str, Declared] = {}

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    @property
    def declared(self) -> Mapping[str, Declared]:
        return self._declared

    def add(self, tools: Iterable[Fields]) -> None:
        for tool in tools:
            if tool.text("type") == "namespace":
                self._add_namespace(tool)
            else:
                self._add_tool(tool, "", "")

    def _add_namespace(self, fields: Fields) -> None:
        namespace, about = fields.text("name"), fields.text_or("description")
        note_rest(self._notes, fields, TOOL_READ, TOOL_FATES, IDLE)
        for tool in fields.children("tools"):
            self._add_tool(tool, namespace, about)
            about = ""  # said once, with the namespace's first tool

    def _add_tool(self, fields: Fields, namespace: str, about: str) -> None:
        match fields.text("type"):
            case "function":
                name = fields.text("name")
                tool = function_tool(fields, flat_name(name, namespace))
                self._keep(tool, Declared("function", name, namespace), about)
            case "custom":
                name = fields.text("name")
                self._keep(_custom_tool(fields, flat_name(name, namespace)), Declared("custom", name, namespace), about)
            case "local_shell" if not namespace:
                self._keep(LOCAL_SHELL_TOOL, Declared("local_shell", LOCAL_SHELL), about)
            case kind:
                label = fields.text_or("server_label")  # tells several MCP servers apart
                self._notes.add(".".join(filter(None, ("tools", namespace, kind, label))), f"nobody here runs {kind!r}")
                return
        note_rest(self._notes, fields, TOOL_READ, TOOL_FATES, IDLE)

    def _keep(self, tool: Tool, declared: Declared, about: str) -> None:
        if about:
            tool = Tool(tool.name, f"{about}\n\n{tool.description}".strip(), tool.parameters, tool.strict)
        if self._tools.get(tool.name, tool) != tool:
            self._notes.add(f"tools.{tool.name}", "declared more than once; the last declaration counts")
        self._tools[tool.name] = tool
        self._declared[tool.name] = declared

    def choice(self, fields: Fields) -> ToolChoice:
        """What `tool_choice` asks for. Raises CallError where it forces a tool that the model is not given."""
        if isinstance(fields.get("tool_choice"), str | None):
            return word_choice(fields, "tool_choice", self._tools)
        choice = fields.required("tool_choice")
        match choice.text("type"):
            case "function" | "custom" as kind:
                return ToolChoice("named", self._forced(choice, kind, choice.text("name")))
            case "local_shell":
                return ToolChoice("named", self._forced(choice, "local_shell", LOCAL_SHELL))
            case "allowed_tools":
                self._notes.add("tool_choice.tools", ALLOWED_TOOLS_WHY)
                return word_choice(choice, "mode", self._tools)
            case kind:
                raise choice.error("type", f"a tool of type {kind!r} cannot be forced: nobody here runs it")

    def _forced(self, choice: Fields, kind: str, name: str) -> str:
        namespace = choice.text_or("namespace")
        for flat, declared in self._declared.items():
            if (declared.kind, declared.name) == (kind, name) and namespace in ("", declared.namespace):
                return flat
        raise choice.error("name", f"no {kind} tool named {name!r} is declared")


def flat_name(name: str, namespace: str) -> str:
    """The function name that the model sees for a tool of a namespace."""
    return f"{namespace}__{name}" if namespace else name


def _custom_tool(fields: Fields, name: str) -> Tool:
    """A tool that takes raw text, as a function of one string. The grammar of the text goes into the description."""
    description = [fields.text_or("description"), "Give the raw text as the string `input`."]
    grammar = fields.child("format")
    if grammar and grammar.text_or("type") == "grammar":
        syntax = grammar.text_or("syntax", "lark")
        description.append(f"The text must match this {syntax} grammar:\n{grammar.text('definition')}")
    parameters: Json = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The tool's whole input, as raw text."}},
        "required": ["input"],
        "additionalProperties": False,
    }
    return Tool(name, "\n\n".join(filter(None, description)), parameters)


def history_call(item: Fields) -> ToolCall:
    """A replayed call as the model made it. Raises CallError for an item that is no call."""
    call_id = item.text("call_id")
    match item.text("type"):
        case "function_call":
            return ToolCall(call_id, flat_name(item.text("name"), item.text_or("namespace")), item.text("arguments"))
        case "custom_tool_call":
            name = flat_name(item.text("name"), item.text_or("namespace"))
            return ToolCall(call_id, name, arguments_text({"input": item.text("input")}))
        case "local_shell_call":
            action = item.required("action").value
            asked = {name: action[name] for name in LOCAL_SHELL_TOOL.parameters["properties"] if action.get(name)}
            return ToolCall(call_id, LOCAL_SHELL, arguments_text(asked))
        case kind:
            raise item.error("type", f"{kind!r} is no call")


def call_item(call: ToolCall, declared: Mapping[str, Declared], item_id: str, status: str) -> Json:
    """The model's call as the output item that the client executes: its type follows the declared tool's."""
    tool = declared.get(call.name, Declared("function", call.name))
    place = {"namespace": tool.namespace} if tool.namespace else {}
    match tool.kind:
        case "custom":
            item: Json = {"id": f"ctc_{item_id}", "type": "custom_tool_call", "status": status, "call_id": call.id}
            return {**item, "name": tool.name, **place, "input": raw_input(call.arguments)}
        case "local_shell":
            item = {"id": f"lsh_{item_id}", "type": "local_shell_call", "status": status, "call_id": call.id}
            return {**item, "action": _shell_action(call.arguments)}
        case "function":
            item = {"id": f"fc_{item_id}", "type": "function_call", "status": status, "call_id": call.id}
            return {**item, "name": tool.name, **place, "arguments": call.arguments}


def raw_input(arguments: str) -> str:
    """The text a model meant for a custom tool: its `input`, or the one string it gave under another name.

    Anything else goes to the client as the model wrote it; models that know such a tool often write the text bare.
    """
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    match value:
        case str(text) | {"input": str(text)}:
            return text
        case dict() if len(value) == 1 and isinstance(text := next(iter(value.values())), str):
            return text
        case _:
            return arguments


def _shell_action(arguments: str) -> Json:
    value = arguments_object(arguments) or {}
    command = value.get("command")
    if not (isinstance(command, list) and all(isinstance(word, str) for word in command)):
        # The client gets what the model wrote, and its own error about it.
        return {"type": "exec", "command": [arguments], "env": {}}
    action: Json = {"type": "exec", "command": command, "env": {}}
    if isinstance(directory := value.get("working_directory"), str):
        action["working_directory"] = directory
    if isinstance(timeout := value.get("timeout_ms"), int) and not isinstance(timeout, bool):
        action["timeout_ms"] = timeout
    return action
