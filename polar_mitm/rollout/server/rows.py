"""A session's result as the rows of an export format, for trainers that take rows and keep no folder of sessions."""

import asyncio
import re
from typing import Any, Final

from pydantic import ValidationError

from polar_mitm.capture.canonical import loads
from polar_mitm.capture.folder import SessionRecord
from polar_mitm.client.models import Result
from polar_mitm.rollout.server.results import TRAJECTORY
from polar_mitm.rollout.server.service import Service
from polar_mitm.rollout.store.writer import Conflict
from polar_mitm.trajectory.exporters import FORMATS
from polar_mitm.trajectory.exporters.base import ExportFailed, Session, Tally
from polar_mitm.trajectory.exporters.check import checked
from polar_mitm.trajectory.exporters.text import line
from polar_mitm.trajectory.trace import Ledger, Trajectory

KNOWN: Final = f"^({'|'.join(re.escape(name) for name in FORMATS)})$"


async def rows(service: Service, result: Result, form: str) -> bytes:
    """A JSON array. Raises OSError, and Conflict for a trajectory that no row can be made of."""
    return await asyncio.to_thread(_rows, service, result, form)


def _rows(service: Service, result: Result, form: str) -> bytes:
    session_id = result.session.session_id
    try:
        trajectory = _trajectory(service, result)
        record = SessionRecord.model_validate(result.record or _record(result))
        made = list(FORMATS[form].rows(Session(checked(trajectory), record), Tally()))
    except (ValidationError, ValueError, ExportFailed) as error:
        raise Conflict(f"session {session_id} cannot be written as {form}: {error}") from error
    return b"[" + b",".join(line(row).rstrip(b"\n") for row in made) + b"]"


def _trajectory(service: Service, result: Result) -> Trajectory:
    """What the gateway built; of a session that came to nothing, an empty one that says why."""
    session = result.session
    try:
        text = b"".join(service.files.read(session.task_id, session.session_id, TRAJECTORY))
    except FileNotFoundError:
        why = result.masked or session.status_reason or session.status or "it has no trajectory"
        return Trajectory(
            session_id=session.session_id,
            task_id=session.task_id,
            sample=session.sample,
            attempt=session.attempt,
            group_id=session.group_id,
            rollout_id=session.session_id,
            builder="prefix_merging",
            status=session.status or "open",
            masked=why,
            reward=session.reward,
            rewards=result.rewards,
            traces=[],
            ledger=Ledger(sampled=0, bins={}, entries=[]),
        )
    return Trajectory.model_validate(loads(text))


def _record(result: Result) -> dict[str, Any]:
    """Of a session that never had a folder."""
    session, times = result.session, result.session.times
    status = "error" if session.status == "lost" else session.status or "open"
    return {
        "session_id": session.session_id,
        "started_at": times.assigned_at or times.queued_at or 0.0,
        "status": status,
        "status_reason": session.status_reason,
    }
