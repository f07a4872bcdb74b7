"""The Google generateContent API: what a request means.

Two forms of one API: `models/<model>:generateContent` (Gemini API, Vertex) and `v1internal:generateContent` (Code
Assist), which wraps the same request and reply in one more object. The replies' form is in `google_reply`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any, Literal
from urllib.parse import unquote

from polar_mitm.chat import (
    Assistant,
    ChatRequest,
    Image,
    Json,
    Message,
    Part,
    Sampling,
    System,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    User,
)
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.common import Notes, arguments_text, bounded_integer, bounded_number, header_ids
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.google_reply import (
    GoogleAsk,
    error,
    keepalive,
    render,
    stop_reason,
    stream,
    stream_error,
    stream_type,
)
from polar_mitm.providers.google_schema import json_schema

__all__ = [
    "HOSTS",
    "NAME",
    "SESSION_HEADERS",
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

NAME = "google"
HOSTS = ("generativelanguage.googleapis.com", "aiplatform.googleapis.com", "cloudcode-pa.googleapis.com")
SESSION_HEADERS = (
    # Gemini CLI names no session with an API key; this id belongs to a HOME directory.
    "x-gemini-api-privileged-user-id",
    "x-session-id",
    "x-session-affinity",
    "x-parent-session-id",
)

METHOD = re.compile(
    r"(?:.*/)?(?:(?:models|tunedModels)/(?P<model>[^/:]+)|v1internal):(?P<method>generateContent|streamGenerateContent)"
)

UNREADABLE_FILE = "[a file that this model cannot read was left out]"

# Keys under which clients put the one text of a function's result.
RESULT_KEYS = ("output", "result", "error")


def recognise(request: Request) -> Route | None:
    match = METHOD.fullmatch(request.path) if request.method == "POST" else None
    if not match:
        return None
    model = unquote(match["model"]) if match["model"] else None
    streamed = match["method"] == "streamGenerateContent"
    framing: Literal["sse", "json-array"] = "sse" if request.query.get("alt") == "sse" else "json-array"
    return Route("generate", model=model, stream=streamed, framing=framing)


class ProtoFields(Fields):
    """Fields in proto JSON: a client may write `topP` or `top_p`. Names asked for are camelCase."""

    __slots__ = ()

    def get(self, name: str) -> Any:
        value = self.value.get(name)
        return self.value.get(_snake_case(name)) if value is None else value

    def unread(self, *known: str) -> tuple[str, ...]:
        return self.others({*known, *map(_snake_case, known)})


@cache
def _snake_case(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def parse(request: Request, route: Route, body: Json) -> GoogleAsk:
    fields = ProtoFields.of_body(body)
    notes = Notes()
    ids = header_ids(request, SESSION_HEADERS)
    wrapped = route.model is None
    model = route.model or fields.text("model").removeprefix("models/")
    if wrapped:
        ids |= {"user_prompt_id": prompt_id} if (prompt_id := fields.text_or("userPromptId")) else {}
        _note_rest(fields, ("model", "project", "userPromptId", "request"), notes)
        fields = fields.required("request")
        ids |= {"session_id": session_id} if (session_id := fields.text_or("sessionId")) else {}
    return GoogleAsk(_chat(fields, notes), model, route.stream or False, ids, framing=route.framing, wrapped=wrapped)


def _chat(fields: ProtoFields, notes: Notes) -> ChatRequest:
    if fields.has("cachedContent"):
        # It holds the beginning of the conversation, which nobody here has.
        raise fields.error("cachedContent", "cached content is not served; send the contents in full")
    tools, tool_choice = _tools(fields, notes)
    config = fields.child("generationConfig") or ProtoFields({}, fields.at("generationConfig"))
    chat = ChatRequest(
        messages=_messages(fields, notes),
        tools=tools,
        tool_choice=tool_choice,
        sampling=_sampling(config, notes),
        json_schema=_json_schema(config, notes),
    )
    known = ("model", "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "sessionId")
    _note_rest(fields, known, notes)
    return replace(chat, not_carried=notes.all())


def _note_rest(fields: ProtoFields, known: tuple[str, ...], notes: Notes) -> None:
    for name in fields.unread(*known):
        notes.add(fields.at(name), "no counterpart in the engine's Chat API")


@dataclass(slots=True)
class _Calls:
    """The model's latest calls that no result has answered yet, in the order they were made."""

    open: list[ToolCall] = field(default_factory=list)

    def answered_by(self, response: ProtoFields, fallback_id: str) -> str:
        """The id of the call that this function response answers; `fallback_id` when it answers none.

        By id where the client kept it. Else by order: the first open call of that name, so that two results of one
        function go to its two calls in turn.
        """
        call_id, name = response.text_or("id"), response.text_or("name")
        by_id = (call for call in self.open if call.id == call_id)
        by_order = (call for call in self.open if name in ("", call.name))
        call = next(by_id, None) or next(by_order, None)
        if call is None:
            return call_id or fallback_id
        self.open.remove(call)
        return call.id


