"""OpenAI Responses: `POST .../responses`, as the `openai` SDK, Codex, Pi and opencode speak it over HTTP.

Stateless: a request carries its whole conversation, and nothing is kept for a `previous_response_id`. Tools and calls
are translated in `openai_responses_tools`; the WebSocket form of this API is not served.
"""

from dataclasses import dataclass, field

from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatRequest,
    Json,
    Part,
    Sampling,
    Text,
    Thinking,
    ToolChoice,
    ToolResult,
    text_of,
)
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.common import Notes, bounded_integer, bounded_number, header_ids
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_common import (
    file_part,
    image,
    json_schema,
    models,
    note_fates,
    placeholder,
    refuse,
    text_part,
    thinking,
)
from polar_mitm.providers.openai_responses_compaction import (
    REQUEST,
    is_compact_path,
    is_trigger,
    kept_messages,
    named_compaction,
    recalled,
)
from polar_mitm.providers.openai_responses_fates import FATES, HOSTED_ITEMS, IDLE
from polar_mitm.providers.openai_responses_reply import (
    ResponsesAsk,
    count,
    error,
    keepalive,
    render,
    repairs,
    stop_reason,
    stream,
    stream_error,
    stream_type,
)
from polar_mitm.providers.openai_responses_seal import unseal
from polar_mitm.providers.openai_responses_tools import Toolbox, history_call
from polar_mitm.providers.openai_responses_typed import patch_result, shell_result
from polar_mitm.providers.openai_transcript import Transcript

__all__ = [
    "FATES",
    "HOSTS",
    "NAME",
    "SESSION_HEADERS",
    "ResponsesAsk",
    "count",
    "error",
    "fixed",
    "keepalive",
    "models",
    "parse",
    "recognise",
    "render",
    "repairs",
    "stop_reason",
    "stream",
    "stream_error",
    "stream_type",
]

NAME = "openai-responses"

# chatgpt.com is where Codex goes with a ChatGPT login.
HOSTS = ("api.openai.com", "chatgpt.com")

SESSION_HEADERS = (
    "session-id",
    "session_id",
    "thread-id",
    "conversation_id",
    "x-client-request-id",
    "x-codex-window-id",
    "x-codex-parent-thread-id",
    "x-codex-turn-metadata",
    "x-openai-subagent",
    "x-session-id",
    "x-parent-session-id",
    "x-session-affinity",
)

TURN_METADATA = "x-codex-turn-metadata"
ACCOUNT_HEADER = "chatgpt-account-id"

FOREIGN_SEAL = "sealed by another service; the model is given what is readable"
PART = "input.*.content.*"
SCREENSHOT = "the model is given no computer"


@dataclass(slots=True)
class _Reading:
    """What the input of one request adds up to."""

    transcript: Transcript
    toolbox: Toolbox
    notes: Notes
    thinking: Thinking = field(default_factory=Thinking)
    json_schema: Json | None = None


def recognise(request: Request) -> Route | None:
    """Replies are not stored, so `.../responses/{id}` and what is beneath it is nobody's path: a 404."""
    match request.method, request.path.rstrip("/").split("/"):
        case "POST", [*_, "responses"] | [*_, "responses", "compact"]:
            return Route("generate")
        case "POST", [*_, "responses", "input_tokens"]:
            return Route("count")
        case "GET", [*_, "wham", "accounts", "check"]:
            return Route("fixed")
    return None


def fixed(request: Request) -> Json:
    """What Codex asks once after a ChatGPT login: that its account may be used from anywhere."""
    account = {"id": request.headers.get(ACCOUNT_HEADER, "local")}
    everywhere = dict.fromkeys(("workspace_backend_origin", "account_routing_override"), "NO_CONSTRAINT")
    return {"accounts": [{**account, **everywhere}]}


