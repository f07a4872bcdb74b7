"""Reading files that a program left which may have laid something else in their place: a pipe, a link, a folder."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


class NotAFile(Exception):
    """Says what it is, in words that go on from its name."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, not a link. Never waits. Raises NotAFile."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NotAFile(f"cannot be read: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise NotAFile("is no regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(handle)