def _messages(fields: ProtoFields, notes: Notes) -> tuple[Message, ...]:
    """The conversation. Adjacent contents of one side are one turn, as they are for Google."""
    contents = list(fields.children("contents"))
    if not contents:
        raise fields.error("contents", "contents are required")
    messages: list[Message] = [System(text)] if (text := _system(fields)) else []
    calls = _Calls()
    for from_model, adjacent in groupby(contents, key=_from_model):
        run = list(adjacent)
        if from_model:
            messages.append(assistant := _assistant(run, notes))
            calls = _Calls(list(assistant.tool_calls))
        else:
            messages.extend(_user_turn(run, calls, notes))
    if isinstance(messages[-1], Assistant):
        notes.add(fields.at("contents"), "the answer is a new message, it does not continue the model's last one")
    return tuple(messages)


def _from_model(content: ProtoFields) -> bool:
    match content.text_or("role", "user"):
        case "model":
            return True
        case "user" | "function" | "tool":
            return False
        case role:
            raise content.error("role", f"unknown role {role!r}; it is one of user, model")


def _system(fields: ProtoFields) -> str:
    if isinstance(instruction := fields.get("systemInstruction"), str):
        return instruction
    content = fields.child("systemInstruction")
    return "\n\n".join(part.text("text") for part in content.children("parts")) if content else ""


def _user_turn(run: Iterable[ProtoFields], calls: _Calls, notes: Notes) -> Iterator[Message]:
    """Every function result first, in order, then one user message with the other parts, in order."""
    results: list[ToolResult] = []
    parts: list[Part] = []
    for content in run:
        for part in content.children("parts"):
            if response := part.child("functionResponse"):
                call_id = calls.answered_by(response, _id_from(part.path))
                results.append(ToolResult(call_id, tuple(_result_parts(response, notes))))
            else:
                parts.extend(_parts(part, notes))
    yield from results
    if parts or not results:
        yield User(tuple(parts))


def _id_from(path: str) -> str:
    """An id for a call that has none: its position, `call_2_0`, which later contents do not change."""
    return "_".join(["call", *re.findall(r"\d+", path)])


def _result_parts(response: ProtoFields, notes: Notes) -> Iterator[Part]:
    result = response.object("response")
    match result and [*result.items()]:
        case None:
            yield Text("")
        case [(key, str(text))] if key in RESULT_KEYS:
            yield Text(text)
        case _:
            yield Text(arguments_text(result or {}))
    for part in response.children("parts"):
        yield from _parts(part, notes)


def _parts(part: ProtoFields, notes: Notes) -> Iterator[Part]:
    """A part of the user's side, or of a function's result."""
    if part.has("text"):
        yield Text(part.text("text"))
    elif blob := part.child("inlineData"):
        kind, data = blob.text("mimeType"), blob.text("data")
        if kind.startswith("image/"):
            # Google's own SDK writes the URL-safe alphabet, which a data: URL has not.
            yield Image(f"data:{kind};base64,{data.translate(STANDARD_ALPHABET)}")
        else:
            notes.add(part.at("inlineData"), f"{kind}: the model reads text and images only")
            yield Text(UNREADABLE_FILE)
    elif part.has("fileData"):
        raise part.error("fileData", "files by URI are not served: nothing is fetched from the network")
    else:
        _other_part(part, notes)


STANDARD_ALPHABET = str.maketrans("-_", "+/")


def _other_part(part: ProtoFields, notes: Notes) -> None:
    """A part that says nothing to a model here: Google's server tools and signatures without text."""
    for name in ("executableCode", "codeExecutionResult", "toolCall", "toolResponse"):
        if part.has(name):
            notes.add(part.at(name), "nothing here runs Google's server tools")
            return
    if not (part.has("thoughtSignature") or part.has("thought")):
        raise part.error("", "a part needs one of text, inlineData, functionCall, functionResponse")


