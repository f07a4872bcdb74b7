"""The Google generateContent API: what a request means.

Two forms of one API: `models/<model>:generateContent` (Gemini API, Vertex) and `v1internal:generateContent` (Code
Assist), which wraps the same request and reply in one more object. The replies' form is in `google_reply`, what becomes
of each field in `google_fates`, the other paths of that API in `google_side`.
"""

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any, Literal
from urllib.parse import unquote

from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatRequest,
    Image,
    Json,
    Message,
    Part,
    Sampling,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    User,
)
from polar_mitm.providers.base import Request, Route
from polar_mitm.providers.common import Notes, arguments_text, bounded_integer, bounded_number, header_ids, settle
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.google_fates import FATES, IDLE
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
from polar_mitm.providers.google_schema import camel_case, json_schema
from polar_mitm.providers.google_side import count, fixed, models, recognise_side

__all__ = [
    "FATES",
    "HOSTS",
    "NAME",
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
SESSION_HEADERS = (
    # Gemini CLI names no session with an API key; this id belongs to a HOME directory.
    "x-gemini-api-privileged-user-id",
    "x-session-id",
    "x-session-affinity",
    "x-parent-session-id",
)

METHOD = re.compile(
    r"(?:.*/)?(?:(?:models|tunedModels)/(?P<model>[^/:]+)|v1internal)"
    r":(?P<method>generateContent|streamGenerateContent|countTokens)"
)

# The table's names for contents, parts and function declarations.
CONTENT, PART, DECLARATION = "contents.*", "contents.*.parts.*", "tools.*.functionDeclarations.*"

UNREADABLE_FILE = "[a file that this model cannot read was left out]"
LEFT_OUT = "[content that this model cannot read was left out]"

# Keys under which clients put the one text of a function's result.
RESULT_KEYS = ("output", "result", "error")


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


class ProtoFields(Fields):
    """Fields in proto JSON: a client may write `topP` or `top_p`. Names asked for are camelCase."""

    __slots__ = ()

    def get(self, name: str) -> Any:
        value = self.value.get(name)
        return self.value.get(_snake_case(name)) if value is None else value

    def present(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(camel_case, Fields.present(self))))

    def repeated(self, name: str) -> list["ProtoFields"]:
        """A list of objects; one object stands for a list of one, as it does at Google."""
        if isinstance(self.get(name), dict):
            return [self.required(name)]
        return list(self.children(name))


