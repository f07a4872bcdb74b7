"""Tools that take raw text, as functions of one string, and the text out of what a model wrote for one.

Shared by the two OpenAI APIs. Models often wrap such text once more: in JSON, in code fences, in the heredoc of a shell
command. It is unwrapped for the client only; the call record keeps what was sampled and says what was mended.
"""

from collections.abc import Iterator

from polar_mitm.chat import Json, Tool
from polar_mitm.json_text import loads
from polar_mitm.providers.common import arguments_text
from polar_mitm.providers.fields import MAX_DEPTH, Fields, deeper_than

PARAMETERS: Json = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's whole input, as raw text."}},
    "required": ["input"],
    "additionalProperties": False,
}

FENCE = "```"
# The first and the last line of a patch as Codex's apply_patch takes it.
PATCH_BEGIN, PATCH_END = "*** Begin Patch", "*** End Patch"


def freeform_tool(fields: Fields, name: str, grammar: Fields | None) -> Tool:
    """The tool under the name that the model sees. The grammar of its text goes into the description."""
    description = [fields.text_or("description"), "Give the raw text as the string `input`."]
    if grammar:
        syntax = grammar.text_or("syntax", "lark")
        description.append(f"The text must match this {syntax} grammar:\n{grammar.text('definition')}")
    return Tool(name, "\n\n".join(filter(None, description)), PARAMETERS)


def freeform_arguments(text: str) -> str:
    """The argument text of a replayed call that had this raw text."""
    return arguments_text({"input": text})


def raw_text(arguments: str, grammar: str = "") -> tuple[str, str]:
    """The text a model meant for such a tool, and what had to be mended to find it (empty: nothing).

    Text without a grammar may be anything, so only the arguments' own JSON is undone there.
    """
    try:
        value = loads(arguments)
    except ValueError:
        text, mended = arguments, "the arguments are no JSON and were taken as the text"
    else:
        text, mended = _text_of(value, arguments)
    if not grammar:
        return text, mended
    inner = _patch(_value_or_text(arguments)) if PATCH_BEGIN in grammar else _unfenced(text, grammar)
    if inner is None or inner == text:
        return text, mended
    return inner, "the text was taken out of what was wrapped around it"


def _text_of(value: object, arguments: str) -> tuple[str, str]:
    match value:
        case {"input": str(text)} if isinstance(value, dict):
            return text, "" if len(value) == 1 else "fields beside `input` were dropped"
        case str(text):
            return text, "the text was a bare string"
        case dict() if len(value) == 1 and isinstance(text := next(iter(value.values())), str):
            return text, "the text stood under another name than `input`"
        case _:
            return arguments, "the arguments hold no single text and were taken as they are"


def _value_or_text(text: str) -> object:
    """The JSON value that a text stands for, else the text itself."""
    try:
        value = loads(text)
    except ValueError:
        return text
    return text if deeper_than(value, MAX_DEPTH) else value


def _patch(value: object) -> str | None:
    """The patch in the first of a value's strings that holds one, from its first line to its last."""
    for text in _strings(value):
        lines = text.split("\n")
        begins = [number for number, line in enumerate(lines) if line.strip() == PATCH_BEGIN]
        ends = [number for number, line in enumerate(lines) if line.strip() == PATCH_END]
        if begins and ends and begins[0] < ends[-1]:
            around = [*lines[: begins[0]], *lines[ends[-1] + 1 :]]
            return "\n".join(lines[begins[0] : ends[-1] + 1]) if any(line.strip() for line in around) else text
    return None


def _strings(value: object, openings: int = 2) -> Iterator[str]:
    """Every string in a JSON value; one that is itself JSON is opened, at most so many times."""
    match value:
        case str():
            inner = _value_or_text(value) if openings and value.lstrip()[:1] in ("{", "[", '"') else value
            if inner == value:
                yield value
            else:
                yield from _strings(inner, openings - 1)
        case dict():
            for part in value.values():
                yield from _strings(part, openings)
        case list():
            for part in value:
                yield from _strings(part, openings)


def _unfenced(text: str, grammar: str) -> str | None:
    """What a text holds that is one fenced block; None when it is none, or when the grammar knows fences itself."""
    lines = text.strip().split("\n")
    if FENCE in grammar or len(lines) < 2 or not lines[0].startswith(FENCE) or lines[-1].strip() != FENCE:
        return None
    return "\n".join(lines[1:-1])
