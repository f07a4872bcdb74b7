"""What the two OpenAI APIs share: the error shape, the rule for system texts, what is left unread, small readings.

No provider by itself: `openai_chat` and `openai_responses` are, and each owns the form of its own requests and replies.
"""

from collections.abc import Collection, Mapping
from typing import Any

from polar_mitm.chat import (
    Assistant,
    CallError,
    Image,
    Json,
    Message,
    System,
    Text,
    Tool,
    ToolChoice,
    User,
)
from polar_mitm.providers.common import Notes, folded_system
from polar_mitm.providers.fields import Fields

type Fates = Mapping[str, str]
"""Field name -> why the model was not given it."""

UNKNOWN_FIELD = "unknown field"


def names(words: str) -> frozenset[str]:
    """A set of field names, from words with spaces between."""
    return frozenset(words.split())


def note_rest(
    notes: Notes,
    fields: Fields,
    known: Collection[str],
    fates: Fates,
    idle: Mapping[str, tuple[Any, ...]] | None = None,
) -> None:
    """Note every field outside `known`. `idle` holds values that ask for nothing beyond what happens anyway."""
    for name in fields.others(known):
        if fields.get(name) not in (idle or {}).get(name, ()):
            notes.add(fields.at(name), fates.get(name, UNKNOWN_FIELD))


class Transcript:
    """The message list in the making, under one rule: what a client appends never changes what came before.

    System texts that lead become the one first System message. A later one stays where it was said, as a user message
    of its own: many chat templates take a system message only at the beginning.
    """

    def __init__(self) -> None:
        self._leading: list[str] = []
        self._messages: list[Message] = []

    def system(self, text: str) -> None:
        if self._messages:
            self._messages.append(User((folded_system(text),)))
        else:
            self._leading.append(text)

    def add(self, message: Message) -> None:
        self._messages.append(message)

    def continue_assistant(self, more: Assistant) -> None:
        """Add to the assistant message that ends the transcript, or begin one."""
        match self._messages:
            case [*_, Assistant() as last]:
                self._messages[-1] = Assistant(
                    text="\n".join(filter(None, (last.text, more.text))),
                    reasoning="\n".join(filter(None, (last.reasoning, more.reasoning))),
                    tool_calls=last.tool_calls + more.tool_calls,
                )
            case _:
                self._messages.append(more)

    def messages(self) -> tuple[Message, ...]:
        if not self._leading:
            return tuple(self._messages)
        return (System("\n\n".join(filter(None, self._leading))), *self._messages)


def image(fields: Fields, name: str, url: str) -> Image:
    """An image the engine may be given. Raises CallError for an address: nobody here fetches from the network."""
    if not url.startswith("data:"):
        raise fields.error(name, "only data: URLs are served; nothing is fetched from the network")
    return Image(url)


def function_tool(fields: Fields, name: str) -> Tool:
    """A declared function under the name the model sees. An empty schema stays empty."""
    parameters = fields.object("parameters")
    description, strict = fields.text_or("description"), fields.flag("strict")
    if parameters is None:
        return Tool(name, description, strict=strict)
    return Tool(name, description, parameters, strict)


def json_schema(format_: Fields | None, nested: str = "") -> Json | None:
    """The schema that a `response_format` or `text.format` asks for: None for text, `{}` for any JSON object.

    `nested` names the field that holds the schema's particulars, where they are not the format's own.
    """
    if format_ is None:
        return None
    match format_.text("type"):
        case "text":
            return None
        case "json_object":
            return {}
        case "json_schema":
            return (format_.required(nested) if nested else format_).object("schema") or {}
        case other:
            raise format_.error("type", f"unknown format {other!r}; text, json_object and json_schema are served")


def word_choice(fields: Fields, name: str, tools: Collection[object]) -> ToolChoice:
    """A tool choice said in one word, `auto` when absent. `tools` are those the model is given."""
    match fields.text_or(name, "auto"):
        case "required" if not tools:
            raise fields.error(name, "a tool is required, but the model is given none")
        case "none" | "auto" | "required" as mode:
            return ToolChoice(mode) if tools else ToolChoice()
        case mode:
            raise fields.error(name, f"unknown choice {mode!r}; it is one of none, auto, required")


ALLOWED_TOOLS_WHY = "the model is given every declared tool: a changing list would change the prompt's prefix"


def api_error(error: CallError) -> tuple[int, Json]:
    """HTTP status and body of a failed call, as api.openai.com shapes them."""
    status, kind, code = _ERRORS[error.kind]
    if error.kind == "not_found" and error.param == "model":
        code = "model_not_found"
    if error.param == "previous_response_id":
        code = "previous_response_not_found"
    return status, {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}


_ERRORS: dict[str, tuple[int, str, str | None]] = {
    "invalid_request": (400, "invalid_request_error", None),
    "unauthorized": (401, "invalid_request_error", "invalid_api_key"),
    "not_found": (404, "invalid_request_error", None),
    "too_large": (413, "invalid_request_error", None),
    "unsupported_encoding": (415, "invalid_request_error", None),
    "context_overflow": (400, "invalid_request_error", "context_length_exceeded"),
    "overloaded": (503, "server_error", None),
    "engine": (502, "server_error", None),
    "timeout": (504, "server_error", None),
    "internal": (500, "server_error", None),
}


def text_part(fields: Fields, name: str = "text") -> Text:
    return Text(fields.text(name))
