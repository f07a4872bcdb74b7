"""What an export format is: the rows that a session becomes, and the sink that they are written to.

A format is a file here and a line in `FORMATS`. Which sessions there are, and how their traces are built, is `run`'s
business; making the output appear whole or not at all is `output`'s.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from polar_mitm.capture.folder import SessionRecord
from polar_mitm.errors import BadInput, Failed, NotReady
from polar_mitm.trajectory.trace import Trace, Trajectory

type Row = dict[str, Any]


class ExportFailed(Failed):
    """Nothing was written. The message names what is in the way, and the mend."""


class ExportRefused(BadInput):
    """What was asked for cannot be meant. The message says why, and what to type instead."""


class PackageMissing(NotReady):
    """The format needs a package that is not installed. The message names it."""


@dataclass(slots=True, frozen=True)
class Session:
    """One session to write: its traces, and the record that its folder holds."""

    trajectory: Trajectory
    record: SessionRecord


@dataclass(slots=True)
class Tally:
    """What was written and what was not, over a whole export; and the numbers that formats give groups and rows."""

    sessions: int = 0
    rows: int = 0
    trained_tokens: int = 0
    """With mask 1, in rows that were written."""
    masked: Counter[str] = field(default_factory=Counter)
    """Sessions of which no token is trained, by reason."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Traces and sessions that the format has no place for, by reason."""
    places: int = 0
    """Rows without a trained token that stand for sessions that are not masked: their rewards count in their groups."""
    without_reward: int = 0
    """Sessions that are not masked and have no reward."""
    across_versions: int = 0
    """Sessions that more than one policy version sampled."""
    cautions: Counter[str] = field(default_factory=Counter)
    """Trained turns whose log-probabilities are not the sampler's, by reason."""
    models: set[str] = field(default_factory=set)
    groups: dict[str, int] = field(default_factory=dict)
    members: Counter[str] = field(default_factory=Counter)
    """Sessions seen of each group."""

    def group(self, group_id: str) -> int:
        """The number of the group, from 0 in the order of appearance."""
        return self.groups.setdefault(group_id, len(self.groups))


class Sink(Protocol):
    """Takes rows in order. `write` and `close` raise OSError; what is written counts after `close`."""

    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True, frozen=True)
class Format:
    name: str
    output: str
    """Name of the file that is written where no other is given; without a suffix it is a folder."""
    what: str
    """What a row is, in one line."""
    checked: str
    """`loader-verified` and by what, or `schema-tested`."""
    rows: Callable[[Session, Tally], Iterator[Row]]
    """Pure but for the tally. Streams: a session's rows need not all be in memory at once."""
    sink: Callable[[Path], Sink]
    """Opens the file or folder, which does not exist yet. Raises OSError and PackageMissing."""
    one_model: bool = True
    """Whether the rows of two models must not be mixed: their token ids are of different vocabularies."""

    @property
    def suffix(self) -> str:
        return Path(self.output).suffix

    @property
    def folder(self) -> bool:
        return not self.suffix


def principal(trajectory: Trajectory) -> Trace | None:
    """The trace that stands for the session where only one can: of the main conversation, with most trained tokens.

    Most sampled ones where none is trained. None when no trace has a sampled token.
    """
    sampled = [trace for trace in trajectory.traces if sampled_tokens(trace)]
    return max(sampled, key=_standing, default=None)


def _standing(trace: Trace) -> tuple[bool, bool, int, int]:
    trained = trace.trained
    return trained > 0, trace.lineage.within == "main", trained, sampled_tokens(trace)


def sampled_tokens(trace: Trace) -> int:
    return sum(turn.end - turn.start for turn in trace.turns)


def trained_or_place(session: Session, tally: Tally) -> Iterator[Trace]:
    """The traces with trained tokens; of a session without any, the one that keeps its place in its group.

    What is passed over is counted as left out.
    """
    traces = session.trajectory.traces
    trained = [trace for trace in traces if trace.trained]
    if trained:
        tally.left_out["traces without a trained token"] += len(traces) - len(trained)
        yield from trained
    elif place := principal(session.trajectory):
        tally.left_out["further traces of sessions without a trained token"] += len(traces) - 1
        tally.places += session.trajectory.masked is None
        yield place
    else:
        tally.left_out["sessions without a sampled token"] += 1
