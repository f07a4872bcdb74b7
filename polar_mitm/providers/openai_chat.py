"""OpenAI Chat Completions: `POST .../chat/completions`, as the `openai` SDK, Qwen Code, Pi and opencode speak it.

The canonical Chat is close to this API, so parsing is mostly checking; the deprecated `functions` form is refused. Its
conversation is read in `openai_chat_messages`, its tools in `openai_chat_tools`; the replies' form is in
`openai_chat_reply`, what becomes of each field in `openai_chat_fates`. What this API shares with Responses is in
`openai_common`.
"""

from polar_mitm.chat import ChatRequest, Json, Sampling, Thinking
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.common import INT64_MAX, Notes, bounded_integer, bounded_number, header_ids, stop_strings
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_chat_fates import FATES, IDLE
from polar_mitm.providers.openai_chat_messages import messages_of
from polar_mitm.providers.openai_chat_reply import (
    ChatAsk,
    count,
    error,
    fixed,
    keepalive,
    render,
    repairs,
    stop_reason,
    stream,
    stream_error,
    stream_type,
)
from polar_mitm.providers.openai_chat_tools import Toolbox, tool_choice
from polar_mitm.providers.openai_common import json_schema, models, models_route, note_fates, refuse, thinking

__all__ = [
    "FATES",
    "HOSTS",
    "NAME",
    "REQUEST_ID_HEADER",
    "SESSION_HEADERS",
    "ChatAsk",
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

NAME = "openai-chat"

# dashscope is Qwen Code's own service, opencode.ai serves opencode's Zen models.
HOSTS = ("api.openai.com", "dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", "opencode.ai")

REQUEST_ID_HEADER = "x-request-id"

SESSION_HEADERS = (
    "session-id",
    "session_id",
    "x-client-request-id",
    "x-session-id",
    "x-parent-session-id",
    "x-session-affinity",
    "x-opencode-session",
    "x-opencode-project",
    "x-opencode-request",
)

# Qwen Code names its session in `metadata`, at dashscope hosts only.
METADATA_IDS = ("sessionId", "promptId")


def recognise(request: Request) -> Route | None:
    if request.method == "POST" and request.path.rstrip("/").endswith("/chat/completions"):
        return Route("generate")
    return models_route(request)


def parse(request: Request, route: Route, body: Json) -> ChatAsk:
    fields = Fields.of_body(body)
    notes = Notes()
    _refuse_unserved(fields)
    note_fates(notes, fields, FATES, IDLE)
    tools = Toolbox(fields, notes)
    options = fields.child("stream_options") or Fields({}, "stream_options")
    note_fates(notes, options, FATES, within="stream_options")
    messages = messages_of(fields, tools, notes)
    chat = ChatRequest(
        messages=messages,
        tools=tools.given,
        tool_choice=tool_choice(fields, tools, notes),
        parallel_tool_calls=fields.flag("parallel_tool_calls"),
        sampling=_sampling(fields),
        json_schema=json_schema(fields.child("response_format"), nested="json_schema"),
        thinking=_thinking(fields, notes),
        not_carried=notes.all(),
    )
    return ChatAsk(
        chat=chat,
        model=fields.text("model"),
        stream=fields.flag("stream") or False,
        harness_ids=_harness_ids(request, fields),
        include_usage=options.flag("include_usage") or False,
        declared=tools.declared,
    )


def _refuse_unserved(fields: Fields) -> None:
    if fields.list("functions"):
        raise refuse(fields, "functions", FATES)
    if fields.get("function_call") not in (None, "auto", "none"):
        raise refuse(fields, "function_call", FATES)
    if any(modality != "text" for modality in fields.texts("modalities")):
        raise refuse(fields, "modalities", FATES)


def _thinking(fields: Fields, notes: Notes) -> Thinking:
    """Reasoning effort in OpenAI's form, else in one of the forms that Pi knows of services like it."""
    for name in ("thinking", "reasoning", "chat_template_kwargs"):
        if (object_ := fields.child(name)) is not None:
            note_fates(notes, object_, FATES, within=name)
    nested = fields.child("reasoning") or Fields({}, "reasoning")
    asked = thinking(fields.text_or("reasoning_effort") or nested.text_or("effort"))
    if asked.enabled is not None:
        return asked
    kind = (fields.child("thinking") or Fields({}, "thinking")).text_or("type")
    template = fields.child("chat_template_kwargs") or Fields({}, "chat_template_kwargs")
    switches = (
        fields.flag("enable_thinking"),
        template.flag("enable_thinking"),
        nested.flag("enabled"),
        {"enabled": True, "disabled": False}.get(kind),
    )
    return Thinking(enabled=next((switch for switch in switches if switch is not None), None))


def _harness_ids(request: Request, fields: Fields) -> dict[str, str]:
    ids = header_ids(request, SESSION_HEADERS)
    if fields.has("prompt_cache_key"):
        ids["prompt_cache_key"] = fields.text("prompt_cache_key")
    metadata = fields.object("metadata") or {}
    ids.update({name: metadata[name] for name in METADATA_IDS if isinstance(metadata.get(name), str)})
    return ids


def _sampling(fields: Fields) -> Sampling:
    # max_tokens is the older name of max_completion_tokens; where both are sent, the newer counts.
    older, newer = (bounded_integer(fields, name, 1) for name in ("max_tokens", "max_completion_tokens"))
    return Sampling(
        max_tokens=older if newer is None else newer,
        temperature=bounded_number(fields, "temperature", 0, 2),
        top_p=bounded_number(fields, "top_p", 0, 1),
        top_k=bounded_integer(fields, "top_k", -1),
        presence_penalty=bounded_number(fields, "presence_penalty", -2, 2),
        frequency_penalty=bounded_number(fields, "frequency_penalty", -2, 2),
        seed=bounded_integer(fields, "seed", -INT64_MAX - 1),
        stop=_stop(fields),
    )


def _stop(fields: Fields) -> tuple[str, ...]:
    asked = fields.get("stop")
    return stop_strings(Fields({"stop": [asked]}) if isinstance(asked, str) else fields, "stop")
