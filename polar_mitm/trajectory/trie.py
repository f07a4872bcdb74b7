"""A radix trie of number sequences: token ids of calls, or their messages by number.

Sequences that share a beginning share its nodes, so a session takes as much memory as what is new in each call, and how
far two sequences agree is a walk over nodes, not over numbers. Numbers are packed as native int32 (see `capture.ids`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

from polar_mitm.capture.ids import WIDTH, common_prefix, unpack


@dataclass(slots=True, eq=False)
class Node:
    """The numbers `edge`, which stand at [start, end) of every sequence that goes through here."""

    parent: Optional["Node"] = None
    start: int = 0
    edge: bytes = b""
    children: dict[bytes, "Node"] = field(default_factory=dict)
    marks: dict[str, list[int]] = field(default_factory=dict)
    """What ends exactly at `end`, by the word it was marked with."""
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.start + len(self.edge) // WIDTH

    def up(self) -> Iterator["Node"]:
        """This node, the one above it, and so on to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def mark(self, word: str, number: int) -> None:
        self.marks.setdefault(word, []).append(number)

    def at(self, length: int) -> "Node":
        """The node on the way here that ends after exactly `length` numbers; an edge is split when none does."""
        node = next(node for node in self.up() if node.start < length or node.parent is None)
        return node if node.end == length else node._split(length)

    def read(self, start: int, end: int) -> list[int]:
        """The numbers at [start, end) of the sequence that ends here."""
        pieces: list[bytes] = []
        for node in self.up():
            if node.end <= start or node.parent is None:
                break
            if node.start < end:
                first, last = max(start, node.start) - node.start, min(end, node.end) - node.start
                pieces.append(node.edge[first * WIDTH : last * WIDTH])
        return unpack(b"".join(reversed(pieces)))

    def shared(self, other: "Node") -> int:
        """How many leading numbers the two sequences that end here and there have in common."""
        here = self
        while here is not other:
            if here.start >= other.start and here.parent is not None:
                here = here.parent
            else:
                assert other.parent is not None
                other = other.parent
        return here.end

    def _split(self, length: int) -> "Node":
        """Cut the edge after `length` numbers of the sequence; the new node holds what is before the cut."""
        assert self.parent is not None and self.start < length < self.end
        cut = (length - self.start) * WIDTH
        upper = Node(self.parent, self.start, self.edge[:cut])
        self.parent.children[self.edge[:WIDTH]] = upper
        self.parent, self.start, self.edge = upper, length, self.edge[cut:]
        upper.children[self.edge[:WIDTH]] = self
        return upper


def grow(node: Node, packed: bytes) -> Node:
    """The node where the sequence that ends at `node` ends when it goes on with `packed`."""
    offset = 0
    while offset < len(packed):
        child = node.children.get(packed[offset : offset + WIDTH])
        if child is None:
            leaf = Node(node, node.end, packed[offset:] if offset else packed)
            node.children[leaf.edge[:WIDTH]] = leaf
            return leaf
        shared = common_prefix(child.edge, packed[offset : offset + len(child.edge)])
        node = child.at(child.start + shared)
        offset += shared * WIDTH
    return node
