"""What a call log remembers of the calls in its file: which call continues which, and whose token ids a prompt repeats.

It holds one session, in memory; no I/O. Fed with lines, so that reopening a file restores it exactly.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal

from polar_mitm.capture.ids import IdStore, common_prefix
from polar_mitm.capture.record import CallLine

BRANCHES = 16
"""Ends of token sequences compared with each new prompt: the latest ones, and the parent in any case.

A call that another one continues is no end any more, so this bounds the conversations that a harness interleaves (main,
title, sub-agents), not its turns. Each costs its ids in memory (0.4 MB per 100k tokens) and one memcmp a call; one that
is not compared costs disk, never data.
"""

RIVALS = 16
"""Calls with the very same messages (retries) among which a parent is chosen by its tokens; more would be a client in a
retry loop."""

type Relation = Literal["root", "extends", "diverges"]


class History:
    def __init__(self) -> None:
        self.bodies: set[str] = set()
        """Content hashes whose body stands in the file."""
        self._ids = IdStore()
        self._sampled: set[str] = set()
        self._answered: dict[bytes, list[str]] = {}
        self._branches: dict[str, bytes] = {}

    def add(self, line: CallLine) -> None:
        """Raises ValueError when the line's prompt refers to a call that was never added."""
        call_id, response = line.identity.call_id, line.response
        ids = self._ids.add(line)
        self.bodies.update(line.request.new)
        self._sampled.discard(call_id)
        if response is not None:
            self._answered.setdefault(_last(_conversations(line.request.messages)), []).append(call_id)
            if response.response_ids and len(ids) > len(response.response_ids):
                self._sampled.add(call_id)
        packed = ids.packed()
        ended = [name for name, branch in self._branches.items() if name == call_id or packed.startswith(branch)]
        for name in ended:
            del self._branches[name]
        if packed:
            self._branches[call_id] = packed
        if len(self._branches) > BRANCHES:
            del self._branches[next(iter(self._branches))]

    def parent(self, messages: Sequence[str], roles: Sequence[str], prompt: bytes) -> str | None:
        """The call that this conversation continues.

        That is an answered call whose messages are a proper prefix of these, with an assistant message right after;
        the longest such prefix wins. Of several calls with those same messages (retries), the one whose prompt +
        response shares most tokens with `prompt` (packed), then the latest. A call with equal messages is a sibling.
        """
        digests = list(_conversations(messages))
        for length in range(len(messages) - 1, 0, -1):
            if roles[length] == "assistant" and (rivals := self._answered.get(digests[length])):
                latest_first = rivals[: -RIVALS - 1 : -1]
                return max(latest_first, key=lambda call_id: self._shared(call_id, prompt))
        return None

    def relation(self, parent_call_id: str | None, prompt: bytes) -> tuple[Relation | None, int | None]:
        """How a prompt (packed) stands to the parent's prompt + response, and how many tokens they share.

        `(None, None)` when it cannot be told: the parent is in another file, or ids of either are missing.
        """
        if parent_call_id is None:
            return "root", None
        parent = self._ids.get(parent_call_id)
        if parent is None or parent_call_id not in self._sampled or not prompt:
            return None, None
        shared = self._shared(parent_call_id, prompt)
        return ("extends" if shared == len(parent) else "diverges"), shared

    def longest_prefix(self, prompt: bytes, parent_call_id: str | None) -> tuple[str | None, int]:
        """The earlier call whose prompt + response shares most leading tokens with `prompt`, and how many."""
        best, most = None, 0
        if parent_call_id is not None and (shared := self._shared(parent_call_id, prompt)):
            best, most = parent_call_id, shared
        for call_id, packed in reversed(self._branches.items()):
            if (shared := common_prefix(packed, prompt)) > most:
                best, most = call_id, shared
        return best, most

    def _shared(self, call_id: str, prompt: bytes) -> int:
        ids = self._ids.get(call_id)
        return common_prefix(ids.packed(), prompt) if ids is not None else 0


def _conversations(messages: Sequence[str]) -> Iterator[bytes]:
    """A digest of each leading part of the conversation, from none of it to all of it."""
    digest = hashlib.sha256()
    yield digest.digest()
    for name in messages:
        digest.update(name.encode())
        yield digest.digest()


def _last(digests: Iterator[bytes]) -> bytes:
    *_, last = digests
    return last