def _assistant(run: Iterable[ProtoFields], notes: Notes) -> Assistant:
    text, reasoning = "", ""
    calls: list[ToolCall] = []
    for content in run:
        for part in content.children("parts"):
            # A streamed answer comes back as the pieces it was streamed in, so pieces join without a seam.
            if call := part.child("functionCall"):
                call_id = call.text_or("id") or _id_from(part.path)
                calls.append(ToolCall(call_id, call.text("name"), arguments_text(call.object("args") or {})))
            elif part.has("text") and part.flag("thought"):
                reasoning += part.text("text")
            elif part.has("text"):
                text += part.text("text")
            elif part.has("inlineData") or part.has("fileData"):
                notes.add(part.path, "a chat model's own turns hold text and calls only")
            else:
                _other_part(part, notes)
    return Assistant(text, reasoning, tuple(calls))


def _tools(fields: ProtoFields, notes: Notes) -> tuple[tuple[Tool, ...], ToolChoice]:
    tools: list[Tool] = []
    for group in fields.children("tools"):
        tools.extend(_tool(spec, notes) for spec in group.children("functionDeclarations"))
        for name in group.unread("functionDeclarations"):
            notes.add(group.at(name), "a tool of Google's servers: nothing here runs it")
    config = fields.child("toolConfig")
    if config:
        _note_rest(config, ("functionCallingConfig",), notes)
    calling = config and config.child("functionCallingConfig")
    return _choice(calling, tuple(tools), notes) if calling else (tuple(tools), ToolChoice())


def _tool(spec: ProtoFields, notes: Notes) -> Tool:
    _note_rest(spec, ("name", "description", "parameters", "parametersJsonSchema"), notes)
    name, description = spec.text("name"), spec.text_or("description")
    if (parameters := spec.object("parametersJsonSchema")) is not None:
        return Tool(name, description, parameters)
    if (schema := spec.object("parameters")) is not None:
        return Tool(name, description, json_schema(schema))
    return Tool(name, description)


def _choice(calling: ProtoFields, tools: tuple[Tool, ...], notes: Notes) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that the model may call under a functionCallingConfig, and whether it must."""
    _note_rest(calling, ("mode", "allowedFunctionNames"), notes)
    mode, allowed = calling.text_or("mode", "AUTO").upper(), calling.texts("allowedFunctionNames")
    if unknown := set(allowed) - {tool.name for tool in tools}:
        raise calling.error("allowedFunctionNames", f"not declared: {', '.join(sorted(unknown))}")
    if mode in ("ANY", "VALIDATED") and allowed:
        for tool in tools:
            if tool.name not in allowed:
                notes.add(f"tools.{tool.name}", "not among the allowedFunctionNames")
        tools = tuple(tool for tool in tools if tool.name in allowed)
    match mode:
        case "ANY" if len(allowed) == 1:
            return tools, ToolChoice("named", allowed[0])
        case "ANY" if tools:
            return tools, ToolChoice("required")
        case "ANY":
            raise calling.error("mode", "a call is required, but no function is declared")
        case "NONE":
            return tools, ToolChoice("none" if tools else "auto")
        case "AUTO" | "VALIDATED" | "MODE_UNSPECIFIED":
            return tools, ToolChoice()
        case _:
            raise calling.error("mode", f"unknown mode {mode!r}; it is one of AUTO, ANY, NONE, VALIDATED")


def _sampling(config: ProtoFields, notes: Notes) -> Sampling:
    known = (
        *("temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "seed"),
        *("presencePenalty", "frequencyPenalty", "candidateCount", *SCHEMA_FIELDS),
    )
    _note_rest(config, known, notes)
    if (config.integer("candidateCount") or 1) > 1:
        notes.add(config.at("candidateCount"), "the engine is asked for one candidate")
    return Sampling(
        max_tokens=bounded_integer(config, "maxOutputTokens", 1),
        temperature=bounded_number(config, "temperature", 0, 2),
        top_p=bounded_number(config, "topP", 0, 1),
        top_k=bounded_integer(config, "topK", 0),
        presence_penalty=bounded_number(config, "presencePenalty", -2, 2),
        frequency_penalty=bounded_number(config, "frequencyPenalty", -2, 2),
        seed=bounded_integer(config, "seed", -(2**63)),
        stop=config.texts("stopSequences"),
    )


SCHEMA_FIELDS = ("responseMimeType", "responseSchema", "responseJsonSchema", "_responseJsonSchema")


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
            notes.add(config.at("responseMimeType"), f"{kind}: the engine answers in text or JSON")
            return None
