"""The tools of an Anthropic Messages request, and which of them the model is to call."""

from polar_mitm.chat import Tool, ToolChoice
from polar_mitm.providers.anthropic_client_tools import CLIENT_TOOLS
from polar_mitm.providers.anthropic_fates import give_fates
from polar_mitm.providers.anthropic_messages import Found
from polar_mitm.providers.anthropic_toolsets import TOOLSETS, Member, members
from polar_mitm.providers.common import arguments_text
from polar_mitm.providers.fields import Fields


class Toolbox:
    """The tools of one request."""

    def __init__(self, fields: Fields, found: Found) -> None:
        """`found` knows which of the deferred tools the conversation has loaded."""
        self.given: list[Tool] = []
        self.missing: dict[str, str] = {}
        """By name: why the model is not given a tool."""
        self.members: dict[str, Member] = {}
        """By the name that the model sees: the tools that belong to a toolset."""
        self._found = found
        for spec in fields.children("tools"):
            self._add(spec)
        named = [tool.name for tool in self.given]
        if len({*named, *self.missing}) < len(named) + len(self.missing):
            raise fields.error("tools", "Tool names must be unique.")

    def _add(self, spec: Fields) -> None:
        kind = spec.text_or("type", "custom")
        if kind in TOOLSETS:
            give_fates(spec, self._found.notes, "tools.*")
            for tool, member, deferred in members(spec):
                self.members[tool.name] = member
                self._offer(tool, deferred, member.name, member.toolset)
        elif kind == "custom" or kind in CLIENT_TOOLS:
            self._offer(_tool(spec, kind), bool(spec.flag("defer_loading")), spec.text("name"))
            give_fates(spec, self._found.notes, "tools.*")
        else:
            name = spec.text_or("name", kind)
            self._leave_out(name, f"{name}: a {kind} tool, and nothing here runs it")

    def _offer(self, tool: Tool, deferred: bool, *names: str) -> None:
        """Give the model the tool, unless it is to wait until a search finds it by one of these names."""
        if deferred and self._found.loaded_tools.isdisjoint(names):
            self._leave_out(tool.name, f"{tool.name}: deferred until a tool search finds it")
        else:
            self.given.append(tool)

    def _leave_out(self, name: str, why: str) -> None:
        self.missing[name] = why
        self._found.notes.add(f"tools.{name}", why)


def _tool(spec: Fields, kind: str) -> Tool:
    name = spec.text("name")
    if kind == "custom":
        description, parameters = spec.text_or("description"), spec.required("input_schema").value
    else:
        description, parameters = CLIENT_TOOLS[kind](spec)
    if examples := [arguments_text(example.value) for example in spec.children("input_examples")]:
        description = "\n".join(filter(None, (description, "Examples of input:", *examples)))
    return Tool(name, description, parameters, spec.flag("strict"))


def tool_choice(fields: Fields, tools: Toolbox) -> ToolChoice:
    choice = fields.child("tool_choice")
    match choice and choice.text("type"):
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none" if tools.given else "auto")
        case "any" if tools.given:
            return ToolChoice("required")
        case "any":
            raise fields.error("tool_choice", "; ".join(["no tool to choose from", *tools.missing.values()]))
        case "tool" if choice:
            name = choice.text("name")
            if not any(tool.name == name for tool in tools.given):
                raise choice.error("name", tools.missing.get(name, f"tool {name!r} is not in `tools`"))
            return ToolChoice("named", name)
        case kind:
            raise fields.error("tool_choice.type", f"unknown choice {kind!r}; it is one of auto, any, tool, none")


def parallel_tool_calls(fields: Fields) -> bool | None:
    choice = fields.child("tool_choice")
    disabled = choice.flag("disable_parallel_tool_use") if choice else None
    return None if disabled is None else not disabled
