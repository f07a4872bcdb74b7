"""The JSONL writer of one session's `calls.jsonl`: one call, one line, one write.

It decides what a line repeats by reference (bodies, leading prompt ids) and which call it continues. Reading is in
`reader`; what becomes of a session when writing fails is in `session`.
"""

import errno
import fcntl
import os
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from polar_mitm.capture.canonical import content_hash
from polar_mitm.capture.checks import verify
from polar_mitm.capture.encode import encode
from polar_mitm.capture.forms import present
from polar_mitm.capture.history import History
from polar_mitm.capture.ids import pack
from polar_mitm.capture.reader import CallFileError, Lines
from polar_mitm.capture.record import Call, CallLine, Named, Prompt
from polar_mitm.capture.seal import sealed, sync_folder
from polar_mitm.errors import Failed

__all__ = ["CallLog", "CallLogError", "Durability", "verify"]

type Durability = Literal["none", "call"]
"""`call`: a line is on the disk before `append` returns (fdatasync, about 3 ms). `none`: it survives the process, not
the machine."""


class CallLogError(Failed):
    """A call could not be written, or a file is not ours to write. The file is left as it was before."""


class CallLog:
    """Appends calls to a file, which it creates (mode 0600) or continues.

    A torn last line of an earlier process is moved to `<file>.torn-<n>`; `torn` says so. The file is locked for other
    logs until `close`. `calls`, `prompt_tokens`, `response_tokens` and `not_carried` count what stands in the file.
    Raises OSError, CallFileError when the file cannot be read, CallLogError when another process is writing it or when
    it is sealed.
    """

    def __init__(self, path: Path, *, durability: Durability = "call") -> None:
        self.path = path
        self.torn = False
        self.calls = 0
        self.prompt_tokens = 0
        self.response_tokens = 0
        self.not_carried: Counter[str] = Counter()
        """By field of the request: the calls that had one which the model was not given."""
        self._durability = durability
        self._history = History()
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if sealed(path) or present(path) != path:
            raise CallLogError(f"{path} is sealed: its session was closed")
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._claim()
            self._end = self._restore()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, call: Call) -> CallLine:
        """Write the call and return its line. Thread-safe.

        Fills in the parent (unless the caller named one) and how the prompt stands to it. A call that lacks ids or
        logprobs is written like any other, marked invalid. Raises CallLogError when it could not be written; the call
        is then not in the file, and the next one may be.
        """
        with self._lock:
            try:
                line = self._line(call)
                text = encode(line) + b"\n"
            except (TypeError, ValueError, RecursionError) as error:
                raise CallLogError(f"call {call.identity.call_id} is not JSON: {error}") from error
            self._write(text)
            self._add(line)
            return line

    def close(self) -> None:
        """Release the file. A later `append` raises CallLogError."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _claim(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CallLogError(f"{self.path} is being written by another log") from error
        except OSError as error:
            # Some network file systems have no locks. The lock guards against a mistake; it is not needed to write.
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise

    def _restore(self) -> int:
        """Learn what the file holds, set a torn tail aside; returns the file's length in bytes."""
        lines = Lines(self.path)
        for number, line in lines:
            try:
                self._add(line)
            except ValueError as error:
                raise CallFileError(self.path, number, str(error)) from error
        if lines.torn:
            _set_aside(self._file, self.path, lines.end)
            self.torn = True
        if self._durability == "call":
            sync_folder(self.path.parent)
        return lines.end

    def _add(self, line: CallLine) -> None:
        self._history.add(line)
        self.calls += 1
        self.prompt_tokens += line.prompt.prefix_len + len(line.prompt.suffix_ids)
        self.response_tokens += len(line.response.response_ids) if line.response else 0
        self.not_carried.update({lost.field for lost in line.request.not_carried})

    def _line(self, call: Call) -> CallLine:
        request, history = call.request, self._history
        messages = [content_hash(body) for body in request.messages]
        tools = [content_hash(body) for body in request.tools]
        bodies = zip(messages + tools, request.messages + request.tools, strict=True)
        try:
            prompt = pack(call.prompt_ids)
        except OverflowError:
            prompt = b""
        parent = call.parent_call_id
        if parent is None:
            parent = history.parent(messages, [str(body.get("role")) for body in request.messages], prompt)
        prefix_call_id, prefix_len = history.longest_prefix(prompt, parent)
        checks = verify(call) if call.checks.valid else call.checks
        relation, shared = history.relation(parent, prompt)
        return CallLine(
            identity=call.identity,
            parent_call_id=parent,
            origin=call.origin,
            request=Named(
                messages=messages,
                tools=tools,
                new={name: body for name, body in bodies if name not in history.bodies},
                sampling_asked=request.sampling_asked,
                sampling_sent=request.sampling_sent,
                not_carried=request.not_carried,
            ),
            engine=call.engine,
            tried=call.tried,
            prompt=Prompt(
                prefix_call_id=prefix_call_id, prefix_len=prefix_len, suffix_ids=call.prompt_ids[prefix_len:]
            ),
            built=call.built,
            response=call.response,
            checks=checks.model_copy(update={"prefix": relation, "common_prefix_len": shared}),
            delivery=call.delivery,
            error=call.error,
            imported=call.imported,
        )

    def _write(self, text: bytes) -> None:
        """One write of the whole line; when that does not succeed, the file gets its old length back."""
        if self._file < 0:
            raise CallLogError(f"{self.path}: the log is closed")
        try:
            status = os.fstat(self._file)
            if status.st_nlink == 0:
                raise OSError(errno.ENOENT, "the file was deleted")
            if status.st_size != self._end:
                os.ftruncate(self._file, self._end)  # what an earlier failure could not take back
            written = os.write(self._file, text)
            if written != len(text):
                # Writing the rest would make two writes of it: a kill between them tears the line.
                raise OSError(errno.ENOSPC, f"only {written} of {len(text)} bytes were written")
            if self._durability == "call":
                os.fdatasync(self._file)
        except OSError as error:
            self._take_back()
            raise CallLogError(f"{self.path}: {error.strerror}") from error
        self._end += len(text)

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._file, self._end)
        except OSError:
            return  # the next write tries again; a reader passes over a torn tail


def _set_aside(file: int, path: Path, end: int) -> None:
    """Move what stands after byte `end` to the first free `<path>.torn-<n>`."""
    tail = os.pread(file, os.fstat(file).st_size - end, end)
    number = 1
    while (aside := path.with_name(f"{path.name}.torn-{number}")).exists():
        number += 1
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as copy:
        copy.write(tail)
        copy.flush()
        os.fsync(copy.fileno())
    os.ftruncate(file, end)
