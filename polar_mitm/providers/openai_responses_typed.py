"""Tools of the Responses API that have a type instead of a schema and that the client itself runs.

Each is a function to the model; its calls go back as items of the tool's own type, and replayed items become calls
again. Tools that only OpenAI runs are not here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from polar_mitm.chat import Json, Tool
from polar_mitm.json_text import dumps
from polar_mitm.providers.common import arguments_object, arguments_text
from polar_mitm.providers.fields import Fields

# Told to the record where a call could not be given its item's form: the client gets what the model wrote.
MISSHAPEN = "the arguments do not fit the tool; the client is given what the model wrote"


@dataclass(slots=True, frozen=True)
class Typed:
    """A client tool of its own type."""

    tool: Tool
    """The function that the model is given."""
    item: str
    """The type of its call items; results are `{item}_output`."""
    item_id: str
    """What the ids of its call items begin with."""
    shape: Callable[[str], tuple[Json, str]]
    """The item's own fields for a call's argument text, and what was mended in it (empty: nothing)."""
    arguments: Callable[[Fields], Json]
    """The arguments of a replayed item."""
    cut_off: str = "incomplete"
    """The status of a call that the token limit cut off."""


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


STRING: Json = {"type": "string"}
STRINGS: Json = {"type": "array", "items": STRING}
INTEGER: Json = {"type": "integer"}

LOCAL_SHELL_TOOL = Tool(
    "local_shell",
    "Runs a command on the user's machine.",
    _object(
        {
            "command": {**STRINGS, "description": "The program and its arguments."},
            "working_directory": STRING,
            "timeout_ms": INTEGER,
        },
        "command",
    ),
)
SHELL_TOOL = Tool(
    "shell",
    "Runs shell commands on the user's machine, one after the other.",
    _object({"commands": STRINGS, "timeout_ms": INTEGER, "max_output_length": INTEGER}, "commands"),
)
APPLY_PATCH_TOOL = Tool(
    "apply_patch",
    "Creates, updates or deletes one file. The diff is in V4A form: lines that begin with a space, + or -, under @@.",
    _object(
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": STRING,
            "diff": {**STRING, "description": "Not needed to delete a file."},
        },
        "type",
        "path",
    ),
)
TOOL_SEARCH_TOOL = Tool(
    "tool_search",
    "Searches for further tools. Those it finds can be called from then on.",
    _object({"query": STRING, "limit": INTEGER}, "query"),
)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _kept(value: Json, **kinds: type) -> Json:
    """The fields of a value that have the type named; a boolean is no number."""
    return {
        name: value[name]
        for name, kind in kinds.items()
        if isinstance(value.get(name), kind) and not isinstance(value[name], bool)
    }


def _local_shell(arguments: str) -> tuple[Json, str]:
    value = arguments_object(arguments) or {}
    if not _is_strings(value.get("command")):
        return {"action": {"type": "exec", "command": [arguments], "env": {}}}, MISSHAPEN
    options = _kept(value, working_directory=str, timeout_ms=int)
    return {"action": {"type": "exec", "command": value["command"], "env": {}, **options}}, ""


def _shell(arguments: str) -> tuple[Json, str]:
    value = arguments_object(arguments) or {}
    fits = _is_strings(value.get("commands"))
    options = _kept(value, timeout_ms=int, max_output_length=int) if fits else {}
    action = {"commands": value["commands"] if fits else [arguments], **options}
    return {"action": action, "environment": {"type": "local"}}, "" if fits else MISSHAPEN


def _apply_patch(arguments: str) -> tuple[Json, str]:
    value = arguments_object(arguments) or {}
    match value:
        case {"type": "create_file" | "update_file" as kind, "path": str(path), "diff": str(diff)}:
            return {"operation": {"type": kind, "path": path, "diff": diff}}, ""
        case {"type": "delete_file", "path": str(path)}:
            return {"operation": {"type": "delete_file", "path": path}}, ""
        case _:
            return {"operation": {"type": "update_file", "path": "", "diff": arguments}}, MISSHAPEN


def _tool_search(arguments: str) -> tuple[Json, str]:
    value = arguments_object(arguments)
    query = {"query": arguments} if value is None else value
    return {"execution": "client", "arguments": query}, MISSHAPEN if value is None else ""


def _action(tool: Tool) -> Callable[[Fields], Json]:
    """Reads the action of a replayed shell item: the fields that the model's function has."""

    def read(item: Fields) -> Json:
        action = item.required("action").value
        return {name: action[name] for name in tool.parameters["properties"] if action.get(name)}

    return read


def _searched(item: Fields) -> Json:
    value = item.get("arguments")
    if isinstance(value, str):
        return arguments_object(value) or {"query": value}
    return item.object("arguments") or {}


TYPED: Mapping[str, Typed] = {
    "local_shell": Typed(LOCAL_SHELL_TOOL, "local_shell_call", "lsh", _local_shell, _action(LOCAL_SHELL_TOOL)),
    "shell": Typed(SHELL_TOOL, "shell_call", "sh", _shell, _action(SHELL_TOOL)),
    "apply_patch": Typed(
        APPLY_PATCH_TOOL,
        "apply_patch_call",
        "apc",
        _apply_patch,
        lambda item: item.required("operation").value,
        cut_off="in_progress",  # its items know no `incomplete`
    ),
    "tool_search": Typed(TOOL_SEARCH_TOOL, "tool_search_call", "tsc", _tool_search, _searched),
}
CALLS: Mapping[str, Typed] = {typed.item: typed for typed in TYPED.values()}


def run_here(tool: Fields) -> bool:
    """Whether the client runs this tool itself. Raises CallError where a field that decides it has a wrong type."""
    match tool.text("type"):
        case "shell":
            environment = tool.child("environment")
            return environment is None or environment.text_or("type") == "local"
        case "tool_search":
            return tool.text_or("execution", "server") == "client"
        case kind:
            return kind in TYPED


def offered(tool: Fields) -> Tool:
    """The function that the model is given, with what the client says of its skills, or of how it searches."""
    function = TYPED[tool.text("type")].tool
    match function.name:
        case "shell":
            environment = tool.child("environment") or Fields({})
            skills = [
                f"- {skill.text('name')} ({skill.text('path')}): {skill.text_or('description')}"
                for skill in environment.children("skills")
            ]
            return replace(
                function, description="\n".join([function.description, *(["Skills:"] if skills else []), *skills])
            )
        case "tool_search":
            description = tool.text_or("description") or function.description
            return Tool(function.name, description, tool.object("parameters") or function.parameters)
        case _:
            return function


def shell_result(item: Fields) -> str:
    """The text of a shell item's results, one command after the other."""
    blocks = []
    for part in item.children("output"):
        outcome = part.child("outcome") or Fields({})
        ended = "timeout" if outcome.text_or("type") == "timeout" else f"exit code {outcome.integer('exit_code')}"
        lines = [part.text_or("stdout"), part.text_or("stderr"), f"[{ended}]"]
        blocks.append("\n".join(line.removesuffix("\n") for line in lines if line))
    return "\n".join(blocks)


def patch_result(item: Fields) -> str:
    return "\n".join(filter(None, (f"[{item.text('status')}]", item.text_or("output"))))


def replayed(item: Fields) -> tuple[str, str]:
    """The function's name and argument text of a replayed item of CALLS."""
    typed = CALLS[item.text("type")]
    return typed.tool.name, arguments_text(typed.arguments(item))


def written(value: Json) -> str:
    """A JSON object on one line, for the model to read."""
    return dumps(value).decode()
