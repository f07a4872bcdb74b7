"""OpenAI Chat Completions: `POST .../chat/completions`, as the `openai` SDK, Qwen Code, Pi and opencode speak it.

The canonical Chat is close to this API, so parsing is mostly checking; the deprecated `functions` form is refused.
What this API shares with Responses is in `openai_common`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatReply,
    ChatRequest,
    Image,
    Json,
    Part,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    User,
    text_of,
)
from polar_mitm.providers import sse
from polar_mitm.providers.base import Ask, Request, Route
from polar_mitm.providers.common import (
    INT64_MAX,
    Notes,
    arguments_text,
    bounded_integer,
    bounded_number,
    header_ids,
)
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_common import (
    ALLOWED_TOOLS_WHY,
    Fates,
    Transcript,
    api_error,
    function_tool,
    image,
    json_schema,
    names,
    note_rest,
    text_part,
    word_choice,
)

NAME = "openai-chat"

# dashscope is Qwen Code's own service, opencode.ai serves opencode's Zen models.
HOSTS = ("api.openai.com", "dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", "opencode.ai")

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

READ = names(
    "model messages tools tool_choice parallel_tool_calls response_format max_tokens max_completion_tokens "
    "temperature top_p top_k presence_penalty frequency_penalty stop seed stream stream_options functions "
    "function_call"
)

FATES: Fates = {
    "n": "one reply is sampled",
    "logprobs": "log-probabilities go to the call record, not to the client",
    "top_logprobs": "log-probabilities go to the call record, not to the client",
    "logit_bias": "the engine's own distribution is sampled",
    "user": "the engine knows no users",
    "safety_identifier": "the engine knows no users",
    "metadata": "nothing is stored at the service",
    "store": "nothing is stored at the service",
    "service_tier": "there is one engine",
    "reasoning_effort": "the run's chat template decides how the model reasons",
    "verbosity": "the model takes no such setting",
    "prompt_cache_key": "kept as a harness id; the engine finds shared prefixes itself",
    "prompt_cache_retention": "the engine finds shared prefixes itself",
    "prompt_cache_options": "the engine finds shared prefixes itself",
    "prediction": "the engine does not speculate on given text",
    "modalities": "the model answers in text",
    "audio": "the model answers in text",
    "web_search_options": "there is no search service",
    "moderation": "there is no moderation service",
    "chat_template_kwargs": "the run decides how the chat template renders",
}

IDLE: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "metadata": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
}

MESSAGE_READ = names("role content refusal reasoning reasoning_content tool_calls tool_call_id function_call")
MESSAGE_FATES: Fates = {
    "name": "chat templates have no place for a speaker's name",
    "audio": "the model reads text and images",
    "annotations": "the model reads text and images",
    "cache_control": "the engine finds shared prefixes itself",
}
PART_FATES: Fates = {
    "detail": "the engine scales images by its own rule",
    "cache_control": "the engine finds shared prefixes itself",
}
PARTS_LEFT_OUT: Fates = {
    "input_audio": "the model reads text and images",
    "file": "the model reads text and images; there is no file store",
}
TOOL_FATES: Fates = {"cache_control": "the engine finds shared prefixes itself"}
ONLY_FUNCTIONS = "only function tools can be given to the model"


@dataclass(slots=True, frozen=True)
class ChatAsk(Ask):
    include_usage: bool = False
    """Whether a stream ends with a chunk of token counts. Clients that did not ask fail on its empty `choices`."""


def recognise(request: Request) -> Route | None:
    if request.method == "POST" and request.path.rstrip("/").endswith("/chat/completions"):
        return Route("generate")
    return None


def parse(request: Request, route: Route, body: Json) -> ChatAsk:
    fields = Fields.of_body(body)
    notes = Notes()
    _refuse_deprecated(fields)
    note_rest(notes, fields, READ, FATES, IDLE)
    tools, left_out = _tools(fields, notes)
    options = fields.child("stream_options") or Fields({}, "stream_options")
    note_rest(notes, options, ("include_usage", "include_obfuscation"), {})
    chat = ChatRequest(
        messages=_messages(fields, notes),
        tools=tools,
        tool_choice=_tool_choice(fields, tools, left_out, notes),
        parallel_tool_calls=fields.flag("parallel_tool_calls"),
        sampling=_sampling(fields),
        json_schema=json_schema(fields.child("response_format"), nested="json_schema"),
        not_carried=notes.all(),
    )
    return ChatAsk(
        chat=chat,
        model=fields.text("model"),
        stream=fields.flag("stream") or False,
        harness_ids=_harness_ids(request, fields),
        include_usage=options.flag("include_usage") or False,
    )


def _refuse_deprecated(fields: Fields) -> None:
    if fields.list("functions"):
        raise fields.error("functions", "this deprecated form is not served; declare the functions in tools")
    if fields.get("function_call") not in (None, "auto", "none"):
        raise fields.error("function_call", "this deprecated form is not served; use tool_choice")


def _harness_ids(request: Request, fields: Fields) -> dict[str, str]:
    ids = header_ids(request, SESSION_HEADERS)
    if fields.has("prompt_cache_key"):
        ids["prompt_cache_key"] = fields.text("prompt_cache_key")
    metadata = fields.object("metadata") or {}
    ids.update({name: metadata[name] for name in METADATA_IDS if isinstance(metadata.get(name), str)})
    return ids


def _messages(fields: Fields, notes: Notes) -> tuple[Any, ...]:
    transcript = Transcript()
    for message in fields.children("messages"):
        note_rest(notes, message, MESSAGE_READ, MESSAGE_FATES)
        match message.text("role"):
            case "system" | "developer":
                transcript.system(text_of(_content(message, notes)))
            case "user":
                if not message.has("content"):
                    raise message.error("content", "field required")
                transcript.add(User(_content(message, notes)))
            case "assistant":
                transcript.add(_assistant(message, notes))
            case "tool":
                transcript.add(ToolResult(message.text("tool_call_id"), _content(message, notes)))
            case "function":
                raise message.error("role", "the deprecated role 'function' is not served; send tool messages")
            case role:
                raise message.error("role", f"unknown role {role!r}; it is one of {', '.join(ROLES)}")
    messages = transcript.messages()
    if not messages:
        raise fields.error("messages", "at least one message is needed")
    return messages


ROLES = ("system", "developer", "user", "assistant", "tool")


def _content(message: Fields, notes: Notes) -> tuple[Part, ...]:
    content = message.get("content")
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    return tuple(part for fields in message.children("content") if (part := _part(fields, notes)) is not None)


def _part(fields: Fields, notes: Notes) -> Text | Image | None:
    kind = fields.text("type")
    note_rest(notes, fields, ("type", kind), PART_FATES)
    match kind:
        case "text":
            return text_part(fields)
        case "refusal":
            return text_part(fields, "refusal")
        case "image_url" if isinstance(fields.get("image_url"), str):
            return image(fields, "image_url", fields.text("image_url"))
        case "image_url":
            holder = fields.required("image_url")
            note_rest(notes, holder, ("url",), PART_FATES, {"detail": ("auto",)})
            return image(holder, "url", holder.text("url"))
        case _ if kind in PARTS_LEFT_OUT:
            notes.add(f"{fields.path}.{kind}", PARTS_LEFT_OUT[kind])
            return None
        case _:
            raise fields.error("type", f"unknown content part {kind!r}")


def _assistant(message: Fields, notes: Notes) -> Assistant:
    if message.has("function_call"):
        raise message.error("function_call", "this deprecated form is not served; send tool_calls")
    # Clients send reasoning back under the one name or the other, whichever their provider library knows.
    reasoning = message.text_or("reasoning_content") or message.text_or("reasoning")
    text = text_of(_content(message, notes)) or message.text_or("refusal")
    return Assistant(text, reasoning, tuple(_history_call(call) for call in message.children("tool_calls")))


def _history_call(call: Fields) -> ToolCall:
    match call.text_or("type", "function"):
        case "function":
            function = call.required("function")
            return ToolCall(call.text("id"), function.text("name"), function.text_or("arguments"))
        case "custom":
            custom = call.required("custom")
            return ToolCall(call.text("id"), custom.text("name"), arguments_text({"input": custom.text("input")}))
        case kind:
            raise call.error("type", f"unknown kind of tool call {kind!r}")


def _tools(fields: Fields, notes: Notes) -> tuple[tuple[Tool, ...], set[str]]:
    """The tools the model is given, and the names of those it is not."""
    tools: list[Tool] = []
    left_out: set[str] = set()
    for tool in fields.children("tools"):
        kind = tool.text_or("type", "function")
        if kind == "function":
            function = tool.required("function")
            note_rest(notes, tool, ("type", "function"), TOOL_FATES)
            note_rest(notes, function, ("name", "description", "parameters", "strict"), TOOL_FATES)
            tools.append(function_tool(function, function.text("name")))
        else:
            name = (tool.child(kind) or tool).text_or("name", kind)
            left_out.add(name)
            notes.add(f"tools.{name}", f"a tool of type {kind!r}: {ONLY_FUNCTIONS}")
    return tuple(tools), left_out


def _tool_choice(fields: Fields, tools: tuple[Tool, ...], left_out: set[str], notes: Notes) -> ToolChoice:
    if isinstance(fields.get("tool_choice"), str | None):
        return word_choice(fields, "tool_choice", tools)
    choice = fields.required("tool_choice")
    match choice.text("type"):
        case "function":
            name = choice.required("function").text("name")
            if name in left_out:
                raise choice.error("function.name", f"{name!r} cannot be forced: {ONLY_FUNCTIONS}")
            if all(tool.name != name for tool in tools):
                raise choice.error("function.name", f"no tool named {name!r} is declared")
            return ToolChoice("named", name)
        case "allowed_tools":
            allowed = choice.required("allowed_tools")
            notes.add(allowed.at("tools"), ALLOWED_TOOLS_WHY)
            return word_choice(allowed, "mode", tools)
        case kind:
            raise choice.error("type", f"a tool of type {kind!r} cannot be forced: {ONLY_FUNCTIONS}")


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
    stops = (asked,) if isinstance(asked, str) else fields.texts("stop")
    if "" in stops:
        raise fields.error("stop", "a stop string must not be empty")
    return stops


def render(ask: ChatAsk, reply: ChatReply) -> Json:
    message: Json = {"role": "assistant", "content": _shown_text(reply), "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [_call(call) for call in reply.tool_calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(reply)}
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion",
        "created": reply.created,
        "model": ask.model,
        "choices": [choice],
        "usage": _usage(reply),
    }


def stream(ask: ChatAsk, reply: ChatReply) -> Iterator[bytes]:
    head: Json = {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion.chunk",
        "created": reply.created,
        "model": ask.model,
    }
    tail: Json = {"usage": None} if ask.include_usage else {}
    for delta, finish in _deltas(reply):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        yield sse.event({**head, "choices": [choice], **tail})
    if ask.include_usage:
        yield sse.event({**head, "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def _deltas(reply: ChatReply) -> Iterator[tuple[Json, str | None]]:
    text = _shown_text(reply)
    yield {"role": "assistant", "content": None if text is None else "", "refusal": None}, None
    if reply.reasoning:
        yield {"reasoning_content": reply.reasoning}, None
    if text:
        yield {"content": text}, None
    # A whole call a chunk: some clients mix up the arguments of calls that come in pieces.
    for index, call in enumerate(reply.tool_calls):
        yield {"tool_calls": [{"index": index, **_call(call)}]}, None
    yield {}, finish_reason(reply)


def stop_reason(body: Json) -> str:
    return str(body["choices"][0]["finish_reason"])


def finish_reason(reply: ChatReply) -> str:
    """The reason in this API's words. A cut-off answer says `length` though it holds calls: the last may be cut too."""
    match reply.finish_reason:
        case "length" | "content_filter":
            return reply.finish_reason
        case _:
            return "tool_calls" if reply.tool_calls else "stop"


def _shown_text(reply: ChatReply) -> str | None:
    return reply.text or (None if reply.tool_calls else "")


def _call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(reply: ChatReply) -> Json:
    usage = reply.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def stream_type(ask: ChatAsk) -> str:
    return "text/event-stream"


def keepalive(ask: ChatAsk) -> bytes:
    """A comment, never an event: opencode ends the run on an event that is no chunk."""
    return b": keep-alive\n\n"


def error(error: CallError) -> tuple[int, Json]:
    return api_error(error)


def stream_error(ask: ChatAsk, error: CallError) -> bytes:
    """The error object alone; no `[DONE]` follows, which would say that the answer is whole."""
    return sse.event(api_error(error)[1])