@cache
def _snake_case(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _settle(fields: ProtoFields, notes: Notes, under: str = "") -> None:
    settle(fields, FATES, IDLE, notes, under)


def parse(request: Request, route: Route, body: Json) -> GoogleAsk:
    fields = ProtoFields.of_body(body)
    notes = Notes()
    ids = header_ids(request, SESSION_HEADERS)
    wrapped = route.model is None
    model = route.model or fields.text_or("model")
    if wrapped:
        ids |= {"user_prompt_id": prompt_id} if (prompt_id := fields.text_or("userPromptId")) else {}
        _settle(fields, notes)
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
    _settle(fields, notes)
    tools, tool_choice = _tools(fields, notes)
    config = fields.child("generationConfig") or ProtoFields({}, fields.at("generationConfig"))
    _settle(config, notes, "generationConfig")
    chat = ChatRequest(
        messages=_messages(fields, notes),
        tools=tools,
        tool_choice=tool_choice,
        sampling=_sampling(config, notes),
        json_schema=_json_schema(config, notes),
        thinking=_thinking(config, notes),
    )
    return replace(chat, not_carried=notes.all())


@dataclass(slots=True)
class _Calls:
    """The model's latest calls that no result has answered yet, in the order they were made."""

    open: list[ToolCall] = field(default_factory=list)

    def answered_by(self, response: ProtoFields) -> str:
        """The id of the call that this function response answers. Raises CallError when it answers none.

        By id where the client kept it. Else by order: the first open call of that name, so that two results of one
        function go to its two calls in turn.
        """
        call_id, name = response.text_or("id"), response.text_or("name")
        by_id = (call for call in self.open if call.id == call_id) if call_id else iter(())
        by_order = (call for call in self.open if name in ("", call.name))
        call = next(by_id, None) or next(by_order, None)
        if call is None:
            rule = "Please ensure that function response turn comes immediately after a function call turn"
            raise response.error("", f"no call of {name!r} is open. {rule}.")
        self.open.remove(call)
        return call.id


def _messages(fields: ProtoFields, notes: Notes) -> tuple[Message, ...]:
    """The conversation. Adjacent contents of one side are one turn, as they are for Google.

    A content of the model's without anything in it is no turn.
    """
    contents = fields.repeated("contents")
    if not contents:
        raise fields.error("contents", "contents are required")
    messages: list[Message] = [System(text)] if (text := _system(fields, notes)) else []
    calls: tuple[ToolCall, ...] = ()
    for from_model, adjacent in groupby(contents, key=_from_model):
        run = list(adjacent)
        if from_model:
            answer = _assistant(run, notes)
            calls = answer.tool_calls
            messages.extend([answer] if answer != Assistant() else [])
        else:
            results, parts = _user_turn(run, calls, notes)
            messages.extend(results)
            _add_parts(messages, parts)
    if not messages:
        raise fields.error("contents", "there is nothing in any content")
    if isinstance(messages[-1], Assistant):
        notes.add(fields.at("contents"), "the answer is a new message, it does not continue the model's last one")
    return tuple(messages)


def _add_parts(messages: list[Message], parts: Sequence[Part]) -> None:
    """A user message with these parts, joined to a user message right before it."""
    if parts and isinstance(last := messages[-1] if messages else None, User):
        messages[-1] = User((*last.parts, *parts))
    elif parts:
        messages.append(User(tuple(parts)))


def _from_model(content: ProtoFields) -> bool:
    match content.text_or("role", "user").lower():
        case "model":
            return True
        case "user" | "function" | "tool":
            return False
        case role:
            raise content.error("role", f"unknown role {role!r}; it is one of user, model")


def _system(fields: ProtoFields, notes: Notes) -> str:
    if isinstance(instruction := fields.get("systemInstruction"), str):
        return instruction
    content = fields.child("systemInstruction")
    if not content:
        return ""
    _settle(content, notes, "systemInstruction")
    texts = []
    for part in content.repeated("parts"):
        if part.has("text"):
            texts.append(part.text("text"))
        else:
            notes.add(part.path, "a system prompt has text only")
    return "\n\n".join(texts)


def _user_turn(
    run: Iterable[ProtoFields], calls: Sequence[ToolCall], notes: Notes
) -> tuple[list[ToolResult], list[Part]]:
    """The results of the calls before it, in the order of the calls, and the other parts, in their order.

    Many chat templates tell results apart by their order alone. A call without a result, and a result without a call,
    are refused as Google refuses them.
    """
    waiting = _Calls(list(calls))
    results: dict[str, ToolResult] = {}
    parts: list[Part] = []
    run = list(run)
    for content in run:
        _settle(content, notes, CONTENT)
        before, given = len(results) + len(parts), content.repeated("parts")
        for part in given:
            _settle(part, notes, PART)
            if response := part.child("functionResponse"):
                _settle(response, notes, f"{PART}.functionResponse")
                call_id = waiting.answered_by(response)
                results[call_id] = ToolResult(call_id, tuple(_result_parts(response, notes)))
            else:
                parts.extend(_parts(part, notes))
        if given and len(results) + len(parts) == before:
            parts.append(Text(LEFT_OUT))
    if waiting.open:
        rule = "the number of function response parts is equal to the number of function call parts"
        names = ", ".join(call.name for call in waiting.open)
        raise run[0].error("", f"no response to {names}. Please ensure that {rule} of the function call turn.")
    if not parts and not results:
        raise run[0].error("parts", "contents.parts must not be empty")
    return [results[call.id] for call in calls], parts


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
        _settle(blob, notes, f"{PART}.inlineData")
        kind, data = blob.text("mimeType"), blob.text("data")
        if kind.startswith("image/"):
            # Google's own SDK writes the URL-safe alphabet, which a data: URL has not.
            yield Image(f"data:{kind};base64,{data.translate(STANDARD_ALPHABET)}")
        elif (text := _data_text(kind, data)) is not None:
            yield Text(text)
        else:
            notes.add(part.at("inlineData"), f"{kind}: the model reads text and images only")
            yield Text(UNREADABLE_FILE)
    elif part.has("fileData"):
        yield Text(UNREADABLE_FILE)
    else:
        _other_part(part, notes)


def _data_text(kind: str, data: str) -> str | None:
    """The text of inline data of a text type; None for anything else."""
    if not kind.startswith("text/") and kind != "application/json":
        return None
    try:
        return b64decode(data.translate(STANDARD_ALPHABET), validate=True).decode()
    except ValueError:
        return None


STANDARD_ALPHABET = str.maketrans("-_", "+/")


def _other_part(part: ProtoFields, notes: Notes) -> None:
    """A part that says nothing to a model here: what its table row says of Google's server tools, and signatures."""
    if not any(FATES.get(f"{PART}.{name}") for name in part.present()):
        raise part.error("", "a part needs one of text, inlineData, functionCall, functionResponse")


def _assistant(run: Iterable[ProtoFields], notes: Notes) -> Assistant:
    text, reasoning = "", ""
    calls: list[ToolCall] = []
    for content in run:
        _settle(content, notes, CONTENT)
        for part in content.repeated("parts"):
            _settle(part, notes, PART)
            # A streamed answer comes back as the pieces it was streamed in, so pieces join without a seam.
            if call := part.child("functionCall"):
                _settle(call, notes, f"{PART}.functionCall")
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
    for group in fields.repeated("tools"):
        _settle(group, notes, "tools.*")
        tools.extend(_tool(spec, notes) for spec in group.repeated("functionDeclarations"))
    config = fields.child("toolConfig")
    if config:
        _settle(config, notes, "toolConfig")
    calling = config and config.child("functionCallingConfig")
    if not calling:
        return tuple(tools), ToolChoice()
    _settle(calling, notes, "toolConfig.functionCallingConfig")
    return _choice(calling, tuple(tools), notes)


def _tool(spec: ProtoFields, notes: Notes) -> Tool:
    _settle(spec, notes, DECLARATION)
    name, description = spec.text("name"), spec.text_or("description")
    if (parameters := spec.object("parametersJsonSchema")) is not None:
        return Tool(name, description, parameters)
    if (schema := spec.object("parameters")) is not None:
        return Tool(name, description, json_schema(schema))
    return Tool(name, description)


def _choice(calling: ProtoFields, tools: tuple[Tool, ...], notes: Notes) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that the model may call under a functionCallingConfig, and whether it must."""
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
        stop=config.texts("stopSequences"),
    )


def _thinking(config: ProtoFields, notes: Notes) -> Thinking:
    thinking = config.child("thinkingConfig")
    if not thinking:
        return Thinking()
    _settle(thinking, notes, "generationConfig.thinkingConfig")
    level = thinking.text_or("thinkingLevel").lower()
    effort = level if level not in ("", "thinking_level_unspecified") else None
    # -1 leaves the amount to the model.
    budget = bounded_integer(thinking, "thinkingBudget", -1)
    if budget is None:
        return Thinking(True if effort else None, effort)
    return Thinking(budget != 0, effort, budget if budget > 0 else None)


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
