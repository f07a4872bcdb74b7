"""OpenAI Responses: `POST .../responses`, as the `openai` SDK, Codex, Pi and opencode speak it over HTTP.

Stateless: a request carries its whole conversation, and nothing is kept for a `previous_response_id`. Tools and calls
are translated in `openai_responses_tools`; the WebSocket form of this API and compaction are not served.
"""

from typing import Any

from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatRequest,
    Json,
    Part,
    Sampling,
    Text,
    ToolResult,
    User,
    text_of,
)
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.common import Notes, bounded_integer, bounded_number, header_ids
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_common import Fates, Transcript, image, json_schema, names, note_rest, text_part
from polar_mitm.providers.openai_responses_reply import (
    ResponsesAsk,
    error,
    keepalive,
    render,
    stop_reason,
    stream,
    stream_error,
    stream_type,
    unseal,
)
from polar_mitm.providers.openai_responses_tools import Toolbox, history_call

__all__ = [
    "HOSTS",
    "NAME",
    "SESSION_HEADERS",
    "ResponsesAsk",
    "error",
    "keepalive",
    "parse",
    "recognise",
    "render",
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

READ = names(
    "model input instructions tools tool_choice parallel_tool_calls text max_output_tokens temperature top_p stream "
    "previous_response_id conversation prompt include"
)

FATES: Fates = {
    "background": "the reply is given at once",
    "client_metadata": "meant for the service, not for the model",
    "context_management": "the client's history is given to the model whole",
    "max_tool_calls": "it limits hosted tools, and nobody here runs those",
    "metadata": "nothing is stored at the service",
    "moderation": "there is no moderation service",
    "prompt_cache_key": "kept as a harness id; the engine finds shared prefixes itself",
    "prompt_cache_options": "the engine finds shared prefixes itself",
    "prompt_cache_retention": "the engine finds shared prefixes itself",
    "reasoning": "the run's chat template decides how the model reasons",
    "safety_identifier": "the engine knows no users",
    "service_tier": "there is one engine",
    "store": "nothing is stored at the service",
    "stream_options": "streams carry no obfuscation",
    "top_logprobs": "log-probabilities go to the call record, not to the client",
    "truncation": "a history that is too long is an error, never cut",
    "user": "the engine knows no users",
}

IDLE: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "metadata": ({},),
    "reasoning": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}

# Ids and states of replayed items, and what Codex passes through to its own service, say nothing to a model.
ITEM_READ = names(
    "type id status internal_chat_message_metadata_passthrough role content call_id name namespace arguments input "
    "output summary encrypted_content action tools"
)
ITEM_FATES: Fates = {"phase": "chat templates have no place for it", "caller": "the model itself makes every call"}

HOSTED_ITEMS = names(
    "web_search_call file_search_call code_interpreter_call image_generation_call computer_call computer_call_output "
    "mcp_call mcp_list_tools mcp_approval_request mcp_approval_response tool_search_call tool_search_output "
    "shell_call shell_call_output apply_patch_call apply_patch_call_output program program_output"
)
PARTS_LEFT_OUT: Fates = {
    "input_file": "the model reads text and images; there is no file store",
    "input_audio": "the model reads text and images",
    "computer_screenshot": "the model is given no computer",
}
PART_FATES: Fates = {
    "detail": "the engine scales images by its own rule",
    "file_id": "there is no file store",
    "prompt_cache_breakpoint": "the engine finds shared prefixes itself",
}


def recognise(request: Request) -> Route | None:
    if request.method == "POST" and request.path.rstrip("/").rpartition("/")[2] == "responses":
        return Route("generate")
    return None


def parse(request: Request, route: Route, body: Json) -> ResponsesAsk:
    fields = Fields.of_body(body)
    _refuse_state(fields)
    notes, transcript = Notes(), Transcript()
    toolbox = Toolbox(notes)
    note_rest(notes, fields, READ, FATES, IDLE)
    for included in fields.texts("include"):
        if included != "reasoning.encrypted_content":
            notes.add(f"include.{included}", "the reply holds nothing of that kind")
    text = fields.child("text") or Fields({}, "text")
    note_rest(notes, text, ("format",), {"verbosity": "the model takes no such setting"})

    toolbox.add(fields.children("tools"))
    if fields.has("instructions"):
        transcript.system(fields.text("instructions"))
    _read_input(fields, transcript, toolbox, notes)
    if not transcript.messages():
        raise fields.error("input", "field required")
    chat = ChatRequest(
        messages=transcript.messages(),
        tools=toolbox.tools,
        tool_choice=toolbox.choice(fields),
        parallel_tool_calls=fields.flag("parallel_tool_calls"),
        sampling=Sampling(
            max_tokens=bounded_integer(fields, "max_output_tokens", 1),
            temperature=bounded_number(fields, "temperature", 0, 2),
            top_p=bounded_number(fields, "top_p", 0, 1),
        ),
        json_schema=json_schema(text.child("format")),
        not_carried=notes.all(),
    )
    return ResponsesAsk(
        chat=chat,
        model=fields.text("model"),
        stream=fields.flag("stream") or False,
        harness_ids=_harness_ids(request, fields),
        declared=toolbox.declared,
        echo=_echo(fields),
    )


