"""OpenAI Chat Completions: `POST .../chat/completions`, as the `openai` SDK, Qwen Code, Pi and opencode speak it.

The canonical Chat is close to this API, so parsing is mostly checking; the deprecated `functions` form is refused.
What this API shares with Responses is in `openai_common`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatReply,
    ChatRequest,
    Json,
    Message,
    Part,
    Sampling,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    text_of,
)
from polar_mitm.providers import sse
from polar_mitm.providers.base import Ask, Request, Route
from polar_mitm.providers.common import (
    INT64_MAX,
    Notes,
    bounded_integer,
    bounded_number,
    header_ids,
    sent_arguments,
)
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_common import (
    ALLOWED_TOOLS_WHY,
    ALWAYS_STRICT,
    CARRIED,
    Fates,
    api_error,
    argument_repair,
    carried,
    emulated,
    file_part,
    function_tool,
    ignored,
    image,
    json_schema,
    models,
    models_route,
    note_fates,
    placeholder,
    refuse,
    refused,
    text_part,
    thinking,
    under,
    unserved,
    word_choice,
)
from polar_mitm.providers.openai_freeform import freeform_arguments, freeform_tool, raw_text
from polar_mitm.providers.openai_transcript import Transcript

__all__ = [
    "FATES",
    "HOSTS",
    "NAME",
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

NO_USERS = "the engine knows no users"
NO_STORE = "nothing is stored at the service"
PREFIXES = "the engine finds shared prefixes itself"
LOGPROBS = "log-probabilities go to the call record, not to the client"
READS = "the model reads text and images"

FATES: Fates = {
    **carried(
        "model messages tools tool_choice parallel_tool_calls response_format max_tokens max_completion_tokens "
        "temperature top_p presence_penalty frequency_penalty stop seed stream stream_options "
        "stream_options.include_usage"
    ),
    **under(
        "response_format",
        {
            **carried("type json_schema json_schema.schema"),
            **dict.fromkeys(("json_schema.name", "json_schema.description", "json_schema.strict"), ALWAYS_STRICT),
        },
    ),
    **under(
        "tool_choice",
        {
            **carried("type function function.name custom custom.name allowed_tools allowed_tools.mode"),
            "allowed_tools.tools": ignored(ALLOWED_TOOLS_WHY),
        },
    ),
    "stream_options.include_obfuscation": emulated("streams carry no obfuscation"),
    "reasoning_effort": emulated("the chat template is told, where it takes such a setting"),
    "prompt_cache_key": emulated("kept as a harness id; the engine finds shared prefixes itself"),
    "functions": refused("this deprecated form is not served; declare the functions in tools"),
    "function_call": refused("this deprecated form is not served; use tool_choice"),
    "modalities": refused("the model answers in text"),
    "audio": ignored("the model answers in text"),
    "n": ignored("one reply is sampled"),
    "logprobs": ignored(LOGPROBS),
    "top_logprobs": ignored(LOGPROBS),
    "logit_bias": ignored("the engine's own distribution is sampled"),
    "user": ignored(NO_USERS),
    "safety_identifier": ignored(NO_USERS),
    "metadata": ignored(NO_STORE),
    "store": ignored(NO_STORE),
    "service_tier": ignored("there is one engine"),
    "verbosity": ignored("the model takes no such setting"),
    "prompt_cache_retention": emulated(PREFIXES),
    "prompt_cache_options": ignored(PREFIXES),
    "prediction": ignored("the engine does not speculate on given text"),
    "web_search_options": ignored("there is no search service"),
    "moderation": ignored("there is no moderation service"),
    **under(
        "messages.*",
        {
            **carried("role content refusal tool_calls tool_call_id"),
            "function_call": refused("this deprecated form is not served; send tool_calls"),
            "name": ignored("chat templates have no place for a speaker's name"),
            "audio": ignored(READS),
        },
    ),
    **under(
        "messages.*.content.*",
        {
            **carried("type text refusal image_url image_url.url"),
            "image_url.detail": ignored("the engine scales images by its own rule"),
            "input_audio": ignored(READS),
            "file": CARRIED,
            "file.filename": CARRIED,
            "file.file_data": emulated("text is given as text; anything else is a placeholder, and noted"),
            "file.file_id": emulated("there is no file store: a placeholder, and noted"),
            "prompt_cache_breakpoint": ignored(PREFIXES),
        },
    ),
    **under(
        "messages.*.tool_calls.*",
        carried("id type function function.name function.arguments custom custom.name custom.input"),
    ),
    **under(
        "tools.*",
        {
            **carried("type function function.name function.description function.parameters function.strict"),
            "custom": emulated("a function of one string, whose calls come back as custom ones"),
            **carried("custom.name custom.description custom.format custom.format.type custom.format.grammar"),
            **carried("custom.format.grammar.definition custom.format.grammar.syntax"),
        },
    ),
    # What no SDK of OpenAI's declares and harnesses send to services like it.
    "top_k": CARRIED,
    "enable_thinking": emulated("the chat template is told, where it takes such a setting"),
    "thinking": emulated("the chat template is told, where it takes such a setting"),
    "thinking.type": CARRIED,
    "reasoning": emulated("the chat template is told, where it takes such a setting"),
    "reasoning.effort": CARRIED,
    "reasoning.enabled": CARRIED,
    "chat_template_kwargs": ignored("the run decides how the chat template renders"),
    "chat_template_kwargs.enable_thinking": emulated("as `enable_thinking`"),
    "preserve_thinking": ignored("the chat template decides which past reasoning it shows"),
    "tool_stream": emulated("every tool call is streamed in one piece"),
    "messages.*.reasoning": CARRIED,
    "messages.*.reasoning_content": CARRIED,
    "messages.*.annotations": ignored(READS),
    "messages.*.cache_control": emulated(PREFIXES),
    "messages.*.content.*.cache_control": emulated(PREFIXES),
    "messages.*.content.*.image_url.cache_control": emulated(PREFIXES),
    "tools.*.cache_control": emulated(PREFIXES),
    "tools.*.function.cache_control": emulated(PREFIXES),
}

IDLE: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "metadata": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
}

PART = "messages.*.content.*"

ONLY_CLIENT_TOOLS = "only function and custom tools can be given to the model"


@dataclass(slots=True, frozen=True)
class ChatAsk(Ask):
    include_usage: bool = False
    """Whether a stream ends with a chunk of token counts. Clients that did not ask fail on its empty `choices`."""
    freeform: Mapping[str, str] = field(default_factory=dict)
    """The grammar of each custom tool by its name, empty where it takes any text."""


def recognise(request: Request) -> Route | None:
    if request.method == "POST" and request.path.rstrip("/").endswith("/chat/completions"):
        return Route("generate")
    return models_route(request)


def parse(request: Request, route: Route, body: Json) -> ChatAsk:
    fields = Fields.of_body(body)
    notes = Notes()
    _refuse_unserved(fields)
    note_fates(notes, fields, FATES, IDLE)
    tools = _Tools(fields, notes)
    options = fields.child("stream_options") or Fields({}, "stream_options")
    note_fates(notes, options, FATES, within="stream_options")
    messages = _messages(fields, notes)
    chat = ChatRequest(
        messages=messages,
        tools=tuple(tools.given),
        tool_choice=_tool_choice(fields, tools, notes),
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
        freeform=tools.freeform,
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
    for name in ("thinking", "reasoning"):
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


def _messages(fields: Fields, notes: Notes) -> tuple[Message, ...]:
    transcript = Transcript(notes, "messages")
    for message in fields.children("messages"):
        note_fates(notes, message, FATES, within="messages.*")
        match message.text("role"):
            case "system" | "developer":
                transcript.system(text_of(_content(message, notes)))
            case "user":
                if not message.has("content"):
                    raise message.error("content", "field required")
                transcript.user(_content(message, notes))
            case "assistant":
                transcript.assistant(_assistant(message, notes))
            case "tool":
                transcript.result(ToolResult(message.text("tool_call_id"), _content(message, notes)))
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
    return tuple(_part(fields, notes) for fields in message.children("content"))


def _part(fields: Fields, notes: Notes) -> Part:
    kind = fields.text("type")
    note_fates(notes, fields, FATES, within=PART)
    match kind:
        case "text":
            return text_part(fields)
        case "refusal":
            return text_part(fields, "refusal")
        case "image_url" if isinstance(fields.get("image_url"), str):
            return image(fields, "image_url", fields.text("image_url"))
        case "image_url":
            holder = fields.required("image_url")
            note_fates(notes, holder, FATES, {f"{PART}.image_url.detail": ("auto",)}, within=f"{PART}.image_url")
            return image(holder, "url", holder.text("url"))
        case "file":
            return file_part(fields.child("file") or Fields({}, fields.at("file")), notes, fields.at("file"))
        case "input_audio":
            notes.add(fields.at("input_audio"), READS)
            return placeholder("an audio recording")
        case _:
            raise fields.error("type", f"unknown content part {kind!r}")


def _assistant(message: Fields, notes: Notes) -> Assistant:
    if message.has("function_call"):
        raise refuse(message, "function_call", FATES, within="messages.*")
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
            return ToolCall(call.text("id"), custom.text("name"), freeform_arguments(custom.text("input")))
        case kind:
            raise call.error("type", f"unknown kind of tool call {kind!r}")


class _Tools:
    """The tools of a request: those the model is given, the grammars of the custom ones, and the names of the rest."""

    def __init__(self, fields: Fields, notes: Notes) -> None:
        self.given: list[Tool] = []
        self.freeform: dict[str, str] = {}
        self.left_out: set[str] = set()
        self._notes = notes
        for tool in fields.children("tools"):
            self._add(tool, tool.text_or("type", "function"))

    def _add(self, tool: Fields, kind: str) -> None:
        if kind not in ("function", "custom"):
            name = (tool.child(kind) or tool).text_or("name", kind)
            self.left_out.add(name)
            self._notes.add(f"tools.{name}", f"a tool of type {kind!r}: {ONLY_CLIENT_TOOLS}")
            return
        about = tool.required(kind)
        name = about.text("name")
        note_fates(self._notes, tool, FATES, within="tools.*")
        note_fates(self._notes, about, FATES, within=f"tools.*.{kind}")
        if kind == "function":
            self.given.append(function_tool(about, name))
            return
        form = about.child("format")
        grammar = form.required("grammar") if form and form.text_or("type") == "grammar" else None
        self.given.append(freeform_tool(about, name, grammar))
        self.freeform[name] = grammar.text("definition") if grammar else ""


def _tool_choice(fields: Fields, tools: _Tools, notes: Notes) -> ToolChoice:
    if isinstance(fields.get("tool_choice"), str | None):
        return word_choice(fields, "tool_choice", tools.given)
    choice = fields.required("tool_choice")
    match choice.text("type"):
        case "function" | "custom" as kind:
            name = choice.required(kind).text("name")
            if name in tools.left_out:
                raise choice.error(f"{kind}.name", f"{name!r} cannot be forced: {ONLY_CLIENT_TOOLS}")
            if all(tool.name != name for tool in tools.given):
                raise choice.error(f"{kind}.name", f"no tool named {name!r} is declared")
            return ToolChoice("named", name)
        case "allowed_tools":
            allowed = choice.required("allowed_tools")
            notes.add(allowed.at("tools"), ALLOWED_TOOLS_WHY)
            return word_choice(allowed, "mode", tools.given)
        case kind:
            raise choice.error("type", f"a tool of type {kind!r} cannot be forced: {ONLY_CLIENT_TOOLS}")


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
        message["tool_calls"] = [_call(ask, call) for call in reply.tool_calls]
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
    for delta, finish in _deltas(ask, reply):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        yield sse.event({**head, "choices": [choice], **tail})
    if ask.include_usage:
        yield sse.event({**head, "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def _deltas(ask: ChatAsk, reply: ChatReply) -> Iterator[tuple[Json, str | None]]:
    text = _shown_text(reply)
    yield {"role": "assistant", "content": None if text is None else "", "refusal": None}, None
    if reply.reasoning:
        yield {"reasoning_content": reply.reasoning}, None
    if text:
        yield {"content": text}, None
    # A whole call a chunk: some clients mix up the arguments of calls that come in pieces.
    for index, call in enumerate(reply.tool_calls):
        yield {"tool_calls": [{"index": index, **_call(ask, call)}]}, None
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


def _call(ask: ChatAsk, call: ToolCall) -> Json:
    """A call in the form that its tool was declared in."""
    if call.name in ask.freeform:
        text, _ = raw_text(call.arguments, ask.freeform[call.name])
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": text}}
    arguments = sent_arguments(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def repairs(ask: ChatAsk, reply: ChatReply) -> tuple[str, ...]:
    found = []
    for call in reply.tool_calls:
        if call.name in ask.freeform:
            _, mended = raw_text(call.arguments, ask.freeform[call.name])
        else:
            mended = argument_repair(call)
        if mended:
            found.append(f"{call.name}: {mended}")
    return tuple(found)


def count(ask: ChatAsk, tokens: int) -> Json:
    raise unserved("token count")


def fixed(request: Request) -> Json:
    raise unserved("fixed answers")


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
