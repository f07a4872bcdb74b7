"""What one session may ask of the model: calls, tokens, time, calls at once, and how often the same.

A session that has reached a limit is told so as its model's last words, which ends the agent's turn as at home; an
error would be retried. Calls at once are no reason to end it: they wait for a place.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from hashlib import sha256

from polar_mitm.chat import Assistant, ChatRequest, ToolResult, message_wire
from polar_mitm.json_text import dumps


@dataclass(slots=True, frozen=True)
class CallLimits:
    """None is no limit."""

    calls: int | None = None
    response_tokens: int | None = None
    """Sampled tokens of all calls together. The call that passes it is still answered."""
    seconds: float | None = None
    """From the session's start."""
    concurrent: int | None = None
    """Calls that are sampled at once; others wait."""
    repeats: int | None = None
    """How often one request may come, and how many turns in a row may make the same calls with the same results."""


@dataclass(slots=True)
class Meter:
    """What a session has used."""

    limits: CallLimits = field(default_factory=CallLimits)
    calls: int = 0
    response_tokens: int = 0
    began: float = field(default_factory=time.monotonic)
    given_back_s: Callable[[], float] = lambda: 0.0
    """Seconds, as of now, in which its calls were held through no fault of its own."""
    _asked: Counter[bytes] = field(default_factory=Counter)
    _places: asyncio.Semaphore | None = None

    def __post_init__(self) -> None:
        if self.limits.concurrent is not None:
            self._places = asyncio.Semaphore(self.limits.concurrent)

    @property
    def place(self) -> "asyncio.Semaphore | nullcontext[None]":
        """Held while a call is sampled."""
        return self._places or nullcontext()

    def begin(self, chat: ChatRequest) -> str | None:
        """Count a call; the limit that keeps it from being served, in words, if one does."""
        limits = self.limits
        if limits.calls is not None and self.calls >= limits.calls:
            return f"the session's limit of {limits.calls} calls is reached"
        if limits.response_tokens is not None and self.response_tokens >= limits.response_tokens:
            return f"the session's limit of {limits.response_tokens} sampled tokens is reached"
        if limits.seconds is not None and time.monotonic() - self.began - self.given_back_s() >= limits.seconds:
            return f"the session's limit of {limits.seconds:g} seconds is reached"
        if limits.repeats is not None:
            digest = sha256(dumps([message_wire(message) for message in chat.messages])).digest()
            self._asked[digest] += 1
            if self._asked[digest] > limits.repeats:
                return f"the same request came more than {limits.repeats} times"
            if same_turns(chat) > limits.repeats:
                return f"more than {limits.repeats} turns in a row made the same calls with the same results"
        self.calls += 1
        return None


def same_turns(chat: ChatRequest) -> int:
    """How many of the last turns made the same tool calls and got the same results; 0 when the last made none."""
    turns: list[bytes] = []
    results: list[object] = []
    for message in reversed(chat.messages):
        match message:
            case ToolResult():
                results.append(message_wire(message).get("content"))
            case Assistant() if message.tool_calls:
                calls = [(call.name, call.arguments) for call in message.tool_calls]
                turns.append(dumps([calls, results]))
                results = []
                if turns[-1] != turns[0]:
                    return len(turns) - 1
            case _:
                break
    return len(turns)