def _refuse_state(fields: Fields) -> None:
    """Raises CallError where the request needs something that a stateless server does not have."""
    if fields.has("previous_response_id"):
        previous = fields.text("previous_response_id")
        problem = (
            f"Previous response with id '{previous}' not found: replies are not stored, send the whole conversation."
        )
        raise CallError("invalid_request", problem, param="previous_response_id")
    for name in ("conversation", "prompt"):
        if fields.has(name):
            raise fields.error(name, "nothing is stored at the service; send the whole conversation as input")


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


def _read_input(fields: Fields, transcript: Transcript, toolbox: Toolbox, notes: Notes) -> None:
    if isinstance(fields.get("input"), str):
        transcript.add(User((text_part(fields, "input"),)))
        return
    for item in fields.children("input"):
        _read_item(item, transcript, toolbox, notes)


def _read_item(item: Fields, transcript: Transcript, toolbox: Toolbox, notes: Notes) -> None:
    """Everything the assistant did between two user or tool items is one message, as the model sampled it."""
    kind = item.text("type") if item.has("type") or not item.has("role") else "message"
    note_rest(notes, item, ITEM_READ, ITEM_FATES)
    match kind:
        case "message":
            _read_message(item, transcript, notes)
        case "function_call" | "custom_tool_call" | "local_shell_call":
            transcript.continue_assistant(Assistant(tool_calls=(history_call(item),)))
        case "function_call_output" | "custom_tool_call_output":
            transcript.add(ToolResult(item.text("call_id"), _content(item, "output", notes)))
        case "local_shell_call_output":
            call_id = item.text_or("call_id") or item.text("id")  # this item's id is the call's
            transcript.add(ToolResult(call_id, _content(item, "output", notes)))
        case "reasoning":
            if reasoning := _replayed_reasoning(item, notes):
                transcript.continue_assistant(Assistant(reasoning=reasoning))
        case "additional_tools":
            toolbox.add(item.children("tools"))
        case "item_reference":
            raise item.error("type", "nothing is stored at the service; send the item itself")
        case "compaction" | "compaction_trigger":
            raise item.error("type", f"{kind!r} is not served; let the client summarise by an ordinary request")
        case _ if kind in HOSTED_ITEMS:
            notes.add(f"{item.path}.{kind}", "it belongs to a hosted tool, and nobody here runs those")
        case _:
            raise item.error("type", f"unknown input item {kind!r}")


def _read_message(item: Fields, transcript: Transcript, notes: Notes) -> None:
    if not item.has("content"):
        raise item.error("content", "field required")
    content = _content(item, "content", notes)
    match item.text("role"):
        case "system" | "developer":
            transcript.system(text_of(content))
        case "user":
            transcript.add(User(content))
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
    return tuple(part for fields in item.children(name) if (part := _part(fields, notes)) is not None)


def _part(fields: Fields, notes: Notes) -> Part | None:
    kind = fields.text("type")
    match kind:
        case "input_text" | "output_text" | "text":
            note_rest(notes, fields, ("type", "text", "annotations", "logprobs"), PART_FATES)
            return text_part(fields)
        case "refusal":
            return text_part(fields, "refusal")
        case "input_image":
            note_rest(notes, fields, ("type", "image_url"), PART_FATES, {"detail": ("auto",)})
            return image(fields, "image_url", fields.text("image_url")) if fields.has("image_url") else None
        case _ if kind in PARTS_LEFT_OUT:
            notes.add(f"{fields.path}.{kind}", PARTS_LEFT_OUT[kind])
            return None
        case _:
            raise fields.error("type", f"unknown content part {kind!r}")


def _replayed_reasoning(item: Fields, notes: Notes) -> str:
    """The reasoning text of a replayed item: what polar sealed, else its content, else its summary."""
    if item.has("encrypted_content"):
        if (text := unseal(item.text("encrypted_content"))) is not None:
            return text
        notes.add(item.at("encrypted_content"), "sealed by another service; the model is given what is readable")
    parts = [*item.children("content")] or [*item.children("summary")]
    return "\n".join(part.text("text") for part in parts)
