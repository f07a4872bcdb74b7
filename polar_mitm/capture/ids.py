"""Token ids of one call's prompt + response, stored as what an earlier call has already plus what is new.

Ids are packed as native int32 in bytes, because bytes compare and copy at memory speed. Lengths are in tokens.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from polar_mitm.capture.record import CallLine, Prompt

WIDTH = array("i").itemsize


def pack(ids: Sequence[int]) -> bytes:
    """Raises OverflowError when an id does not fit 32 bits: no vocabulary has such a token."""
    return array("i", ids).tobytes()


def unpack(packed: bytes) -> list[int]:
    return memoryview(packed).cast("i").tolist()


def common_prefix(left: bytes, right: bytes) -> int:
    """Length in tokens of the longest common prefix of two packed sequences.

    Steps double while they agree and halve after the first that does not, each compared by memcmp without a copy.
    """
    view = memoryview(right)
    agreed, end, step = 0, min(len(left), len(right)), 1
    while agreed < end:
        upto = min(agreed + step, end)
        if not left.startswith(view[agreed:upto], agreed):
            end = upto - 1
            break
        agreed, step = upto, step * 2
    while agreed < end:
        middle = (agreed + end + 1) // 2
        if left.startswith(view[agreed:middle], agreed):
            agreed = middle
        else:
            end = middle - 1
    return agreed // WIDTH


@dataclass(slots=True, frozen=True, eq=False)
class Ids:
    """The first `base_len` ids of `base`, then `own`. A session's calls together take as much memory as their file."""

    base: "Ids | None" = None
    base_len: int = 0
    own: bytes = b""

    @classmethod
    def of(cls, base: "Ids | None", base_len: int, suffix: Sequence[int], response: Sequence[int]) -> "Ids":
        """Empty when an id does not fit 32 bits: nothing is ever coded against such a call."""
        try:
            return cls(base, base_len, pack(suffix) + pack(response))
        except OverflowError:
            return cls()

    def __len__(self) -> int:
        return self.base_len + len(self.own) // WIDTH

    def packed(self, length: int | None = None) -> bytes:
        """The first `length` ids (all by default), packed."""
        length = len(self) if length is None else length
        pieces: list[bytes] = []
        node: Ids | None = self
        while node is not None and length > 0:
            if length > node.base_len:
                pieces.append(node.own[: (length - node.base_len) * WIDTH])
                length = node.base_len
            node = node.base
        return b"".join(reversed(pieces))


class IdStore:
    """The token ids of every call of one file, by call id. Of two calls with the same id the later one is meant."""

    def __init__(self) -> None:
        self._calls: dict[str, Ids] = {}

    def get(self, call_id: str | None) -> Ids | None:
        return self._calls.get(call_id) if call_id is not None else None

    def add(self, line: CallLine) -> Ids:
        """Raises ValueError when the line's prompt refers to ids that are not here."""
        response = line.response.response_ids if line.response else []
        ids = Ids.of(self._base(line.prompt), line.prompt.prefix_len, line.prompt.suffix_ids, response)
        self._calls[line.identity.call_id] = ids
        return ids

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The whole prompt. Raises ValueError when it refers to ids that are not here."""
        base = self._base(prompt)
        shared = unpack(base.packed(prompt.prefix_len)) if base is not None else []
        return shared + prompt.suffix_ids

    def _base(self, prompt: Prompt) -> Ids | None:
        if prompt.prefix_call_id is None:
            if prompt.prefix_len:
                raise ValueError(f"its prompt repeats {prompt.prefix_len} ids but names no call")
            return None
        base = self._calls.get(prompt.prefix_call_id)
        if base is None:
            raise ValueError(f"its prompt continues call {prompt.prefix_call_id}, which no earlier line holds")
        if not 0 <= prompt.prefix_len <= len(base):
            raise ValueError(
                f"its prompt repeats {prompt.prefix_len} ids of call {prompt.prefix_call_id}, which has {len(base)}"
            )
        return base
