"""Trajectories on disk: JSON Lines, one trajectory a line, in the form that `docs/schemas/` publishes."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from polar_mitm.capture.canonical import dumps, loads
from polar_mitm.trajectory.trace import SCHEMA, Trajectory


class TrajectoryFileError(Exception):
    """A file of trajectories that cannot be read: which file, which line (from 1), what is wrong, how to mend it."""

    def __init__(self, path: Path, line: int, what: str, mend: str) -> None:
        super().__init__(f"{path}, line {line}: {what} ({mend})")
        self.path = path
        self.line = line
        self.what = what
        self.mend = mend


def write_trajectories(trajectories: Iterable[Trajectory], path: Path) -> int:
    """Write them as they come; how many they were. The file appears whole or not at all. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.part")
    count = 0
    try:
        with unfinished.open("wb") as file:
            for trajectory in trajectories:
                file.write(_line(trajectory))
                count += 1
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _line(trajectory: Trajectory) -> bytes:
    """Lone surrogates stay as they are, escaped: a harness had cut an emoji in half."""
    try:
        return trajectory.model_dump_json(by_alias=True).encode() + b"\n"
    except PydanticSerializationError:
        return dumps(trajectory.model_dump(by_alias=True)) + b"\n"


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """One at a time. Raises OSError and TrajectoryFileError."""
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                value = loads(text)
            except ValueError as error:
                raise TrajectoryFileError(path, number, f"not JSON: {error}", "write the file anew") from error
            version = value.get("schema") if isinstance(value, dict) else None
            if type(version) is not int or version < 1:  # True is an int too
                raise TrajectoryFileError(
                    path, number, "not a trajectory: it has no schema version", "name another file"
                )
            if version > SCHEMA:
                what = f"it has schema version {version}, and this polar reads up to {SCHEMA}"
                raise TrajectoryFileError(path, number, what, "install a newer polar-mitm")
            try:
                yield Trajectory.model_validate(value)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                place = ".".join(str(part) for part in first["loc"])
                raise TrajectoryFileError(path, number, f"{place}: {first['msg']}", "write the file anew") from error