def parse(request: Request, route: Route, body: Json) -> ResponsesAsk:
    fields = Fields.of_body(body)
    _refuse_state(fields)
    notes = Notes()
    reading = _Reading(Transcript(notes, "input"), Toolbox(notes), notes)
    _note_body(fields, notes)
    _configure(fields, reading)
    toolbox = reading.toolbox
    toolbox.add(fields.children("tools"))
    if fields.has("instructions"):
        reading.transcript.system(fields.text("instructions"))
    compacting = _read_input(fields, reading) or is_compact_path(request)
    messages = reading.transcript.messages()
    if not messages:
        raise fields.error("input", "field required")
    harness_ids = _harness_ids(request, fields)
    chat = ChatRequest(
        messages=(*messages, REQUEST) if compacting else messages,
        tools=() if compacting else toolbox.tools,
        tool_choice=ToolChoice() if compacting else toolbox.choice(fields),
        parallel_tool_calls=None if compacting else fields.flag("parallel_tool_calls"),
        sampling=Sampling(
            max_tokens=bounded_integer(fields, "max_output_tokens", 1),
            temperature=bounded_number(fields, "temperature", 0, 2),
            top_p=bounded_number(fields, "top_p", 0, 1),
        ),
        json_schema=None if compacting else reading.json_schema,
        thinking=reading.thinking,
        not_carried=notes.all(),
    )
    is_path = is_compact_path(request)
    return ResponsesAsk(
        chat=chat,
        model=fields.text_or("model") if route.action == "count" else fields.text("model"),
        stream=bool(fields.flag("stream")) and not is_path,
        harness_ids=harness_ids,
        compacts=compacting or named_compaction(harness_ids.get(TURN_METADATA, "")),
        declared=toolbox.declared,
        echo=_echo(fields),
        compacting=compacting,
        kept=kept_messages(fields) if is_path else None,
    )


def _refuse_state(fields: Fields) -> None:
    """Raises CallError where the request needs something that a stateless server does not have."""
    if fields.has("previous_response_id"):
        previous = fields.text("previous_response_id")
        problem = f"Previous response with id '{previous}' not found: {FATES['previous_response_id'].why}"
        raise CallError("invalid_request", problem, param="previous_response_id")
    for name in ("conversation", "prompt"):
        if fields.has(name):
            raise refuse(fields, name, FATES)


def _note_body(fields: Fields, notes: Notes) -> None:
    note_fates(notes, fields, FATES, IDLE)
    for name in ("text", "reasoning", "stream_options"):
        if (object_ := fields.child(name)) is not None:
            note_fates(notes, object_, FATES, IDLE, within=name)
    for included in fields.texts("include"):
        if included != "reasoning.encrypted_content":
            notes.add(f"include.{included}", "the reply holds nothing of that kind")


def _configure(fields: Fields, reading: _Reading) -> None:
    """Read how much the model is to think and what form its text is to have, where these fields say so."""
    if (reasoning := fields.child("reasoning")) and reasoning.has("effort"):
        reading.thinking = thinking(reasoning.text("effort"))
    if (text := fields.child("text")) and text.has("format"):
        reading.json_schema = json_schema(text.child("format"))


def _harness_ids(request: Request, fields: Fields) -> dict[str, str]:
    ids = header_ids(request, SESSION_HEADERS)
    if fields.has("prompt_cache_key"):
        ids["prompt_cache_key"] = fields.text("prompt_cache_key")
    for name, value in (fields.object("client_metadata") or {}).items():
        if name in SESSION_HEADERS and isinstance(value, str):
            ids.setdefault(name, value)
    return ids


def _echo(fields: Fields) -> Json:
    return {
        "max_output_tokens": fields.get("max_output_tokens"),
        "metadata": fields.object("metadata") or {},
        "parallel_tool_calls": fields.flag("parallel_tool_calls") is not False,
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "reasoning": fields.object("reasoning") or {"effort": None, "summary": None},
        "temperature": fields.get("temperature"),
        "text": {"format": {"type": "text"}, **(fields.object("text") or {})},
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": fields.list("tools"),
        "top_p": fields.get("top_p"),
        "truncation": "disabled",
    }


def _read_input(fields: Fields, reading: _Reading) -> bool:
    """Read every item. Gives whether the input ends in asking for a compaction."""
    if isinstance(fields.get("input"), str):
        reading.transcript.user((text_part(fields, "input"),))
        return False
    items = [*fields.children("input")]
    compacting = bool(items) and is_trigger(items[-1].value)
    for item in items[:-1] if compacting else items:
        _read_item(item, reading)
    return compacting


