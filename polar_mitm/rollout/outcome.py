"""A finished sample, read back from its folder: the session's record and what its calls come to."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.reader import CallFileError, read_calls
from polar_mitm.capture.record import Call


@dataclass(slots=True)
class Outcome:
    """Small, however long the session was: a run of thousands keeps one for each."""

    folder: Path
    session: SessionRecord
    mean_logprob: float | None = None
    """In nats, over the tokens that the model chose; None when there are none."""
    finish_reasons: dict[str, int] = field(default_factory=dict)
    """Calls by the engine's own word."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read a session's folder. Raises OSError and SessionFileError."""
        folder = SessionFolder(path)
        calls = calls_of(folder)
        return cls(path, folder.load(), mean_logprob(calls), finish_reasons(calls))

    @property
    def seconds(self) -> float:
        """Wall time of the session, grading included."""
        return (self.session.finished_at or self.session.started_at) - self.session.started_at


def calls_of(folder: SessionFolder) -> list[Call]:
    """The session's calls; none when there is no file. An unreadable file has poisoned the session already."""
    try:
        return list(read_calls(folder.calls))
    except (FileNotFoundError, CallFileError):
        return []


def mean_logprob(calls: Iterable[Call]) -> float | None:
    """Mean over the tokens that the model chose, in nats; None when there are none. Forced ones are post-mask."""
    logprobs = [value for call in calls if call.response for value in call.response.chosen]
    return sum(logprobs) / len(logprobs) if logprobs else None


def finish_reasons(calls: Iterable[Call]) -> dict[str, int]:
    """Calls by finish reason; `none` where the engine never answered."""
    return dict(Counter(call.response.finish_reason if call.response else "none" for call in calls))
