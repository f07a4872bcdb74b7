"""Sessions' files, on a path or at an fsspec URL, as `<root>/<task_id>/<session_id>/<name>`.

A file is there whole or not at all, and on disk before its writer is told so. The calls block: they belong in a thread.
"""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

import fsspec

from polar_mitm.client.models import File

CHUNK = 1024 * 1024


class TooLarge(Exception):
    """More bytes than a file may have."""


class Incoming(Protocol):
    """A file that is being written. `keep` or `drop` ends it."""

    def write(self, data: bytes) -> None: ...
    def keep(self) -> File: ...
    def drop(self) -> None: ...


class Files(Protocol):
    def create(self, task_id: str, session_id: str, name: str) -> Incoming: ...
    def read(self, task_id: str, session_id: str, name: str) -> Iterator[bytes]:
        """In pieces. Raises FileNotFoundError at once."""
        ...

    def names(self, task_id: str, session_id: str) -> list[File]:
        """In order; without digests."""
        ...


def open_files(root: str, *, largest: int) -> Files:
    """Raises OSError, ValueError and ImportError for what cannot be used."""
    if "://" not in root or root.startswith("file://"):
        path = Path(root.removeprefix("file://"))
        path.mkdir(parents=True, exist_ok=True)
        return LocalFiles(path, largest)
    filesystem, base = fsspec.core.url_to_fs(root)
    return RemoteFiles(filesystem, base.rstrip("/"), largest)


class _Counted:
    def __init__(self, file: IO[bytes], name: str, largest: int) -> None:
        self.file, self.name, self.largest = file, name, largest
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self.largest:
            raise TooLarge(f"{self.name} has more than {self.largest} bytes")
        self.digest.update(data)
        self.file.write(data)

    def as_file(self) -> File:
        return File(name=self.name, bytes=self.size, sha256=self.digest.hexdigest())


class _LocalIncoming(_Counted):
    def __init__(self, path: Path, largest: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        super().__init__(self.temporary.open("xb"), path.name, largest)

    def keep(self) -> File:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.temporary.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return self.as_file()

    def drop(self) -> None:
        with suppress(OSError):
            self.file.close()
        self.temporary.unlink(missing_ok=True)


class LocalFiles:
    def __init__(self, root: Path, largest: int) -> None:
        self.root, self.largest = root, largest

    def create(self, task_id: str, session_id: str, name: str) -> Incoming:
        return _LocalIncoming(self.root / task_id / session_id / name, self.largest)

    def read(self, task_id: str, session_id: str, name: str) -> Iterator[bytes]:
        return _pieces((self.root / task_id / session_id / name).open("rb"))

    def names(self, task_id: str, session_id: str) -> list[File]:
        folder = self.root / task_id / session_id
        if not folder.is_dir():
            return []
        with os.scandir(folder) as entries:
            found = [(e.name, e.stat().st_size) for e in entries if e.is_file() and not e.name.startswith(".")]
        return [File(name=name, bytes=size) for name, size in sorted(found)]


class _RemoteIncoming(_Counted):
    """Collected in a file here first: an upload that breaks off would leave half of it there."""

    def __init__(self, filesystem: Any, path: str, largest: int) -> None:
        self.filesystem, self.path = filesystem, path
        handle, name = tempfile.mkstemp(prefix="polar-", suffix=".part")
        self.temporary = Path(name)
        super().__init__(os.fdopen(handle, "wb"), path.rpartition("/")[2], largest)

    def keep(self) -> File:
        self.file.close()
        try:
            self.filesystem.makedirs(self.path.rpartition("/")[0], exist_ok=True)
            self.filesystem.put_file(str(self.temporary), self.path)
        finally:
            self.temporary.unlink(missing_ok=True)
        return self.as_file()

    def drop(self) -> None:
        self.file.close()
        self.temporary.unlink(missing_ok=True)


class RemoteFiles:
    def __init__(self, filesystem: Any, root: str, largest: int) -> None:
        self.filesystem, self.root, self.largest = filesystem, root, largest

    def create(self, task_id: str, session_id: str, name: str) -> Incoming:
        return _RemoteIncoming(self.filesystem, f"{self.root}/{task_id}/{session_id}/{name}", self.largest)

    def read(self, task_id: str, session_id: str, name: str) -> Iterator[bytes]:
        return _pieces(self.filesystem.open(f"{self.root}/{task_id}/{session_id}/{name}", "rb"))

    def names(self, task_id: str, session_id: str) -> list[File]:
        folder = f"{self.root}/{task_id}/{session_id}"
        if not self.filesystem.exists(folder):
            return []
        found = [entry for entry in self.filesystem.ls(folder, detail=True) if entry["type"] == "file"]
        files = [File(name=str(entry["name"]).rpartition("/")[2], bytes=entry["size"] or 0) for entry in found]
        return sorted(files, key=lambda file: file.name)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    def pieces() -> Iterator[bytes]:
        with file:
            while piece := file.read(CHUNK):
                yield piece

    return pieces()
