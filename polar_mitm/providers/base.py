"""What every provider module offers, and the data that passes between a provider and the proxy.

A provider is a module of pure functions on plain data: no mitmproxy, no I/O, no clock, no randomness of its own.
It owns the *form* of one API. Who is calling, what the engine does and what is recorded belong to other rooms.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from polar_mitm.chat import CallError, ChatReply, ChatRequest, Json


@dataclass(slots=True, frozen=True)
class Request:
    """An HTTP request as a provider sees it: header names are lower-case, its content coding is undone."""

    method: str
    host: str
    path: str
    """Without the query string."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Ask:
    """A parsed model request: the Chat request, and what the client wants to see of the answer.

    Providers subclass this to keep what their own `render` and `stream` need.
    """

    chat: ChatRequest
    model: str
    """The model name the client used; it is echoed back, the engine gets its own."""
    stream: bool
    harness_ids: Mapping[str, str] = field(default_factory=dict)
    """Session, thread, agent and request ids that the harness put into the request."""
    compacts: bool = False
    """Whether the request itself says that it asks for a summary of its conversation."""


type Action = Literal["generate", "count", "models", "fixed"]
"""`generate`: sample a reply. `count`: count a prompt's tokens. `models`: list or describe what is served.
`fixed`: a login or quota question that a harness waits for, answered without engine and session."""


@dataclass(slots=True, frozen=True)
class Route:
    """What a path means. `model` is the one the path names; `stream` and `framing` are Google's, said by the path."""

    action: Action
    model: str | None = None
    stream: bool | None = None
    framing: Literal["sse", "json-array"] = "sse"


@dataclass(slots=True, frozen=True)
class ModelCard:
    """A served model, for the provider's model list."""

    id: str
    max_model_len: int | None
    """Tokens of prompt and answer together."""


@dataclass(slots=True, frozen=True)
class Begun:
    """What is known of a reply before it is there: as of `ChatReply`, the same names and values."""

    id: str
    created: int

    @property
    def request_id(self) -> str:
        """The request's name, in the answer's header and in some bodies."""
        return f"req_{self.id}"


type FateKind = Literal["carried", "emulated", "ignored", "refused"]


@dataclass(slots=True, frozen=True)
class Fate:
    """What becomes of a request field, and, unless it is carried, why. `ignored` ones go onto the call's record."""

    kind: FateKind
    why: str = ""


class Provider(Protocol):
    """The shape of a provider module; `polar_mitm.providers.PROVIDERS` lists them."""

    @property
    def NAME(self) -> str: ...  # noqa: N802  (a module constant)

    @property
    def HOSTS(self) -> tuple[str, ...]: ...  # noqa: N802

    """Host names, without wildcards, at which this provider serves models: an unknown path there gets its 404."""

    @property
    def SESSION_HEADERS(self) -> tuple[str, ...]: ...  # noqa: N802

    """Lower-case names of headers with session, thread, agent or request ids of harnesses that speak this API."""

    @property
    def REQUEST_ID_HEADER(self) -> str: ...  # noqa: N802

    """The header in which an answer names its request, as SDKs show it; empty where there is none."""

    @property
    def FATES(self) -> Mapping[str, Fate]: ...  # noqa: N802

    """By field of the body (dotted inside an object field): every field that the official SDK can send."""

    def recognise(self, request: Request) -> Route | None:
        """The route, or None when this provider does not know the path."""

    def parse(self, request: Request, route: Route, body: Json) -> Ask:
        """Translate to Chat. Raises CallError('invalid_request') naming the field at fault."""

    def count(self, ask: Any, tokens: int) -> Json:
        """The answer to a `count` request whose prompt has so many tokens."""

    def models(self, route: Route, cards: Sequence[ModelCard]) -> Json:
        """The answer to a `models` request: the list, or the model that the route names.

        A harness asks for a model by any name it likes and gets the served one, so every name is described.
        """

    def fixed(self, request: Request) -> Json:
        """The answer to a `fixed` request."""

    def render(self, ask: Any, reply: ChatReply) -> Json:
        """The whole reply as the provider's JSON body."""

    def repairs(self, ask: Any, reply: ChatReply) -> tuple[str, ...]:
        """What `render` and `stream` mended in the model's tool calls so that the client can act on them, each said
        once. The record keeps what was sampled; these go beside it."""

    def stop_reason(self, body: Json) -> str:
        """Why the model stopped, in the provider's words, out of a rendered reply."""

    def stream(self, ask: Any, reply: ChatReply, *, opened: int = 0) -> Iterator[bytes]:
        """The same reply as the provider's stream: one item an event, framed and ready to send.

        `opened`: how many keep-alives went before, which said some of it.
        """

    def stream_type(self, ask: Any) -> str:
        """The stream's content type."""

    def keepalive(self, ask: Any, begun: Begun, nth: int) -> bytes:
        """What is sent while the engine works, the first time with `nth` 0 when the headers go out.

        It must count as life: clients give up a stream on which no event comes for 4 to 10 minutes, and to several a
        comment is none. It begins the reply as far as it can be told already, or says nothing that a client heeds.
        """

    def error(self, error: CallError, request_id: str = "") -> tuple[int, Json]:
        """HTTP status and JSON body of a failed call. `request_id` goes into a body that has a place for it."""

    def stream_error(self, ask: Any, error: CallError, begun: Begun, opened: int) -> bytes:
        """The provider's own error event, ending a stream that so many keep-alives have opened."""
