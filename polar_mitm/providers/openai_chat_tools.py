"""The tools of a Chat Completions request, and which of them the model is to call."""

from polar_mitm.chat import Tool, ToolChoice
from polar_mitm.providers.common import Notes
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_chat_fates import FATES
from polar_mitm.providers.openai_common import ALLOWED_TOOLS_WHY, function_tool, note_fates, word_choice
from polar_mitm.providers.openai_freeform import freeform_tool

ONLY_CLIENT_TOOLS = "only function and custom tools can be given to the model"


class Toolbox:
    """The tools of a request: those the model is given, the grammars of the custom ones, and the names of the rest."""

    def __init__(self, fields: Fields, notes: Notes) -> None:
        self.given: list[Tool] = []
        self.freeform: dict[str, str] = {}
        self.left_out: set[str] = set()
        self._notes = notes
        for tool in fields.children("tools"):
            self._add(tool, tool.text_or("type", "function"))

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
            self.given.append(function_tool(about, name))
            return
        form = about.child("format")
        grammar = form.required("grammar") if form and form.text_or("type") == "grammar" else None
        self.given.append(freeform_tool(about, name, grammar))
        self.freeform[name] = grammar.text("definition") if grammar else ""


def tool_choice(fields: Fields, tools: Toolbox, notes: Notes) -> ToolChoice:
    if isinstance(fields.get("tool_choice"), str | None):
        return word_choice(fields, "tool_choice", tools.given)
    choice = fields.required("tool_choice")
    match choice.text("type"):
        case "function" | "custom" as kind:
            name = choice.required(kind).text("name")
            if name in tools.left_out:
                raise choice.error(f"{kind}.name", f"{name!r} cannot be forced: {ONLY_CLIENT_TOOLS}")
            if all(tool.name != name for tool in tools.given):
                raise choice.error(f"{kind}.name", f"no tool named {name!r} is declared")
            return ToolChoice("named", name)
        case "allowed_tools":
            allowed = choice.required("allowed_tools")
            notes.add(allowed.at("tools"), ALLOWED_TOOLS_WHY)
            return word_choice(allowed, "mode", tools.given)
        case kind:
            raise choice.error("type", f"a tool of type {kind!r} cannot be forced: {ONLY_CLIENT_TOOLS}")
