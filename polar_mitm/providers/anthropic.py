"""The Anthropic Messages API, `POST .../messages`: what a request means.

Its conversation is read in `anthropic_messages`, its tools in `anthropic_tools`. The replies' form is in
`anthropic_reply`, what becomes of each field in `anthropic_fates`, the other paths of that API in `anthropic_side`; its
batches and files are not served.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import orjson

from polar_mitm.chat import ChatRequest, Json, Sampling, Thinking
from polar_mitm.providers.anthropic_fates import FATES, give_fates
from polar_mitm.providers.anthropic_messages import Found, messages_of
from polar_mitm.providers.anthropic_reply import (
    AnthropicAsk,
    error,
    keepalive,
    render,
    repairs,
    stop_reason,
    stream,
    stream_error,
    stream_type,
)
from polar_mitm.providers.anthropic_side import count, fixed, models, recognise_side
from polar_mitm.providers.anthropic_tools import Toolbox, parallel_tool_calls, tool_choice
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.common import bounded_integer, bounded_number, header_ids, stop_strings
from polar_mitm.providers.fields import Fields

__all__ = [
    "FATES",
    "HOSTS",
    "NAME",
    "REQUEST_ID_HEADER",
    "SESSION_HEADERS",
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

NAME = "anthropic"
HOSTS = ("api.anthropic.com",)
REQUEST_ID_HEADER = "request-id"

SESSION_HEADERS = (
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "x-claude-code-agent-type",
    "x-claude-code-prompt-id",
    "x-claude-code-request-class",
    "x-client-request-id",
    "x-session-id",
    "x-session-affinity",
    "x-parent-session-id",
)


SESSION_AT_END = re.compile(r"_session_([0-9a-f-]{36})\Z")


def recognise(request: Request) -> Route | None:
    if request.method == "POST" and request.path.rpartition("/")[2] == "messages":
        return Route("generate")
    return recognise_side(request, HOSTS)


def parse(request: Request, route: Route, body: Json) -> AnthropicAsk:
    fields = Fields.of_body(body)
    found = Found()
    give_fates(fields, found.notes)
    for name in ("tool_choice", "thinking", "output_config", "metadata"):
        if child := fields.child(name):
            give_fates(child, found.notes, name)
    model = fields.text("model")
    messages = messages_of(fields, found)
    tools = Toolbox(fields, found)
    chat = ChatRequest(
        messages=messages,
        tools=tuple(tools.given),
        tool_choice=tool_choice(fields, tools),
        parallel_tool_calls=parallel_tool_calls(fields),
        sampling=Sampling(
            max_tokens=bounded_integer(fields, "max_tokens", 0),
            temperature=bounded_number(fields, "temperature", 0, 2),
            top_p=bounded_number(fields, "top_p", 0, 1),
            top_k=bounded_integer(fields, "top_k", 0),
            stop=stop_strings(fields, "stop_sequences"),
        ),
        json_schema=_json_schema(fields),
        thinking=_thinking(fields),
    )
    chat = replace(chat, not_carried=found.notes.all())
    stream = fields.flag("stream") or False
    return AnthropicAsk(chat, model, stream, _harness_ids(request, fields), members=tools.members)


def _json_schema(fields: Fields) -> Json | None:
    """The schema of `output_config.format`, or of `output_format`, its older place."""
    config = fields.child("output_config")
    format_ = (config and config.child("format")) or fields.child("output_format")
    if not format_:
        return None
    if (kind := format_.text("type")) != "json_schema":
        raise format_.error("type", f"unknown format {kind!r}; json_schema is served")
    return format_.required("schema").value


def _thinking(fields: Fields) -> Thinking:
    config = fields.child("output_config")
    effort = (config and config.text_or("effort")) or None
    thinking = fields.child("thinking")
    if not thinking:
        return Thinking(effort=effort)
    match thinking.text("type"):
        case "enabled" | "adaptive":
            return Thinking(True, effort, bounded_integer(thinking, "budget_tokens", 1))
        case "disabled" | "between_tools":
            return Thinking(False, effort)
        case kind:
            allowed = "enabled, adaptive, disabled, between_tools"
            raise thinking.error("type", f"unknown type {kind!r}; it is one of {allowed}")


def _harness_ids(request: Request, fields: Fields) -> Mapping[str, str]:
    """Ids from the headers, and the session that Claude Code packs into `metadata.user_id`."""
    ids = header_ids(request, SESSION_HEADERS)
    metadata = fields.child("metadata")
    if session := _packed_session(metadata.text_or("user_id") if metadata else ""):
        ids["session_id"] = session
    return ids


def _packed_session(user_id: str) -> str | None:
    """The session id in `{"device_id": ..., "session_id": ...}`, or at the end of the older `..._session_<uuid>`."""
    if match := SESSION_AT_END.search(user_id):
        return match[1]
    try:
        packed = orjson.loads(user_id)
    except orjson.JSONDecodeError:
        return None
    session = packed.get("session_id") if isinstance(packed, dict) else None
    return session if isinstance(session, str) else None
