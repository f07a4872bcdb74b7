"""What is reported of a session that has come to its end, and the files that go with it.

A report stands on disk before it is sent and until it was answered, so that a gateway that is killed sends it in its
next life.
"""

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import orjson

from polar_mitm.capture.folder import SessionFileError, SessionFolder, SessionRecord
from polar_mitm.capture.recover import recover
from polar_mitm.client.models import File, StageTimes
from polar_mitm.client.nodes import Assignment, Report
from polar_mitm.rollout.gateway.pipeline import Held
from polar_mitm.sandboxes import SANDBOXES, scratch
from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.files import write_trajectories
from polar_mitm.trajectory.trace import Trajectory

logger = logging.getLogger(__name__)

ASSIGNMENT = "assignment.json"
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
    """Raises OSError."""
    (folder / ASSIGNMENT).write_text(assignment.model_dump_json())


def report_of(held: Held, incarnation: str) -> Report:
    """The report of a session that is done, written into its folder. Raises OSError."""
    assignment = held.assignment
    if held.sample is None:
        reason = "cancelled" if held.cancelled else held.trouble
        return Report(
            session_id=assignment.session_id,
            incarnation=incarnation,
            status="cancelled" if held.cancelled else "error",
            status_reason=reason,
            ended_in=held.ended_in,
            times=held.times,
        )
    return _write(held.sample.folder, assignment, incarnation, held.ended_in, held.times)


def left_behind(sessions: Path, incarnation: str) -> Iterator[tuple[Assignment, Report]]:
    """Of an earlier life of this gateway: what was never answered. Sessions that were cut off are closed first."""
    for path in sorted(sessions.glob("*/" + ASSIGNMENT)):
        folder = SessionFolder(path.parent)
        try:
            assignment = Assignment.model_validate_json(path.read_bytes())
            if (folder.path / REPORT).exists():
                report = Report.model_validate_json((folder.path / REPORT).read_bytes())
                yield assignment, report.model_copy(update={"incarnation": incarnation})
                continue
            record = recover(folder.path)
            if sandbox := SANDBOXES.get(record.sandbox or ""):
                sandbox.sweep(record.session_id)
            scratch.sweep(record.session_id)
            yield assignment, _write(folder, assignment, incarnation, "running", StageTimes())
        except (OSError, ValueError, SessionFileError) as error:
            logger.error("%s: what an earlier gateway left here cannot be reported: %s", path.parent, error)


def answered(folder: Path) -> None:
    """The server has it: nothing of it is sent again."""
    (folder / ASSIGNMENT).unlink(missing_ok=True)


def files_of(folder: Path) -> list[File]:
    """Those to deliver, with their digests."""
    found = []
    for name in KEPT:
        path = folder / name
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(File(name=name, bytes=path.stat().st_size, sha256=digest))
    return found


def _write(folder: SessionFolder, assignment: Assignment, incarnation: str, ended_in: str, times: StageTimes) -> Report:
    record = folder.load()
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
            "record": _shown(record),
            "files": files_of(folder.path),
        }
    )
    scratch_file = folder.path / f".{REPORT}"
    scratch_file.write_text(report.model_dump_json())
    scratch_file.replace(folder.path / REPORT)
    return report


def _trajectory(folder: SessionFolder, assignment: Assignment) -> tuple[Trajectory | None, str | None]:
    """The session's traces, written beside its calls; or why there are none."""
    try:
        options = Options(builder=assignment.builder.name, rewritten=assignment.builder.rewritten)
        trajectory = build(folder.path, options)
        write_trajectories([trajectory], folder.path / TRAJECTORY)
    except Exception as error:  # whatever is wrong with the traces, the session and its reward are delivered
        logger.exception("session %s: its traces could not be built", folder.path.name)
        return None, f"its traces could not be built: {error}"
    return trajectory, None


def _versions(trajectory: Trajectory | None) -> list[str]:
    versions = [version for trace in (trajectory.traces if trajectory else []) for version in trace.policy_versions]
    return list(dict.fromkeys(versions))


def _shown(record: SessionRecord) -> dict[str, object]:
    shown: dict[str, object] = orjson.loads(record.model_dump_json(by_alias=True))
    return shown
