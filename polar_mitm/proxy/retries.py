"""Retries: a request that its SDK marks as one, and whose body came before, gets the answer that was sampled then.

One reply is sampled for it, and one record holds the tokens; the retry's own record names that call. Equal bodies
without the mark are sampled each: a harness may want two answers. A call that failed, or whose client left for good
before there was an answer, left no sample, and its retry is a call like any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from polar_mitm.providers import Begun, Request
from polar_mitm.proxy.shared import Shared

if TYPE_CHECKING:  # an exchange is of a session, and a session has its retries
    from polar_mitm.proxy.exchange import Answer

RETRY_HEADER: Final = "x-stainless-retry-count"
"""Sent by the SDKs of OpenAI and Anthropic, which many harnesses are built on; 0 on a first try."""
LINGER_S: Final = 10.0
"""How long a call goes on after its client left, where its SDK marks its tries: the next comes after 8 s at most. Begun
anew with each, an answer that takes longer than the client waits would never be there."""
KEPT: Final = 16
"""Answers of a session. An SDK retries within seconds; a harness has a handful of calls under way at once."""
KEPT_S: Final = 900.0
"""The SDKs give a call up after 600 s."""


@dataclass(slots=True, frozen=True)
class Sampled:
    """A call under way or answered, as much of it as its retries need."""

    call_id: str
    begun: Begun
    shared: "Shared[Answer]"

    def usable(self, now: float) -> bool:
        """Whether it is under way, or gave an answer that is no error. `now` is the event loop's time."""
        task, ended_at = self.shared.task, self.shared.ended_at
        if self.shared.given_up or (ended_at is not None and now - ended_at > KEPT_S):
            return False
        return not task.done() or (task.exception() is None and task.result().status == 200)


class Retries:
    """The latest calls of one session, by what they asked."""

    def __init__(self) -> None:
        self._calls: dict[bytes, Sampled] = {}

    def find(self, key: bytes, now: float) -> Sampled | None:
        """The call whose answer this retry is to get."""
        sampled = self._calls.get(key)
        return sampled if sampled and sampled.usable(now) else None

    def add(self, key: bytes, sampled: Sampled) -> None:
        """Of equal requests the latest is kept."""
        self._calls.pop(key, None)
        self._calls[key] = sampled
        finished = [key for key, sampled in self._calls.items() if sampled.shared.task.done()]
        for key in finished[: max(0, len(self._calls) - KEPT)]:
            del self._calls[key]


def linger_s(headers: Mapping[str, str]) -> float:
    """How long a call goes on after its client left."""
    return LINGER_S if RETRY_HEADER in headers else 0.0


def retry_count(headers: Mapping[str, str]) -> int:
    """Which retry this is, 0 for a first try."""
    count = headers.get(RETRY_HEADER, "")
    return int(count) if count.isascii() and count.isdigit() and len(count) < 6 else 0


def key_of(request: Request, content: bytes) -> bytes:
    """What was asked: the path, the query and the decoded body."""
    digest = sha256(repr((request.path, sorted(request.query.items()))).encode(errors="surrogatepass"))
    digest.update(content)
    return digest.digest()
