"""Reading files of saved flows (`flows.mitm`, or what mitmproxy itself saved), with the place of whatever is wrong."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mitmproxy.flow import Flow
from mitmproxy.io import FlowReader

from polar_mitm.errors import Failed

LONGEST_LENGTH = 13
"""Bytes of the number that a flow begins with, its colon included."""


class FlowFileError(Failed):
    """A file of flows that cannot be read: which, where, what is wrong, and how to mend it."""

    def __init__(self, path: Path, number: int, offset: int, what: str) -> None:
        mend = f"put the original back, or cut the file to {offset} bytes to keep the flows before"
        super().__init__(f"{path}: flow {number}, at byte {offset}: {what} ({mend})")
        self.path = path
        self.number = number
        self.offset = offset


class SavedFlows:
    """The flows of a file, in order, each with the byte it begins at.

    `torn` says after an iteration at which byte the file ends in the middle of a flow, as a kill leaves it; else -1.
    Raises OSError and FlowFileError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = -1

    def __iter__(self) -> Iterator[tuple[int, Flow]]:
        self.torn = -1
        with self.path.open("rb") as file:
            flows = iter(FlowReader(file).stream())
            number = 0
            while True:
                number, offset = number + 1, file.tell()
                try:
                    flow = next(flows, None)
                except Exception as error:  # a damaged flow raises whatever its parts raise
                    if _is_cut(file, offset):
                        self.torn = offset
                        return
                    raise FlowFileError(self.path, number, offset, f"it is no flow: {error}") from error
                if flow is None:
                    return
                yield offset, flow


def flow_at(file: BinaryIO, offset: int) -> Flow:
    """The flow that begins at this byte, as `SavedFlows` gave it."""
    file.seek(offset)
    return next(iter(FlowReader(file).stream()))


def _is_cut(file: BinaryIO, offset: int) -> bool:
    """Whether the file ends before the flow at this byte does. A flow is `<length>:<length bytes><type>`."""
    file.seek(offset)
    head = file.read(LONGEST_LENGTH)
    length, colon, _ = head.partition(b":")
    if not length.isdigit():
        return False
    end = file.seek(0, 2)
    if not colon:
        return end - offset < LONGEST_LENGTH
    return end - offset < len(length) + 1 + int(length) + 1
