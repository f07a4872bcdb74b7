"""The two forms of a file of calls: lines of text, or the same compressed as `<name>.zst`.

Where both are there the text counts: compressing leaves it until the session's record names what it held, and going
back to text is done before a call is added.
"""

import errno
import os
import shutil
import sys
from pathlib import Path
from typing import BinaryIO, Final, cast

from polar_mitm.errors import Failed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SUFFIX: Final = ".zst"
LEVEL: Final = 6
"""Of zstd. 2.8 times smaller at 35 ms per MB; level 3 gives 2.7 times at 13 ms, level 19 3.0 times at 460 ms."""
PIECE: Final = 2**20
BROKEN: Final = (zstd.ZstdError, EOFError)
"""What reading a damaged or cut compressed file raises."""
DAMAGED = "the file was edited or damaged; put the original back, or cut it before this line to keep the calls above"


class CallFileError(Failed):
    """A calls.jsonl that cannot be read: which file, which line (from 1), what is wrong, and how to mend it.

    `line` is None when it is about the file as a whole.
    """

    def __init__(self, path: Path, line: int | None, what: str, mend: str = DAMAGED) -> None:
        place = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{place}: {what} ({mend})")
        self.path = path
        self.line = line
        self.what = what
        self.mend = mend


class NewerCalls(CallFileError):
    """It was written by a newer polar-mitm."""


def text_of(path: Path) -> Path:
    """`calls.jsonl` of either form's name."""
    return path.with_suffix("") if path.suffix == SUFFIX else path


def packed_of(path: Path) -> Path:
    """`calls.jsonl.zst` of either form's name."""
    return path if path.suffix == SUFFIX else path.with_name(path.name + SUFFIX)


def present(path: Path) -> Path:
    """The form that counts; the text's name when neither is there."""
    text, packed = text_of(path), packed_of(path)
    return packed if packed.exists() and not text.exists() else text


def open_text(path: Path) -> tuple[Path, BinaryIO]:
    """The text of a file of calls, whichever form holds it, and the file that does. Raises OSError."""
    text, packed = text_of(path), packed_of(path)
    for _ in range(3):  # another process may change the form between two looks
        try:
            return text, text.open("rb")
        except FileNotFoundError:
            pass
        try:
            return packed, cast(BinaryIO, zstd.ZstdFile(packed))
        except FileNotFoundError:
            pass
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def pack(source: BinaryIO, target: BinaryIO) -> None:
    """Compress, with a checksum that zstd itself holds against what comes out. Raises OSError."""
    options: dict[int, int] = {
        zstd.CompressionParameter.compression_level: LEVEL,
        zstd.CompressionParameter.checksum_flag: 1,
    }
    with zstd.ZstdFile(target, "wb", options=options) as packed:
        shutil.copyfileobj(source, packed, PIECE)


def unpack(source: BinaryIO, target: BinaryIO) -> None:
    """Raises OSError and what is in `BROKEN`."""
    with zstd.ZstdFile(source) as packed:
        shutil.copyfileobj(packed, target, PIECE)
