"""The canonical Chat request and reply that every provider is translated to and from.

Plain immutable data. `wire()` functions give the OpenAI Chat Completions JSON that the engine takes and the call record
keeps. This module knows no provider, no engine and no I/O: it is the bottom of the house.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

type Json = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Text:
    text: str


@dataclass(slots=True, frozen=True)
class Image:
    """An image by URL; `data:` URLs carry the bytes."""

    url: str


type Part = Text | Image


@dataclass(slots=True, frozen=True)
class ToolCall:
    """One call the model made. `arguments` is the JSON text exactly as it was produced, never re-serialised."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True, frozen=True)
class System:
    text: str


@dataclass(slots=True, frozen=True)
class User:
    parts: tuple[Part, ...]


@dataclass(slots=True, frozen=True)
class Assistant:
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(slots=True, frozen=True)
class ToolResult:
    call_id: str
    parts: tuple[Part, ...]


type Message = System | User | Assistant | ToolResult


@dataclass(slots=True, frozen=True)
class Tool:
    """A function the model may call. `parameters` is a JSON Schema object."""

    name: str
    description: str = ""
    parameters: Json = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None


@dataclass(slots=True, frozen=True)
class ToolChoice:
    """`named` carries the function's name; the other modes carry none."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""


@dataclass(slots=True, frozen=True)
class Sampling:
    """What the client asked of the sampler. None means it did not say."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class Thinking:
    """How much the client wants the model to think before it answers. None: it did not say."""

    enabled: bool | None = None
    effort: str | None = None
    """`minimal`, `low`, `medium` or `high`; other words go to the template as they are."""
    budget: int | None = None
    """Most tokens of thinking."""


@dataclass(slots=True, frozen=True)
class NotCarried:
    """A field or tool of the client's request that the model was not given, and why (promise 6)."""

    field: str
    why: str
    times: int = 1
    """How often it stood in the request, where it may stand more than once."""


@dataclass(slots=True, frozen=True)
class ChatRequest:
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool | None = None
    sampling: Sampling = Sampling()
    json_schema: Json | None = None
    """Structured output: the schema that the answer's text must satisfy; `{}` asks for any JSON object."""
    choices: tuple[str, ...] = ()
    """Structured output: the answer's text must be one of these."""
    thinking: Thinking = Thinking()
    not_carried: tuple[NotCarried, ...] = ()


type FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "abort"]


@dataclass(slots=True, frozen=True)
class Usage:
    """Token counts, as the engine counted them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(slots=True, frozen=True)
class ChatReply:
    """What goes back to the client, before a provider gives it its form.

    `id` is unique to the call (lower-case hex); providers derive every id they show from it. `created` is unix seconds.
    """

    id: str
    created: int
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    """The stop string that ended the text, when one did."""


type ErrorKind = Literal[
    "invalid_request",  # 400: the client's request cannot be understood or served
    "unauthorized",  # 401: no session has this key
    "not_found",  # 404: no such path or object
    "too_large",  # 413: the body is over the limit
    "unsupported_encoding",  # 415: a content coding nobody here reads
    "context_overflow",  # 400: prompt longer than the model's context
    "overloaded",  # 503/529: the engine takes no more work
    "engine",  # 500-class: the engine failed, died or is away
    "timeout",  # 504: the engine did not answer within the limit
    "no_model",  # 404: the engine has no such model, or none for polar; no retry can help
    "internal",  # 500: polar's own fault
]


class CallError(Exception):
    """A model call that failed, in provider-neutral terms.

    `message` is for the client. `detail` is the whole of it, for the record and the log, where it holds what is no
    client's business: the engine's address, the words of a page in front of it. `param` names the request field at
    fault. `over` goes with context_overflow: the prompt's tokens and the window's, the first always the larger.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        detail: str | None = None,
        param: str | None = None,
        over: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(detail or message)
        self.kind: ErrorKind = kind
        self.message = message
        self.detail = detail or message
        self.param = param
        self.over = over

    @property
    def fault(self) -> Literal["client", "polar", "engine"]:
        match self.kind:
            case "overloaded" | "engine" | "timeout" | "no_model":
                return "engine"
            case "internal":
                return "polar"
            case _:
                return "client"


def text_of(parts: Sequence[Part]) -> str:
    """The text of the parts, joined by newlines as vLLM joins the parts of one message. An empty one adds nothing."""
    return "\n".join(part.text for part in parts if isinstance(part, Text) and part.text)


def message_wire(message: Message) -> Json:
    """The message as OpenAI Chat JSON. Content of text alone is one string: many chat templates take nothing else."""
    match message:
        case System(text):
            return {"role": "system", "content": text}
        case User(parts):
            return {"role": "user", "content": _content_wire(parts)}
        case ToolResult(call_id, parts):
            return {"role": "tool", "tool_call_id": call_id, "content": _content_wire(parts)}
        case Assistant(text, reasoning, tool_calls):
            wire: Json = {"role": "assistant", "content": text}
            if reasoning:
                # vLLM reads `reasoning`; templates it renders with read `reasoning_content`, which it fills in itself.
                wire["reasoning"] = reasoning
            if tool_calls:
                wire["tool_calls"] = [
                    {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                    for c in tool_calls
                ]
            return wire


def tool_wire(tool: Tool) -> Json:
    function: Json = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _content_wire(parts: Sequence[Part]) -> str | list[Json]:
    if all(isinstance(part, Text) for part in parts):
        return text_of(parts)
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, Text)
        else {"type": "image_url", "image_url": {"url": part.url}}
        for part in parts
        if isinstance(part, Image) or part.text
    ]
