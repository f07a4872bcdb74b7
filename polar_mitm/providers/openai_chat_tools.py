"""The tools of a Chat Completions request, and which of them the model is to call."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from polar_mitm.chat import Tool, ToolChoice
from polar_mitm.providers.common import Notes
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_chat_fates import FATES
from polar_mitm.providers.openai_common import ALLOWED_TOOLS_WHY, function_tool, note_fates, word_choice
from polar_mitm.providers.openai_freeform import freeform_tool

ONLY_CLIENT_TOOLS = "only function and custom tools can be given to the model"


@dataclass(slots=True, frozen=True)
class Declared:
    """How the client declared a tool that the model knows as a function."""

    kind: str
    """`function` or `custom`."""
    name: str
    grammar: str = ""
    """Of a custom tool; empty where it takes any text."""


class Toolbox:
    """The tools of a request, by the name that the model calls them, and the names of those it is not given."""

    def __init__(self, fields: Fields, notes: Notes) -> None:
        self.left_out: set[str] = set()
        self._notes = notes
        self._tools: dict[str, Tool] = {}
        self._declared: dict[str, Declared] = {}
        self._names: dict[tuple[str, str], str] = {}
        for tool in fields.children("tools"):
            self._add(tool, tool.text_or("type", "function"))

    @property
    def given(self) -> tuple[Tool, ...]:
        return tuple(self._tools.values())

    @property
    def declared(self) -> Mapping[str, Declared]:
        return self._declared

    def name_of(self, kind: str, name: str) -> str | None:
        """What the model calls this tool; None when it is not declared."""
        return self._names.get((kind, name))

    def _add(self, tool: Fields, kind: str) -> None:
        if kind not in ("function", "custom"):
            name = (tool.child(kind) or tool).text_or("name", kind)
            self.left_out.add(name)
            self._notes.add(f"tools.{name}", f"a tool of type {kind!r}: {ONLY_CLIENT_TOOLS}")
            return
        about = tool.required(kind)
        name = about.text("name")
        note_fates(self._notes, tool, FATES, within="tools.*")
        note_fates(self._notes, about, FATES, within=f"tools.*.{kind}")
        if kind == "function":
            self._offer(function_tool(about, name), Declared(kind, name))
            return
        form = about.child("format")
        grammar = form.required("grammar") if form and form.text_or("type") == "grammar" else None
        definition = grammar.text("definition") if grammar else ""
        self._offer(freeform_tool(about, name, grammar), Declared(kind, name, definition))

    def _offer(self, tool: Tool, declared: Declared) -> None:
        """Give the model the tool, under a name that no other has: a function and a custom tool may share one."""
        key = declared.kind, declared.name
        names = (f"{tool.name}_{number}" if number > 1 else tool.name for number in count(1))
        name = self._names.get(key) or next(name for name in names if name not in self._declared)
        tool = replace(tool, name=name)
        if self._tools.get(name, tool) != tool:
            self._notes.add(f"tools.{name}", "declared more than once; the last declaration counts")
        self._names[key], self._tools[name], self._declared[name] = name, tool, declared


def tool_choice(fields: Fields, tools: Toolbox, notes: Notes) -> ToolChoice:
    if isinstance(fields.get("tool_choice"), str | None):
        return word_choice(fields, "tool_choice", tools.given)
    choice = fields.required("tool_choice")
    match choice.text("type"):
        case "function" | "custom" as kind:
            name = choice.required(kind).text("name")
            if name in tools.left_out:
                raise choice.error(f"{kind}.name", f"{name!r} cannot be forced: {ONLY_CLIENT_TOOLS}")
            if (called := tools.name_of(kind, name)) is None:
                raise choice.error(f"{kind}.name", f"no {kind} tool named {name!r} is declared")
            return ToolChoice("named", called)
        case "allowed_tools":
            allowed = choice.required("allowed_tools")
            notes.add(allowed.at("tools"), ALLOWED_TOOLS_WHY)
            return word_choice(allowed, "mode", tools.given)
        case kind:
            raise choice.error("type", f"a tool of type {kind!r} cannot be forced: {ONLY_CLIENT_TOOLS}")
