"""Tools of the Responses API: functions, custom tools, namespaces and typed tools as functions a Chat model can call.

The model sees plain functions. A `Toolbox` remembers how each was declared, so that a call goes back in the form its
client executes, and replayed calls are translated the same way. Hosted tools, which only OpenAI runs, are left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from polar_mitm.chat import Json, Tool, ToolCall, ToolChoice, tool_wire
from polar_mitm.providers.common import Notes, sent_arguments
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_common import (
    ALLOWED_TOOLS_WHY,
    argument_repair,
    function_tool,
    note_fates,
    word_choice,
)
from polar_mitm.providers.openai_freeform import freeform_arguments, freeform_tool, raw_text
from polar_mitm.providers.openai_responses_fates import FATES, IDLE
from polar_mitm.providers.openai_responses_typed import CALLS, TYPED, offered, replayed, run_here, written


@dataclass(slots=True, frozen=True)
class Declared:
    """How the client declared a tool that the model knows as a function."""

    kind: str
    """`function`, `custom`, or a type of TYPED."""
    name: str
    namespace: str = ""
    grammar: str = ""
    """Of a custom tool; empty where it takes any text."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells one tool from another."""
        return self.kind, self.name, self.namespace


class Toolbox:
    """The tools of one request, by the name that the model calls them."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._tools: dict[str, Tool] = {}
        self._declared: dict[str, Declared] = {}
        self._names: dict[tuple[str, str, str], str] = {}

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    @property
    def declared(self) -> Mapping[str, Declared]:
        return self._declared

    def add(self, tools: Iterable[Fields]) -> None:
        for tool, declared in map(self._named, self._read(tools)):
            if self._tools.get(tool.name, tool) != tool:
                self._notes.add(f"tools.{tool.name}", "declared more than once; the last declaration counts")
            self._tools[tool.name] = tool
            self._declared[tool.name] = declared

    def found(self, tools: Iterable[Fields]) -> str:
        """The text of a search's result: the tools it found, which can be called from then on.

        They are told in the conversation, where the search was: the tool list stands before it, and a longer one would
        change the prompt's prefix.
        """
        lines = []
        for tool, declared in map(self._named, self._read(tools)):
            self._declared.setdefault(tool.name, declared)
            lines.append(written(tool_wire(tool)))
        return "\n".join(lines) or "No tools were found."

    def _named(self, read: tuple[Tool, Declared]) -> tuple[Tool, Declared]:
        """The tool under a name that no other has: tools that are told apart by type or namespace may share one."""
        tool, declared = read
        names = (f"{tool.name}_{number}" if number > 1 else tool.name for number in count(1))
        known = self._names.get(declared.key)
        name = known or next(name for name in names if name not in self._declared)
        self._names[declared.key] = name
        return replace(tool, name=name), declared

    def history_call(self, item: Fields) -> ToolCall:
        """A replayed call as the model made it. Raises CallError for an item that is no call."""
        call_id, kind = item.text("call_id"), item.text("type").removesuffix("_call").removesuffix("_tool")
        match item.text("type"):
            case "function_call":
                arguments = item.text("arguments")
            case "custom_tool_call":
                arguments = freeform_arguments(item.text("input"))
            case typed if typed in CALLS:
                name, arguments = replayed(item)
                return ToolCall(call_id, self._names.get((kind, name, ""), name), arguments)
            case other:
                raise item.error("type", f"{other!r} is no call")
        name, namespace = item.text("name"), item.text_or("namespace")
        return ToolCall(call_id, self._names.get((kind, name, namespace), flat_name(name, namespace)), arguments)

    def _read(self, tools: Iterable[Fields]) -> Iterable[tuple[Tool, Declared]]:
        for fields in tools:
            match fields.text("type"):
                case "namespace":
                    yield from self._read_namespace(fields)
                case kind if run_here(fields):
                    tool = offered(fields)
                    yield tool, Declared(kind, tool.name)
                case "function" | "custom":
                    yield _declaration(fields, "")
                case kind:
                    label = fields.text_or("server_label")  # tells several MCP servers apart
                    self._notes.add(".".join(filter(None, ("tools", kind, label))), f"nobody here runs {kind!r}")
                    continue
            note_fates(self._notes, fields, FATES, IDLE, within="tools.*")

    def _read_namespace(self, fields: Fields) -> Iterable[tuple[Tool, Declared]]:
        namespace, about = fields.text("name"), fields.text_or("description")
        for inner in fields.children("tools"):
            note_fates(self._notes, inner, FATES, IDLE, within="tools.*")
            kind = inner.text("type")
            if kind not in ("function", "custom"):
                self._notes.add(f"tools.{namespace}.{kind}", f"nobody here runs {kind!r}")
                continue
            tool, declared = _declaration(inner, namespace)
            if about:  # said once, with the namespace's first tool
                tool = replace(tool, description="\n\n".join(filter(None, (about, tool.description))))
                about = ""
            yield tool, declared

    def choice(self, fields: Fields) -> ToolChoice:
        """What `tool_choice` asks for. Raises CallError where it forces a tool that the model is not given."""
        if isinstance(fields.get("tool_choice"), str | None):
            return word_choice(fields, "tool_choice", self._tools)
        choice = fields.required("tool_choice")
        match choice.text("type"):
            case "function" | "custom" as kind:
                return ToolChoice("named", self._forced(choice, kind, choice.text("name")))
            case kind if any(declared.kind == kind for declared in self._declared.values()):
                return ToolChoice("named", self._forced(choice, kind, TYPED[kind].tool.name))
            case "allowed_tools":
                self._notes.add("tool_choice.tools", ALLOWED_TOOLS_WHY)
                return word_choice(choice, "mode", self._tools)
            case kind if kind in TYPED:
                raise choice.error("type", f"no tool of type {kind!r} is declared for the client to run")
            case kind:
                raise choice.error("type", f"a tool of type {kind!r} cannot be forced: nobody here runs it")

    def _forced(self, choice: Fields, kind: str, name: str) -> str:
        namespace = choice.text_or("namespace")
        for flat, declared in self._declared.items():
            if (declared.kind, declared.name) == (kind, name) and namespace in ("", declared.namespace):
                if flat not in self._tools:
                    raise choice.error("name", f"{name!r} was found by a search; only a tool of `tools` can be forced")
                return flat
        raise choice.error("name", f"no {kind} tool named {name!r} is declared")


def flat_name(name: str, namespace: str) -> str:
    """The function name that the model sees for a tool of a namespace."""
    return f"{namespace}__{name}" if namespace else name


def _declaration(fields: Fields, namespace: str) -> tuple[Tool, Declared]:
    """A function or custom tool, as the model sees it and as it was declared."""
    name = fields.text("name")
    if fields.text("type") == "function":
        return function_tool(fields, flat_name(name, namespace)), Declared("function", name, namespace)
    form = fields.child("format")
    grammar = form if form and form.text_or("type") == "grammar" else None
    definition = grammar.text("definition") if grammar else ""
    tool = freeform_tool(fields, flat_name(name, namespace), grammar)
    return tool, Declared("custom", name, namespace, definition)


def call_item(call: ToolCall, declared: Mapping[str, Declared], item_id: str, whole: bool) -> Json:
    """The model's call as the output item that the client executes: its type follows the declared tool's."""
    tool = declared.get(call.name, Declared("function", call.name))
    shown, _ = _shown(call, tool)
    typed = TYPED.get(tool.kind)
    if typed:
        status = "completed" if whole else typed.cut_off
        return {
            "id": f"{typed.item_id}_{item_id}",
            "type": typed.item,
            "status": status,
            "call_id": call.id,
            **shown,
        }
    head, kind = ("ctc", "custom_tool_call") if tool.kind == "custom" else ("fc", "function_call")
    place = {"namespace": tool.namespace} if tool.namespace else {}
    status = "completed" if whole else "incomplete"
    item: Json = {"id": f"{head}_{item_id}", "type": kind, "status": status, "call_id": call.id}
    return {**item, "name": tool.name, **place, **shown}


def call_repair(call: ToolCall, declared: Mapping[str, Declared]) -> str:
    """What had to be mended in a call to give it its item's form (empty: nothing)."""
    return _shown(call, declared.get(call.name, Declared("function", call.name)))[1]


def _shown(call: ToolCall, tool: Declared) -> tuple[Json, str]:
    """What the client executes, in the item's own fields, and what was mended in it."""
    if tool.kind in TYPED:
        return TYPED[tool.kind].shape(call.arguments)
    if tool.kind == "custom":
        text, mended = raw_text(call.arguments, tool.grammar)
        return {"input": text}, mended
    return {"arguments": sent_arguments(call.arguments)}, argument_repair(call)
