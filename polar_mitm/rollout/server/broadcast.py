"""Wakes those who follow events and results, and keeps the last events for them.

A follower that falls behind reads the rest from the database; nobody is waited for.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from polar_mitm.client.models import Event

KEPT = 4096


class Broadcast:
    def __init__(self) -> None:
        self._last: deque[tuple[int, Event]] = deque(maxlen=KEPT)
        self._number = 0
        self._changed = asyncio.Event()
        self.done_seq = 0
        """Of the session that ended last."""
        self.closed = False

    def publish(self, events: Sequence[Event], done_seq: int | None = None) -> None:
        for event in events:
            self._number += 1
            self._last.append((self._number, event))
        advanced = done_seq is not None and done_seq > self.done_seq
        if advanced:
            assert done_seq is not None
            self.done_seq = done_seq
        if events or advanced:
            self._wake()

    def close(self) -> None:
        """Streams end."""
        self.closed = True
        self._wake()

    @property
    def number(self) -> int:
        """Of the event that was published last."""
        return self._number

    def since(self, number: int) -> list[Event] | None:
        """Events after this one; None when some of them are not kept any more."""
        missing = self._number - number
        if missing <= 0:
            return []
        if missing > len(self._last):
            return None
        return [event for at, event in list(self._last)[-missing:] if at > number]

    @property
    def oldest_seq(self) -> int:
        """Before the oldest event that is kept here."""
        return next((event.seq - 1 for _, event in self._last if event.seq is not None), 0)

    def waiter(self) -> asyncio.Event:
        """Set when something new comes after this was asked for."""
        return self._changed

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        if self.closed:
            self._changed.set()
