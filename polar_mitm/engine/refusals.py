"""What vLLM's refusals mean, in provider-neutral terms. Pure: status and body in, a reading of them out.

The texts are vLLM's own, from 0.32 unless said; older releases word the window's limit differently and are read too.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from polar_mitm.chat import CallError, ErrorKind

_LIMIT: Final = (
    re.compile(r"max_model_len=(\d+)"),
    re.compile(r"maximum context length is (\d+)"),
)
_PROMPT: Final = (
    # Of a prompt that is too long by its characters, vLLM says "the upper bound for 8192 input tokens": the window.
    re.compile(r"(?<!bound for )\b(\d+) input tokens"),
    # Older releases: "you requested 9000 tokens (1000 in the messages, 8000 in the completion)".
    re.compile(r"\((\d+) in the (?:messages|prompt)"),
)
_NO_IMAGES: Final = re.compile(r"not a multimodal model|does not support (?:image|multimodal)|[Aa]t most 0 image")
_MOST_STOPS: Final = (re.compile(r"body\.stop\b.*?at most (\d+) item", re.DOTALL),)
_NO_ROOM_LEFT: Final = re.compile(r"must be at least 1, got 0\b|must be at least 1, got -")


class EngineLost(CallError):
    """The engine gave no answer, or failed as a whole: another one may do better."""


@dataclass(slots=True, frozen=True)
class Refusal:
    """An answer other than 200. `param` is the field that vLLM blames."""

    status: int
    message: str
    param: str | None = None

    @property
    def of_the_request(self) -> bool:
        """Whether it is this request that the engine does not take, and not the engine that fails."""
        return self.status in (400, 422) and "EngineCore" not in self.message

    @property
    def refuses_images(self) -> bool:
        return self.status == 400 and bool(_NO_IMAGES.search(self.message))

    @property
    def limit(self) -> int | None:
        """The model's window in tokens, where the message says it."""
        return _number(_LIMIT, self.message)

    @property
    def prompt_tokens(self) -> int | None:
        """The prompt's length, where the message says it. vLLM counts only until one token over its window."""
        return _number(_PROMPT, self.message)

    @property
    def most_stops(self) -> int | None:
        """How many stop strings the engine takes, where it refuses a request for having more."""
        return _number(_MOST_STOPS, self.message) if self.status in (400, 422) else None

    def room(self, max_tokens: int | None) -> int | None:
        """How many tokens to ask for so that the request fits; None when asking for less does not help."""
        if self.status != 400 or max_tokens is None or self.limit is None:
            return None
        room = self.limit - (self.prompt_tokens or 0)
        return room if 0 < room < max_tokens else None

    def overflows(self, max_tokens: int | None) -> bool:
        """Whether the prompt leaves no room for one token of an answer."""
        if self.status != 400:
            return False
        if self.param in ("input_tokens", "input_text") or "maximum context length" in self.message:
            return True
        # A prompt of exactly the window's length: vLLM works out 0 tokens for the answer and blames max_tokens.
        return bool(_NO_ROOM_LEFT.search(self.message)) and (max_tokens is None or max_tokens > 0)


def read_refusal(status: int, raw: bytes) -> Refusal:
    """Read vLLM's error body; what is no such body is shown as it came, shortened."""
    try:
        body: Any = json.loads(raw)
    except ValueError:
        return Refusal(status, raw[:500].decode(errors="replace").strip() or f"HTTP {status} without a text")
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return Refusal(status, str(error)[:500])
    param = error.get("param")
    return Refusal(
        status, str(error.get("message") or error.get("detail") or error), param if isinstance(param, str) else None
    )


def call_error(refusal: Refusal, *, url: str, model: str) -> CallError:
    """The refusal as the error that the client's provider will word. Overflow is told apart before this."""
    match refusal.status:
        case 400 | 422 if refusal.of_the_request:
            return CallError("invalid_request", refusal.message, param=refusal.param)
        case 401 | 403:
            mend = "start polar with the engine's --api-key"
            return engine_error(url, "refuses polar's key", refusal.message, kind="no_model", mend=mend)
        case 404:
            mend = "was the engine restarted with another model? polar must be started again"
            return engine_error(url, f"does not serve {model!r}", refusal.message, kind="no_model", mend=mend)
        case 413:
            return engine_error(url, "takes no request of this size", refusal.message, kind="too_large")
        case 429 | 503:
            return engine_error(url, "takes no more work", refusal.message, kind="overloaded")
        case _:
            return engine_lost(url, f"answered {refusal.status}", refusal.message)


def engine_error(url: str, what: str, said: str = "", *, kind: ErrorKind = "engine", mend: str = "") -> CallError:
    """An error that tells the client what the engine did, and the record where it is, what it said and the mend."""
    return CallError(kind, f"the engine {what}", detail=_detail(url, what, said, mend))


def engine_lost(url: str, what: str, said: str = "") -> EngineLost:
    return EngineLost("engine", f"the engine {what}", detail=_detail(url, what, said))


def _detail(*parts: str) -> str:
    where, what, *more = parts
    return ": ".join(part for part in (f"{where} {what}", *more) if part)


def overflow(prompt: int, limit: int | None) -> CallError:
    """The error for a prompt of this many tokens, 0 where nobody counted it, that leaves the window no room.

    No number is said that would fit: a client works out from it how much to give up.
    """
    if limit is None:
        return CallError("context_overflow", "the prompt is longer than the model's window", param="messages")
    if prompt > limit:
        words = f"the prompt is {prompt} tokens long"
    elif prompt == limit:
        prompt, words = limit + 1, f"the prompt and one token of an answer are {limit + 1} tokens long"
    else:
        prompt, words = limit + 1, f"the prompt is at least {limit + 1} tokens long"
    message = f"{words}, the model's window is {limit} tokens"
    return CallError("context_overflow", message, param="messages", over=(prompt, limit))


def _number(patterns: tuple[re.Pattern[str], ...], message: str) -> int | None:
    found = (pattern.search(message) for pattern in patterns)
    return next((int(match[1]) for match in found if match), None)
