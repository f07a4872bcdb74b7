"""The trajectories of a folder of sessions, with what needs all of them: groups, advantages, one count of every token.

    for trajectory in build_run(Path("runs")): ...

One session's calls are in memory at a time; of the others, only what their session.json says.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from polar_mitm.capture.find import find_sessions
from polar_mitm.capture.folder import SessionFileError, SessionFolder, SessionRecord
from polar_mitm.capture.reader import CallFileError
from polar_mitm.trajectory.builders import Building, Options
from polar_mitm.trajectory.credit import Advantages, Group, Standing, group
from polar_mitm.trajectory.ledger import LedgerError
from polar_mitm.trajectory.masking import group_of, masked
from polar_mitm.trajectory.seen import TrajectoryError, read_session
from polar_mitm.trajectory.totals import Totals
from polar_mitm.trajectory.trace import Trajectory

type Unusable = OSError | SessionFileError | CallFileError | TrajectoryError | LedgerError
UNUSABLE = (OSError, SessionFileError, CallFileError, TrajectoryError, LedgerError)
"""What `build` raises for a session that cannot be used."""


def build_run(
    out: Path,
    options: Options | None = None,
    *,
    advantages: Advantages = "standard",
    unusable: Callable[[Path, Unusable], None] | None = None,
) -> "Run":
    """The sessions at and below a folder, sorted by path.

    `unusable` hears of each session that cannot be built, and is then left out of the run; without it the error is
    raised. Raises OSError for a folder that cannot be read.
    """
    return Run(out, options or Options(), advantages, unusable)


class Run:
    """Iterate over it for the trajectories; afterwards `totals` counts them. A second iteration begins anew."""

    def __init__(
        self,
        out: Path,
        options: Options,
        advantages: Advantages,
        unusable: Callable[[Path, Unusable], None] | None,
    ) -> None:
        self.options = options
        self.totals = Totals()
        self.records: dict[Path, SessionRecord] = {}
        """By folder: what session.json holds of each."""
        self._folders: dict[str, Path] = {}
        self._unusable = unusable
        for folder in find_sessions(out):
            self._load(folder)
        self._standings = self._stand()
        self.groups: list[Group] = [group(name, members, advantages) for name, members in self._by_group().items()]
        self._advantages = {name: value for found in self.groups for name, value in found.advantages.items()}

    def __iter__(self) -> Iterator[Trajectory]:
        self.totals = Totals()
        for folder, record in self.records.items():
            try:
                trajectory = self._build(folder, record)
            except UNUSABLE as error:
                self._report(folder, error)
                continue
            self.totals.add(trajectory)
            yield trajectory

    def _build(self, folder: Path, record: SessionRecord) -> Trajectory:
        session = read_session(folder)
        standing = self._standings[record.session_id]
        building = Building(session, self.options, masked=standing.masked)
        return building.trajectory(self._advantages.get(record.session_id))

    def _load(self, folder: SessionFolder) -> None:
        try:
            record = _record(folder)
            twin = self._folders.setdefault(record.session_id, folder.path)
            if twin != folder.path:
                raise TrajectoryError(folder.path, f"it is the same session as {twin}", "move one of the two away")
        except UNUSABLE as error:
            self._report(folder.path, error)
        else:
            self.records[folder.path] = record

    def _report(self, folder: Path, error: Unusable) -> None:
        if self._unusable is None:
            raise error
        self._unusable(folder, error)

    def _stand(self) -> dict[str, Standing]:
        """Each session as its group sees it. Of a sample's attempts the first that is not masked counts.

        Two sessions of one sample and attempt are two runs into one folder, and both count.
        """
        keep = self.options.unrewarded == "keep"
        found: dict[str, Standing] = {}
        counts: dict[tuple[str, int], int] = {}
        for folder, record in sorted(self.records.items(), key=lambda item: item[1].attempt):
            reason = masked(record, torn=_torn(SessionFolder(folder)), keep_unrewarded=keep)
            if record.sample is not None and reason is None:
                first = counts.setdefault((group_of(record), record.sample), record.attempt)
                if first < record.attempt:
                    reason = f"attempt {first} of this sample counts already"
            found[record.session_id] = Standing(record.session_id, record.sample, record.attempt, record.reward, reason)
        return found

    def _by_group(self) -> dict[str, list[Standing]]:
        members: dict[str, list[Standing]] = {}
        for record in self.records.values():
            members.setdefault(group_of(record), []).append(self._standings[record.session_id])
        return members


def _record(folder: SessionFolder) -> SessionRecord:
    try:
        return folder.load()
    except FileNotFoundError as error:
        mend = f"`polar recover {folder.path}` makes one from its calls"
        raise SessionFileError(folder.path, "it has no session.json", mend) from error


def _torn(folder: SessionFolder) -> bool:
    """Whether the last call was cut off, told without reading the calls."""
    calls = folder.calls
    if calls.suffix != ".jsonl" or not calls.exists() or not calls.stat().st_size:
        return False
    with calls.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
