"""Reading `calls.jsonl`: lines as they stand, and whole calls with their prompt ids and bodies put back.

Files are read only; mending a torn one is the log's and recovery's business.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from polar_mitm.capture.canonical import loads
from polar_mitm.capture.forms import BROKEN, CallFileError, NewerCalls
from polar_mitm.capture.ids import IdStore
from polar_mitm.capture.record import SCHEMA, Asked, Call, CallLine
from polar_mitm.capture.seal import open_checked

__all__ = ["CallFileError", "CallReader", "Lines", "read_calls"]


class Lines:
    """The lines of a file of either form, in order, with their numbers. Ends before a torn last line.

    After the iteration `torn` says whether there was one and `end` is the length in bytes of the text before it.
    Raises OSError, and CallFileError, also when the file is not what was sealed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False
        self.end = 0

    def __iter__(self) -> Iterator[tuple[int, CallLine]]:
        self.torn, self.end = False, 0
        self.path, file = open_checked(self.path)
        number = 0
        with file:
            try:
                for number, text in enumerate(file, start=1):
                    if not text.endswith(b"\n"):
                        self.torn = True
                        return
                    try:
                        value = loads(text)
                    except ValueError as error:
                        if file.read(1):
                            raise CallFileError(self.path, number, f"not JSON: {error}") from error
                        self.torn = True
                        return
                    yield number, self._line(number, value)
                    self.end += len(text)
            except BROKEN as error:
                what = f"the compressed file is damaged from here on: {error}"
                raise CallFileError(self.path, number + 1, what, "put the original back") from error

    def _line(self, number: int, value: Any) -> CallLine:
        version = value.get("schema") if isinstance(value, dict) else None
        if type(version) is not int or version < 1:  # True is an int too
            raise CallFileError(self.path, number, "not a call record: it has no schema version")
        if version > SCHEMA:
            what = f"it has schema version {version}, and this polar reads up to {SCHEMA}"
            raise NewerCalls(self.path, number, what, "install a newer polar-mitm")
        try:
            return CallLine.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise CallFileError(self.path, number, f"{place}: {first['msg']}") from error


class CallReader:
    """The calls of a file of either form, whole, in the order they were written.

    `torn` says, after an iteration, that the file ends in a line that was never finished (its process was killed, or
    is writing it now). Calls share the bodies of their messages and tools: do not change them in place.
    Raises OSError and CallFileError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False

    def __iter__(self) -> Iterator[Call]:
        lines = Lines(self.path)
        bodies: dict[str, dict[str, Any]] = {}
        store = IdStore()
        for number, line in lines:
            bodies.update(line.request.new)
            try:
                call = _whole(line, bodies, store.prompt_ids(line.prompt))
                store.add(line)
            except ValueError as error:
                raise CallFileError(lines.path, number, str(error)) from error
            yield call
        self.torn = lines.torn


def read_calls(path: Path) -> Iterator[Call]:
    """The calls of a file, whole. A torn last line is passed over; `CallReader` tells whether there was one."""
    return iter(CallReader(path))


def _whole(line: CallLine, bodies: dict[str, dict[str, Any]], prompt_ids: list[int]) -> Call:
    return Call(
        identity=line.identity,
        parent_call_id=line.parent_call_id,
        origin=line.origin,
        request=Asked(
            messages=[_body(bodies, name) for name in line.request.messages],
            tools=[_body(bodies, name) for name in line.request.tools],
            sampling_asked=line.request.sampling_asked,
            sampling_sent=line.request.sampling_sent,
            not_carried=line.request.not_carried,
        ),
        engine=line.engine,
        tried=line.tried,
        prompt_ids=prompt_ids,
        built=line.built,
        response=line.response,
        checks=line.checks,
        delivery=line.delivery,
        error=line.error,
        imported=line.imported,
    )


def _body(bodies: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    try:
        return bodies[name]
    except KeyError:
        raise ValueError(f"it names content {name}, which no line up to here holds") from None
