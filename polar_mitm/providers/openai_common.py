"""What the two OpenAI APIs share: field fates, the error shape, the model list, what stands in for a file.

No provider by itself: `openai_chat` and `openai_responses` are, and each owns the form of its own requests and replies.
"""

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from polar_mitm.chat import CallError, Image, Json, Text, Thinking, Tool, ToolCall, ToolChoice
from polar_mitm.providers.base import Fate, ModelCard, Request, Route
from polar_mitm.providers.common import Notes, sent_arguments
from polar_mitm.providers.fields import Fields

type Fates = Mapping[str, Fate]

CARRIED = Fate("carried")

UNKNOWN_FIELD = "unknown field"

# Where Google's API lives; it names its model list like OpenAI's.
GOOGLE_HOST = "generativelanguage.googleapis.com"


def emulated(why: str) -> Fate:
    return Fate("emulated", why)


def ignored(why: str) -> Fate:
    return Fate("ignored", why)


def refused(why: str) -> Fate:
    return Fate("refused", why)


def carried(words: str) -> dict[str, Fate]:
    """The fate of fields that are carried, from their names with spaces between."""
    return dict.fromkeys(words.split(), CARRIED)


def under(prefix: str, fates: Fates) -> dict[str, Fate]:
    """Fates of the fields inside another one; `*` in the prefix stands for a position in a list."""
    return {f"{prefix}.{name}": fate for name, fate in fates.items()}


def note_fates(
    notes: Notes,
    fields: Fields,
    fates: Fates,
    idle: Mapping[str, tuple[Any, ...]] | None = None,
    within: str = "",
) -> None:
    """Note every field that is ignored or unknown. `idle` holds values that ask for nothing beyond what happens anyway.

    `within` is the field's own name in the tables, where they hold more than the fields of this object.
    """
    for name in fields.others(()):
        key = f"{within}.{name}" if within else name
        fate = fates.get(key)
        if fate is not None and fate.kind != "ignored":
            continue
        if fields.get(name) not in (idle or {}).get(key, ()):
            notes.add(fields.at(name), fate.why if fate else UNKNOWN_FIELD)


def refuse(fields: Fields, name: str, fates: Fates, within: str = "") -> CallError:
    """The error to raise about a field whose fate is to be refused."""
    return fields.error(name, fates[f"{within}.{name}" if within else name].why)


def image(fields: Fields, name: str, notes: Notes) -> Image | Text:
    """An image by URL, or, where it would have to be fetched, a placeholder, which is noted. Raises CallError."""
    url = fields.text(name)
    if url.startswith("data:"):
        return Image(url)
    if url.startswith(("https://", "http://")):
        notes.add(fields.at(name), "an image by address: nothing is fetched from the network")
        return placeholder("an image")
    raise fields.error(name, "expected a URL with https: or data:")


def placeholder(what: str) -> Text:
    """What the model reads in the place of something it cannot be shown."""
    return Text(f"[{what}, which cannot be shown here]")


def file_part(fields: Fields, notes: Notes, field: str) -> Text:
    """A file of the request, in its place: its text when it carries text, else a placeholder, which is noted."""
    name = fields.text_or("filename", "a file")
    if (text := _data_text(fields.text_or("file_data"))) is not None:
        return Text(f"<file name={name!r}>\n{text}\n</file>")
    notes.add(field, "the model reads text and images; there is no file store")
    return placeholder(f"the file {name!r}" if fields.has("filename") else name)


def _data_text(url: str) -> str | None:
    """The text in a `data:` URL of a text type; None for anything else."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith(("data:text/", "data:application/json")) or not head.endswith(";base64"):
        return None
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None


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


def thinking(effort: str) -> Thinking:
    """What a reasoning effort asks for, in its own word; `none` asks for no thinking and an empty word for nothing."""
    match effort:
        case "":
            return Thinking()
        case "none":
            return Thinking(enabled=False)
        case _:
            return Thinking(enabled=True, effort=effort)


def word_choice(fields: Fields, name: str, tools: Collection[object]) -> ToolChoice:
    """A tool choice said in one word, `auto` when absent. `tools` are those the model is given."""
    match fields.text_or(name, "auto"):
        case "required" if not tools:
            raise fields.error(name, "a tool is required, but the model is given none")
        case "none" | "auto" | "required" as mode:
            return ToolChoice(mode) if tools else ToolChoice()
        case mode:
            raise fields.error(name, f"unknown choice {mode!r}; it is one of none, auto, required")


ALWAYS_STRICT = emulated("the text is made to fit the schema whatever else is said of it")
ALLOWED_TOOLS_WHY = "the model is given every declared tool: a changing list would change the prompt's prefix"


def models_route(request: Request) -> Route | None:
    """The route of `GET .../models` and `GET .../models/{id}`, where the list is asked for in OpenAI's shape.

    Google's list has the same path, and Codex asks for a catalogue of its own shape, naming its version, or at its
    login's service; it goes on without one.
    """
    if request.method != "GET" or request.host == GOOGLE_HOST:
        return None
    if "x-goog-api-key" in request.headers or "key" in request.query:
        return None
    words = [unquote(word) for word in request.path.strip("/").split("/")]
    if "models" not in words or "client_version" in request.query or "backend-api" in words:
        return None
    at = words.index("models")
    if any(word.startswith(("v1beta", "v1alpha")) for word in words[:at]):
        return None
    return Route("models", model="/".join(words[at + 1 :]) or None)


def models(route: Route, cards: Sequence[ModelCard]) -> Json:
    """The list of what is served, or the one model that the route names, under the name it was asked for by."""
    if route.model is not None:
        return _card(route.model)
    return {"object": "list", "data": [_card(card.id) for card in cards]}


def _card(name: str) -> Json:
    # `created` is when a model came to be, in unix seconds; nobody here knows that of a served one.
    return {"id": name, "object": "model", "created": 0, "owned_by": "polar"}


def argument_repair(call: ToolCall) -> str:
    """What had to be mended in the arguments of a plain function call (empty: nothing)."""
    if sent_arguments(call.arguments) == call.arguments:
        return ""
    return "a call without arguments was given an empty object"


def unserved(what: str) -> CallError:
    """The error for a side request that this API does not have."""
    return CallError("not_found", f"this API has no {what}")


def api_error(error: CallError) -> tuple[int, Json]:
    """HTTP status and body of a failed call, as api.openai.com shapes them."""
    status, kind, code = _ERRORS[error.kind]
    if error.kind == "not_found" and error.param == "model":
        code = "model_not_found"
    if error.param == "previous_response_id":
        code = "previous_response_not_found"
    return status, {"error": {"message": error_words(error), "type": kind, "param": error.param, "code": code}}


def error_words(error: CallError) -> str:
    """What the client is told. Of a full context in the words by which clients know it: LiteLLM and Qwen Code by the
    first, pi by the second. Qwen Code reads the two numbers, to know how much to give up."""
    if error.kind != "context_overflow":
        return error.message
    full = "your input exceeds the context window of this model. Please reduce the length of the messages."
    if not error.over:
        return f"This model's maximum context length is exceeded: {full}"
    tokens, window = error.over
    return (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens: "
        + full
    )


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
    "no_model": (404, "invalid_request_error", "model_not_found"),
    "internal": (500, "server_error", None),
}


def text_part(fields: Fields, name: str = "text") -> Text:
    return Text(fields.text(name))
