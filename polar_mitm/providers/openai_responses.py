"""OpenAI Responses: `POST .../responses`, as the `openai` SDK, Codex, Pi and opencode speak it over HTTP.

Stateless: a request carries its whole conversation, and nothing is kept for a `previous_response_id`. Input items are
read in `openai_responses_input`, tools and calls are translated in `openai_responses_tools`; the WebSocket form of this
API is not served.
"""

from urllib.parse import unquote

from polar_mitm.chat import CallError, ChatRequest, Json, Sampling, ToolChoice
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.common import Notes, bounded_integer, bounded_number, header_ids
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_common import models, note_fates, refuse
from polar_mitm.providers.openai_responses_compaction import REQUEST, is_compact_path, kept_messages, named_compaction
from polar_mitm.providers.openai_responses_fates import FATES, IDLE
from polar_mitm.providers.openai_responses_input import Reading, configure, read_input
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
from polar_mitm.providers.openai_responses_tools import Toolbox
from polar_mitm.providers.openai_transcript import Transcript

__all__ = [
    "FATES",
    "HOSTS",
    "NAME",
    "REQUEST_ID_HEADER",
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

REQUEST_ID_HEADER = "x-request-id"

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

SUMMARY = "the answer to this request is a summary in the model's own words"

TURN_METADATA = "x-codex-turn-metadata"
ACCOUNT_HEADER = "chatgpt-account-id"


def recognise(request: Request) -> Route | None:
    """Replies are not stored: a question for one, or for what is beneath it, has one answer."""
    match request.method, request.path.rstrip("/").split("/"):
        case "POST", [*_, "responses"] | [*_, "responses", "compact"]:
            return Route("generate")
        case "POST", [*_, "responses", "input_tokens"]:
            return Route("count")
        case "GET", [*_, "wham", "accounts", "check"]:
            return Route("fixed")
    return Route("fixed") if _stored(request) else None


def _stored(request: Request) -> str | None:
    """The id of the reply that is asked for, deleted or cancelled."""
    match request.method, request.path.rstrip("/").split("/"):
        case ("GET" | "DELETE", [*_, "responses", name]) | (
            ("GET", [*_, "responses", name, "input_items"]) | ("POST", [*_, "responses", name, "cancel"])
        ) if name and "upgrade" not in request.headers:
            return unquote(name)
    return None


def fixed(request: Request) -> Json:
    """What Codex asks once after a ChatGPT login: that its account may be used from anywhere.

    Raises CallError where a reply is asked for.
    """
    if (name := _stored(request)) is not None:
        raise CallError("not_found", f"Response with id '{name}' not found.")
    account = {"id": request.headers.get(ACCOUNT_HEADER, "local")}
    everywhere = dict.fromkeys(("workspace_backend_origin", "account_routing_override"), "NO_CONSTRAINT")
    return {"accounts": [{**account, **everywhere}]}


def parse(request: Request, route: Route, body: Json) -> ResponsesAsk:
    fields = Fields.of_body(body)
    _refuse_state(fields)
    notes = Notes()
    reading = Reading(Transcript(notes, "input"), Toolbox(notes), notes)
    _note_body(fields, notes)
    configure(fields, reading)
    toolbox = reading.toolbox
    toolbox.add(fields.children("tools"))
    if fields.has("instructions"):
        reading.transcript.system(fields.text("instructions"))
    compacting = read_input(fields, reading) or is_compact_path(request)
    messages = reading.transcript.messages()
    if not messages:
        raise fields.error("input", "field required")
    if compacting:
        _note_summary(fields, reading)
    # The tools stay where the prompts of the conversation have them.
    no_call = ToolChoice("none") if toolbox.tools else ToolChoice()
    harness_ids = _harness_ids(request, fields)
    chat = ChatRequest(
        messages=(*messages, REQUEST) if compacting else messages,
        tools=toolbox.tools,
        tool_choice=no_call if compacting else toolbox.choice(fields),
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


def _note_summary(fields: Fields, reading: Reading) -> None:
    """What a compaction cannot do of what the request asks."""
    if fields.get("tool_choice") not in (None, "auto", "none"):
        reading.notes.add("tool_choice", SUMMARY)
    if reading.json_schema is not None:
        reading.notes.add("text.format", SUMMARY)


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
        "instructions": fields.get("instructions"),
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