def _read_item(item: Fields, reading: _Reading) -> None:
    """Everything the assistant did between two user or tool items is one message, as the model sampled it."""
    transcript, notes = reading.transcript, reading.notes
    kind = item.text("type") if item.has("type") or not item.has("role") else "message"
    if kind in HOSTED_ITEMS or (kind.startswith("tool_search_") and item.text_or("execution") != "client"):
        notes.add(f"{item.path}.{kind}", "it belongs to a hosted tool, and nobody here runs those")
        return
    note_fates(notes, item, FATES, IDLE, within="input.*")
    match kind:
        case "message":
            _read_message(item, transcript, notes)
        case "function_call" | "custom_tool_call":
            transcript.continue_assistant(Assistant(tool_calls=(history_call(item),)))
        case "local_shell_call" | "shell_call" | "apply_patch_call" | "tool_search_call":
            if (action := item.child("action")) is not None:
                note_fates(notes, action, FATES, IDLE, within="input.*.action")
            transcript.continue_assistant(Assistant(tool_calls=(history_call(item),)))
        case "reasoning":
            if reasoning := _replayed_reasoning(item, notes):
                transcript.continue_assistant(Assistant(reasoning=reasoning))
        case "additional_tools":
            reading.toolbox.add(item.children("tools"))
        case "configuration_update":
            _configure(item, reading)
        case "compaction":
            _recall(item, reading)
        case "compaction_trigger":
            notes.add(f"{item.path}.{kind}", "only the last item can ask for a compaction")
        case "item_reference":
            raise item.error("type", "nothing is stored at the service; send the item itself")
        case _ if kind.endswith("_output"):
            transcript.result(_result(item, kind, reading))
        case _:
            raise item.error("type", f"unknown input item {kind!r}")


def _result(item: Fields, kind: str, reading: _Reading) -> ToolResult:
    match kind:
        case "function_call_output" | "custom_tool_call_output":
            return ToolResult(item.text("call_id"), _content(item, "output", reading.notes))
        case "local_shell_call_output":
            call_id = item.text_or("call_id") or item.text("id")  # this item's id is the call's
            return ToolResult(call_id, _content(item, "output", reading.notes))
        case "shell_call_output":
            return ToolResult(item.text("call_id"), (Text(shell_result(item)),))
        case "apply_patch_call_output":
            return ToolResult(item.text("call_id"), (Text(patch_result(item)),))
        case "tool_search_output":
            return ToolResult(item.text("call_id"), (Text(reading.toolbox.found(item.children("tools"))),))
        case _:
            raise item.error("type", f"unknown input item {kind!r}")


def _recall(item: Fields, reading: _Reading) -> None:
    summary = unseal(item.text("encrypted_content"))
    if summary is None:
        reading.notes.add(item.at("encrypted_content"), FOREIGN_SEAL)
    elif summary:
        reading.transcript.user(recalled(summary).parts)


def _read_message(item: Fields, transcript: Transcript, notes: Notes) -> None:
    if not item.has("content"):
        raise item.error("content", "field required")
    content = _content(item, "content", notes)
    match item.text("role"):
        case "system" | "developer":
            transcript.system(text_of(content))
        case "user":
            transcript.user(content)
        case "assistant":
            transcript.continue_assistant(Assistant(text_of(content)))
        case role:
            raise item.error("role", f"unknown role {role!r}; it is one of system, developer, user, assistant")


def _content(item: Fields, name: str, notes: Notes) -> tuple[Part, ...]:
    content = item.get(name)
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(fields, notes) for fields in item.children(name))


def _part(fields: Fields, notes: Notes) -> Part:
    kind = fields.text("type")
    match kind:
        case "input_text" | "output_text" | "text":
            note_fates(notes, fields, FATES, IDLE, within=PART)
            return text_part(fields)
        case "refusal":
            return text_part(fields, "refusal")
        case "input_image":
            note_fates(notes, fields, FATES, IDLE, within=PART)
            if fields.has("image_url"):
                return image(fields, "image_url", fields.text("image_url"))
            notes.add(fields.at("file_id"), "there is no file store")
            return placeholder("an image")
        case "input_file":
            return file_part(fields, notes, fields.at(kind))
        case "input_audio":
            notes.add(fields.at(kind), "the model reads text and images")
            return placeholder("an audio recording")
        case "computer_screenshot":
            notes.add(fields.at(kind), SCREENSHOT)
            return placeholder("a screenshot")
        case _:
            raise fields.error("type", f"unknown content part {kind!r}")


def _replayed_reasoning(item: Fields, notes: Notes) -> str:
    """The reasoning text of a replayed item: what polar sealed, else its content, else its summary."""
    if item.has("encrypted_content"):
        if (text := unseal(item.text("encrypted_content"))) is not None:
            return text
        notes.add(item.at("encrypted_content"), FOREIGN_SEAL)
    parts = [*item.children("content")] or [*item.children("summary")]
    return "\n".join(part.text("text") for part in parts)
