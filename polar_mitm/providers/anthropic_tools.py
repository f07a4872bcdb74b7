"""The tools of an Anthropic Messages request, and which of them the model is to call."""

from collections.abc import Mapping

from polar_mitm.chat import Tool, ToolChoice
from polar_mitm.providers.anthropic_fates import give_fates
from polar_mitm.providers.anthropic_messages import Found
from polar_mitm.providers.common import Notes, arguments_text
from polar_mitm.providers.fields import Fields


def tools_of(fields: Fields, found: Found) -> tuple[tuple[Tool, ...], Mapping[str, str]]:
    """The tools the model is given, and by name the reason for each one it is not given."""
    tools: list[Tool] = []
    missing: dict[str, str] = {}
    for spec in fields.children("tools"):
        kind = spec.text_or("type", "custom")
        name = spec.text("name") if kind == "custom" else spec.text_or("name", kind)
        if kind != "custom":
            missing[name] = f"{name}: a {kind} tool has no schema of its own and nothing here runs it"
        elif spec.flag("defer_loading") and name not in found.loaded_tools:
            missing[name] = f"{name}: deferred until a tool search finds it"
        else:
            tools.append(_tool(spec, found.notes))
        if name in missing:
            found.notes.add(f"tools.{name}", missing[name])
    return tuple(tools), missing


def _tool(spec: Fields, notes: Notes) -> Tool:
    give_fates(spec, notes, "tools.*")
    description = spec.text_or("description")
    if examples := [arguments_text(example.value) for example in spec.children("input_examples")]:
        description = "\n".join(filter(None, (description, "Examples of input:", *examples)))
    return Tool(spec.text("name"), description, spec.required("input_schema").value, spec.flag("strict"))


def tool_choice(fields: Fields, tools: tuple[Tool, ...], missing: Mapping[str, str]) -> ToolChoice:
    choice = fields.child("tool_choice")
    match choice and choice.text("type"):
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none" if tools else "auto")
        case "any" if tools:
            return ToolChoice("required")
        case "any":
            raise fields.error("tool_choice", "; ".join(["no tool to choose from", *missing.values()]))
        case "tool" if choice:
            name = choice.text("name")
            if not any(tool.name == name for tool in tools):
                raise choice.error("name", missing.get(name, f"tool {name!r} is not in `tools`"))
            return ToolChoice("named", name)
        case kind:
            raise fields.error("tool_choice.type", f"unknown choice {kind!r}; it is one of auto, any, tool, none")


def parallel_tool_calls(fields: Fields) -> bool | None:
    choice = fields.child("tool_choice")
    disabled = choice.flag("disable_parallel_tool_use") if choice else None
    return None if disabled is None else not disabled
