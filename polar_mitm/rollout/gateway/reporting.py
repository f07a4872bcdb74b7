"""What is reported of a session that has come to its end, and the files that go with it.

A report stands on disk before it is sent and until it was answered, so that a gateway that is killed sends it in its
next life.
"""

import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path

import orjson

from polar_mitm.capture.folder import SessionFileError, SessionFolder, SessionRecord
from polar_mitm.capture.forms import CallFileError
from polar_mitm.capture.log import CallLogError
from polar_mitm.capture.recover import recover
from polar_mitm.client.models import File, Stage, StageTimes
from polar_mitm.client.nodes import Assignment, Report
from polar_mitm.rollout.gateway.pipeline import Held
from polar_mitm.rollout.gateway.problems import passing
from polar_mitm.sandboxes import SANDBOXES, scratch
from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.files import write_trajectories
from polar_mitm.trajectory.trace import Trajectory

logger = logging.getLogger(__name__)

ASSIGNMENT = "assignment.json"
"""In a session's folder for as long as its report was not answered."""
REPORT = "report.json"
TRAJECTORY = "trajectory.json"
KEPT = (
    "session.json",
    "calls.jsonl",
    "calls.jsonl.zst",
    TRAJECTORY,
    "flows.mitm",
    "answer.txt",
    "workspace.diff",
    "evaluator.txt",
    "stdout.txt",
    "stderr.txt",
)
"""Files of a session that are delivered. The workspace itself is not: the diff says what was done."""


def remember(folder: Path, assignment: Assignment) -> None:
    """Whole or not at all. Raises OSError."""
    new = folder / f".{ASSIGNMENT}"
    new.write_text(assignment.model_dump_json())
    new.replace(folder / ASSIGNMENT)


def report_of(held: Held, incarnation: str) -> Report:
    """The report of a session that is done, written into its folder. Raises OSError while there is no room for it."""
    if held.sample is None:
        return bare(held, incarnation)
    record = held.sample.log.session
    if record.status == "open":  # what should have closed it failed
        record = held.sample.log.close("error", reason="polar failed: the session was left open")
    folder = held.sample.folder
    if not folder.record.exists() or folder.load().status == "open":  # there was no room when it was closed
        folder.write(record)
    return _write(folder, record, held.assignment, incarnation, held.ended_in, held.times)


def bare(held: Held, incarnation: str, trouble: str | None = None) -> Report:
    """The report of a session that has no folder, or of which no more can be told."""
    ended_so = "cancelled" if held.cancelled and trouble is None else "error"
    return Report.model_validate(
        {
            "session_id": held.assignment.session_id,
            "incarnation": incarnation,
            "status": ended_so,
            "status_reason": trouble or ("cancelled" if held.cancelled else held.trouble),
            "ended_in": held.ended_in,
            "times": held.times,
        }
    )


def assignments_left(sessions: Path) -> Iterator[tuple[Path, Assignment]]:
    """The folders of an earlier life of this gateway whose reports were never answered."""
    for path in sorted(sessions.glob("*/" + ASSIGNMENT)):
        try:
            yield path.parent, Assignment.model_validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            logger.error("%s: what an earlier gateway left here cannot be read: %s", path.parent, error)


def report_left(path: Path, assignment: Assignment, incarnation: str) -> Report | None:
    """What an earlier life has to report; a session that was cut off is closed first. None: nothing can be told, and
    the server, which hears no more of it, begins it again. Raises OSError while there is no room for it."""
    folder = SessionFolder(path)
    try:
        if (path / REPORT).exists():
            report = Report.model_validate_json((path / REPORT).read_bytes())
            return report.model_copy(update={"incarnation": incarnation})
        record = recover(path)
        if sandbox := SANDBOXES.get(record.sandbox or ""):
            sandbox.sweep(record.session_id)
        scratch.sweep(record.session_id)
        times = StageTimes(finished_at=record.finished_at)
        return _write(folder, record, assignment, incarnation, _place_of_end(path, record), times)
    except (OSError, ValueError, SessionFileError, CallFileError, CallLogError) as error:
        if passing(error):
            raise
        logger.error("%s: what an earlier gateway left here cannot be reported: %s", path, error)
        return None


def answered(folder: Path, *, keep: bool) -> None:
    """The server has it: nothing of it is sent again. Raises OSError."""
    (folder / ASSIGNMENT).unlink(missing_ok=True)
    if not keep:
        shutil.rmtree(folder)


def files_of(folder: Path) -> list[File]:
    """Those to deliver, with their digests. Raises OSError."""
    found = []
    for name in KEPT:
        path = folder / name
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(File(name=name, bytes=path.stat().st_size, sha256=digest))
    return found


def _place_of_end(path: Path, record: SessionRecord) -> Stage:
    """Where a session was when its gateway was killed: what its folder holds tells."""
    if record.reward is not None or record.evaluation_error or (path / "answer.txt").exists():
        return "grading"
    return "running" if (path / "stdout.txt").exists() or record.calls else "preparing"


def _write(
    folder: SessionFolder,
    record: SessionRecord,
    assignment: Assignment,
    incarnation: str,
    ended_in: Stage,
    times: StageTimes,
) -> Report:
    trajectory, trouble = _trajectory(folder, assignment)
    report = Report.model_validate(
        {
            "session_id": assignment.session_id,
            "incarnation": incarnation,
            "status": "error" if record.incomplete else record.status,
            "status_reason": record.status_reason,
            "ended_in": ended_in,
            "reward": record.reward,
            "rewards": record.rewards,
            "evaluation_error": record.evaluation_error,
            "masked": trajectory.masked if trajectory else trouble,
            "trained_tokens": sum(trace.trained for trace in trajectory.traces) if trajectory else 0,
            "calls": record.calls,
            "prompt_tokens": record.prompt_tokens,
            "response_tokens": record.response_tokens,
            "policy_versions": _versions(trajectory),
            "times": times,
            "record": orjson.loads(record.model_dump_json(by_alias=True)),
            "files": files_of(folder.path),
        }
    )
    new = folder.path / f".{REPORT}"
    with new.open("w") as file:
        file.write(report.model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder.path / REPORT)
    return report


def _trajectory(folder: SessionFolder, assignment: Assignment) -> tuple[Trajectory | None, str | None]:
    """The session's traces, written beside its calls; or why there are none."""
    try:
        options = Options(builder=assignment.builder.name, rewritten=assignment.builder.rewritten)
        trajectory = _within(assignment.budgets.grading_s, lambda: build(folder.path, options))
        if trajectory is None:
            return (
                None,
                f"its traces were not built within the {assignment.budgets.grading_s:g} s that grading may take",
            )
        write_trajectories([trajectory], folder.path / TRAJECTORY)
    except Exception as error:  # whatever is wrong with the traces, the session and its reward are delivered
        if passing(error):
            raise
        logger.exception("session %s: its traces could not be built", folder.path.name)
        return None, f"its traces could not be built: {error}"
    return trajectory, None


def _within[T](seconds: float, work: Callable[[], T]) -> T | None:
    """What it came to; None when it takes longer. It writes nothing, so nobody minds that it goes on then."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised where the outcome is asked for
            outcome.set_exception(error)

    threading.Thread(target=run, name="traces", daemon=True).start()
    return outcome.result() if wait([outcome], timeout=seconds).done else None


def _versions(trajectory: Trajectory | None) -> list[str]:
    versions = [version for trace in (trajectory.traces if trajectory else []) for version in trace.policy_versions]
    return list(dict.fromkeys(versions))
