"""What is done to a session's calls when it is closed: a digest for its record, compression, no more writing.

A reader holds a sealed file against the digest before it gives out a line. Each step leaves the calls whole on the disk
in at least one form, so a kill between any two of them loses nothing; `forms` says which form counts then.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from polar_mitm.capture.folder import Seal, SessionFileError, SessionFolder, SessionRecord
from polar_mitm.capture.forms import BROKEN, CallFileError, open_text, pack, packed_of, present, text_of, unpack

logger = logging.getLogger(__name__)

COMPRESS_FROM: Final = 2**20
"""Bytes. A smaller file stays text, which any tool reads; `polar seal` compresses those too."""
CHANGED = "put the original back; to use it as it is now, set `seal` in session.json to null"
LEFTOVERS: Final = (".calls-", ".session-")
"""How the names of unfinished files begin."""


def take_digest(folder: SessionFolder, *, compress_from: int = COMPRESS_FROM) -> Seal | None:
    """The seal for the session's record; None when it has no file of calls. Text of that size is compressed beside it.

    The folder must be locked. After the record is written, `settle` ends the work. Raises OSError, and
    CallFileError for a file that is not what was sealed before.
    """
    try:
        where, file = open_checked(folder.calls)
    except FileNotFoundError:
        return None
    with file:
        seal = _seal(where, file)
    text, packed = text_of(where), packed_of(where)
    if where == text:
        _remove(packed)  # left by a kill; the text is later
        if seal.bytes >= max(compress_from, 1):
            try:
                _pack(text, packed, seal)
            except (OSError, CallFileError) as error:
                logger.warning("%s stays uncompressed: %s", text, error)
    return seal


def finish(folder: SessionFolder, session: SessionRecord, *, compress_from: int = COMPRESS_FROM) -> None:
    """Seal a session that nobody else holds, and write its record. The folder must be locked.

    Raises what `take_digest` raises.
    """
    session.seal = take_digest(folder, compress_from=compress_from)
    folder.write(session)
    settle(folder)


def settle(folder: SessionFolder) -> None:
    """Leave one form, that nobody writes to by mistake. For a folder whose record bears the seal. Raises OSError."""
    text, packed = text_of(folder.calls), packed_of(folder.calls)
    if packed.exists():
        text.unlink(missing_ok=True)
    for path in folder.path.iterdir():
        if path.name.startswith(LEFTOVERS):
            path.unlink()
    if (left := present(text)).exists():
        left.chmod(0o400)
    sync_folder(folder.path)


def unsettled(folder: SessionFolder) -> bool:
    """Whether `settle` was cut short, or never came. Raises OSError."""
    names = {path.name for path in folder.path.iterdir()}
    both = {text_of(folder.calls).name, packed_of(folder.calls).name} <= names
    return both or any(name.startswith(LEFTOVERS) for name in names)


def unseal(folder: SessionFolder, session: SessionRecord) -> None:
    """Make the calls text that can be appended to; `session` replaces the record, without a seal.

    The folder must be locked. A file that is not sealed stays as it is. Raises OSError, and CallFileError when the file
    is not what was sealed.
    """
    if not present(folder.calls).exists():
        return
    where, file = open_checked(folder.calls)
    file.close()
    session.seal = None
    if sealed(folder.calls):
        folder.write(session)  # first: readers must not hold the seal against what is added
    _to_text(where)
    text_of(where).chmod(0o600)


def expand(folder: SessionFolder) -> None:
    """Make compressed calls text again; they stay sealed. The folder must be locked.

    Raises OSError and CallFileError.
    """
    if present(folder.calls).exists():
        where, file = open_checked(folder.calls)
        file.close()
        _to_text(where)
        settle(folder)


def open_checked(path: Path) -> tuple[Path, BinaryIO]:
    """The text of a file of calls and the file that holds it, once it is known to be what was sealed.

    Raises OSError, and CallFileError for a file that was changed or damaged.
    """
    while True:
        seal = sealed(path)
        where, file = open_text(path)
        if seal is None:
            return where, file
        try:
            held = _seal(where, file)
        except CallFileError:
            file.close()
            raise
        if held == seal:
            file.seek(0)
            return where, file
        file.close()
        if sealed(path) == seal:  # else a call was added between the two looks
            what = f"it was changed after its session was closed: {held.bytes} bytes, sealed were {seal.bytes}"
            raise CallFileError(where, None, what, CHANGED)


def sealed(path: Path) -> Seal | None:
    """The seal of a session's file of calls, from the record beside it. Raises OSError and CallFileError."""
    folder = SessionFolder(path.parent)
    if text_of(path) != text_of(folder.calls):
        return None
    try:
        return folder.load().seal
    except FileNotFoundError:
        return None
    except SessionFileError as error:
        mend = f"{error.mend}, or move it away to read the calls without it"
        raise CallFileError(error.path, None, error.what, mend) from error


def sync_folder(folder: Path) -> None:
    """A new file's name is on the disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _to_text(where: Path) -> None:
    text, packed = text_of(where), packed_of(where)
    if where == packed:
        with packed.open("rb") as source, _replacing(text) as target, _told(packed):
            unpack(source, target)
    _remove(packed)
    sync_folder(text.parent)


def _remove(path: Path) -> None:
    if path.exists():  # on a read-only disk there is nothing wrong with a file that is not there
        path.unlink()


def _pack(text: Path, packed: Path, seal: Seal) -> None:
    def check(temporary: Path) -> None:
        _, file = open_text(temporary)
        with file:
            if _seal(temporary, file) != seal:
                raise OSError(f"{packed} does not give back what was compressed")

    with text.open("rb") as source, _replacing(packed, check) as target:
        pack(source, target)


@contextmanager
def _replacing(path: Path, check: Callable[[Path], None] = lambda _: None) -> Iterator[BinaryIO]:
    """A file that takes the path's place in one step, once it is whole, on the disk and passes the check."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=LEFTOVERS[0], suffix=path.suffix)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check(temporary)
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _seal(where: Path, text: BinaryIO) -> Seal:
    with _told(where):
        digest = hashlib.file_digest(text, "sha256").hexdigest()  # type: ignore[arg-type]
    return Seal(sha256=digest, bytes=text.tell())


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What zstd says of a damaged file becomes a CallFileError that names it."""
    try:
        yield
    except BROKEN as error:
        raise CallFileError(path, None, f"the compressed file is damaged: {error}", "put the original back") from error
