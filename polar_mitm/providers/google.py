"""The Google generateContent API: what a request means.

Two forms of one API: `models/<model>:generateContent` (Gemini API, Vertex) and `v1internal:generateContent` (Code
Assist), which wraps the same request and reply in one more object. Its conversation is read in `google_contents`, its
tools in `google_tools`. The replies' form is in `google_reply`, what becomes of each field in `google_fates`, the other
paths of that API in `google_side`.
"""

import re
from dataclasses import replace
from typing import Literal
from urllib.parse import unquote

from polar_mitm.chat import CallError, ChatRequest, Json, Sampling, Thinking
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.common import Notes, bounded_integer, bounded_number, header_ids, stop_strings
from polar_mitm.providers.google_contents import messages_of
from polar_mitm.providers.google_fates import FATES, give_fates
from polar_mitm.providers.google_fields import ProtoFields
from polar_mitm.providers.google_reply import (
    GoogleAsk,
    error,
    keepalive,
    render,
    repairs,
    stop_reason,
    stream,
    stream_error,
    stream_type,
)
from polar_mitm.providers.google_schema import json_schema
from polar_mitm.providers.google_side import count, fixed, models, recognise_side
from polar_mitm.providers.google_tools import tools_of

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

NAME = "google"
HOSTS = ("generativelanguage.googleapis.com", "aiplatform.googleapis.com", "cloudcode-pa.googleapis.com")
REQUEST_ID_HEADER = ""

SESSION_HEADERS = (
    # Gemini CLI names no session with an API key; this id belongs to a HOME directory.
    "x-gemini-api-privileged-user-id",
    "x-session-id",
    "x-session-affinity",
    "x-parent-session-id",
)

METHOD = re.compile(
    r"(?:.*/)?(?:(?:models|tunedModels)/(?P<model>.+?)|v1internal)"
    r":(?P<method>generateContent|streamGenerateContent|countTokens)"
)


def recognise(request: Request) -> Route | None:
    match = METHOD.fullmatch(request.path) if request.method == "POST" else None
    if not match:
        return recognise_side(request, HOSTS)
    model = unquote(match["model"]) if match["model"] else None
    if match["method"] == "countTokens":
        return Route("count", model=model)
    streamed = match["method"] == "streamGenerateContent"
    framing: Literal["sse", "json-array"] = "sse" if request.query.get("alt") == "sse" else "json-array"
    return Route("generate", model=model, stream=streamed, framing=framing)


def parse(request: Request, route: Route, body: Json) -> GoogleAsk:
    fields = ProtoFields.of_body(body)
    notes = Notes()
    ids = header_ids(request, SESSION_HEADERS)
    wrapped = route.model is None
    model = route.model or fields.text_or("model")
    if wrapped:
        ids |= {"user_prompt_id": prompt_id} if (prompt_id := fields.text_or("userPromptId")) else {}
        give_fates(fields, notes)
        fields = fields.required("request")
        ids |= {"session_id": session_id} if (session_id := fields.text_or("sessionId")) else {}
        # Questions for a count name the model inside.
        model = model or fields.text_or("model")
    elif route.action == "count":
        fields = fields.child("generateContentRequest") or fields
    if not model:
        raise CallError("invalid_request", "model: field required", param="model")
    chat = _chat(fields, notes)
    ask = GoogleAsk(chat, model.removeprefix("models/"), route.stream or False, ids)
    return replace(ask, framing=route.framing, wrapped=wrapped)


def _chat(fields: ProtoFields, notes: Notes) -> ChatRequest:
    give_fates(fields, notes)
    tools, tool_choice = tools_of(fields, notes)
    config = fields.child("generationConfig") or ProtoFields({}, fields.at("generationConfig"))
    give_fates(config, notes, "generationConfig")
    chat = ChatRequest(
        messages=messages_of(fields, notes),
        tools=tools,
        tool_choice=tool_choice,
        sampling=_sampling(config, notes),
        json_schema=None if (choices := _choices(config)) else _json_schema(config, notes),
        choices=choices,
        thinking=_thinking(config, notes),
    )
    return replace(chat, not_carried=notes.all())


def _sampling(config: ProtoFields, notes: Notes) -> Sampling:
    if (config.integer("candidateCount") or 1) > 1:
        notes.add(config.at("candidateCount"), FATES["generationConfig.candidateCount"].why)
    return Sampling(
        max_tokens=bounded_integer(config, "maxOutputTokens", 1),
        temperature=bounded_number(config, "temperature", 0, 2),
        top_p=bounded_number(config, "topP", 0, 1),
        top_k=bounded_integer(config, "topK", 0),
        presence_penalty=bounded_number(config, "presencePenalty", -2, 2),
        frequency_penalty=bounded_number(config, "frequencyPenalty", -2, 2),
        seed=bounded_integer(config, "seed", -(2**63)),
        stop=stop_strings(config, "stopSequences"),
    )


def _thinking(config: ProtoFields, notes: Notes) -> Thinking:
    thinking = config.child("thinkingConfig")
    if not thinking:
        return Thinking()
    give_fates(thinking, notes, "generationConfig.thinkingConfig")
    level = thinking.text_or("thinkingLevel").lower()
    effort = level if level not in ("", "thinking_level_unspecified") else None
    # -1 leaves the amount to the model.
    budget = bounded_integer(thinking, "thinkingBudget", -1)
    if budget is None:
        return Thinking(True if effort else None, effort)
    return Thinking(budget != 0, effort, budget if budget > 0 else None)


def _choices(config: ProtoFields) -> tuple[str, ...]:
    """The words of which the answer is to be one, as plain text."""
    if config.text_or("responseMimeType") != "text/x.enum" or (schema := config.child("responseSchema")) is None:
        return ()
    return schema.texts("enum")


def _json_schema(config: ProtoFields, notes: Notes) -> Json | None:
    """The schema of a structured answer; `{}` for any JSON object."""
    if (schema := config.object("responseSchema")) is not None:
        return json_schema(schema)
    for name in ("responseJsonSchema", "_responseJsonSchema"):
        if (schema := config.object(name)) is not None:
            return schema
    match config.text_or("responseMimeType", "text/plain"):
        case "application/json":
            return {}
        case "text/plain":
            return None
        case kind:
            notes.add(config.at("responseMimeType"), f"{kind}: {FATES['generationConfig.responseMimeType'].why}")
            return None
