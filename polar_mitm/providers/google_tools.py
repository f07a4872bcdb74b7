"""The tools of a Google generateContent request, and which of them the model is to call."""

from collections import Counter

from polar_mitm.chat import Tool, ToolChoice
from polar_mitm.providers.common import Notes
from polar_mitm.providers.google_fates import give_fates
from polar_mitm.providers.google_fields import ProtoFields
from polar_mitm.providers.google_schema import json_schema


def tools_of(fields: ProtoFields, notes: Notes) -> tuple[tuple[Tool, ...], ToolChoice]:
    tools: list[Tool] = []
    for group in fields.repeated("tools"):
        give_fates(group, notes, "tools.*")
        tools.extend(_tool(spec, notes) for spec in group.repeated("functionDeclarations"))
    if twice := [name for name, times in Counter(tool.name for tool in tools).items() if times > 1]:
        raise fields.error("tools", f"Duplicate function declaration found: {twice[0]}")
    config = fields.child("toolConfig")
    if config:
        give_fates(config, notes, "toolConfig")
    calling = config and config.child("functionCallingConfig")
    if not calling:
        return tuple(tools), ToolChoice()
    give_fates(calling, notes, "toolConfig.functionCallingConfig")
    return _choice(calling, tuple(tools), notes)


def _tool(spec: ProtoFields, notes: Notes) -> Tool:
    give_fates(spec, notes, "tools.*.functionDeclarations.*")
    name, description = spec.text("name"), spec.text_or("description")
    if (parameters := spec.object("parametersJsonSchema")) is not None:
        return Tool(name, description, parameters)
    if (schema := spec.object("parameters")) is not None:
        return Tool(name, description, json_schema(schema))
    return Tool(name, description)


def _choice(calling: ProtoFields, tools: tuple[Tool, ...], notes: Notes) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that the model may call under a functionCallingConfig, and whether it must."""
    mode, allowed = calling.text_or("mode", "AUTO").upper(), calling.texts("allowedFunctionNames")
    if unknown := set(allowed) - {tool.name for tool in tools}:
        raise calling.error("allowedFunctionNames", f"not declared: {', '.join(sorted(unknown))}")
    if mode in ("ANY", "VALIDATED") and allowed:
        for tool in tools:
            if tool.name not in allowed:
                notes.add(f"tools.{tool.name}", "not among the allowedFunctionNames")
        tools = tuple(tool for tool in tools if tool.name in allowed)
    match mode:
        case "ANY" if len(allowed) == 1:
            return tools, ToolChoice("named", allowed[0])
        case "ANY" if tools:
            return tools, ToolChoice("required")
        case "ANY":
            raise calling.error("mode", "a call is required, but no function is declared")
        case "NONE":
            return tools, ToolChoice("none" if tools else "auto")
        case "AUTO" | "VALIDATED" | "MODE_UNSPECIFIED":
            return tools, ToolChoice()
        case _:
            raise calling.error("mode", f"unknown mode {mode!r}; it is one of AUTO, ANY, NONE, VALIDATED")
