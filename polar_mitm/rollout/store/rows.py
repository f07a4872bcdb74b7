"""From rows to the models of the API."""

import json
from typing import Any

from sqlalchemy import Row

from polar_mitm.client.models import CallbackView, Counts, Event, File, Result, Session, StageTimes, Task
from polar_mitm.client.nodes import Report
from polar_mitm.json_text import loads
from polar_mitm.rollout.store.entries import Lane, Queued

ENDINGS = ("completed", "failed", "timeout", "cancelled", "error")


def lane_text(lane: Lane) -> str:
    return json.dumps([lane.policy_version, lane.harness, lane.sandbox, lane.scenario])


def lane_of(text: str) -> Lane:
    return Lane(*json.loads(text))


def task_of(row: Row[Any], live: int = 0, body: str | None = None) -> Task:
    """`live`: how many of its open samples are on a gateway. `body`: its request, where it is to be shown."""
    request = None if body is None else loads(body)
    return Task(
        task_id=row.task_id,
        group_id=row.group_id,
        status=row.status,
        status_reason=row.status_reason,
        num_samples=row.num_samples,
        samples=Counts(
            queued=row.open - live,
            live=live,
            usable=row.usable,
            **{ending: getattr(row, ending) for ending in ENDINGS},
        ),
        attempts=row.attempts,
        priority=row.priority,
        policy_version=row.policy_version,
        stop_after=row.stop_after,
        mean_reward=row.reward_sum / row.rewarded if row.rewarded else None,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        metadata=None if request is None else request.get("metadata", {}),
        request=request,
    )


def session_of(row: Row[Any], stage: str | None = None, times: StageTimes | None = None) -> Session:
    """`stage` and `times`: what its gateway has told of a session that it has."""
    where = {"queued": "queued", "live": stage or "assigned", "done": "done"}[row.state]
    reported = loads(row.times) if row.times else {}
    known = {"queued_at": row.queued_at, "assigned_at": row.assigned_at}
    return Session.model_validate(
        {
            "session_id": row.session_id,
            "task_id": row.task_id,
            "group_id": row.group_id,
            "sample": row.sample,
            "attempt": row.attempt,
            "stage": where,
            "gateway": row.gateway,
            "status": row.status,
            "status_reason": row.status_reason,
            "ended_in": row.ended_in,
            "reward": row.reward,
            "usable": row.usable,
            "counts": row.counts,
            "seq": row.seq,
            "times": {"finished_at": row.finished_at} | (times.model_dump() if times else reported) | known,
        }
    )


def result_of(row: Row[Any]) -> Result:
    """Of a session's row with its `body`: the report as it came, or null when it ended without one."""
    if row.body is None:
        return Result(seq=row.seq, session=session_of(row))
    report = Report.model_validate(loads(row.body))
    return Result(
        seq=row.seq,
        session=session_of(row),
        rewards=report.rewards,
        evaluation_error=report.evaluation_error,
        masked=report.masked,
        trained_tokens=report.trained_tokens,
        calls=report.calls,
        prompt_tokens=report.prompt_tokens,
        response_tokens=report.response_tokens,
        policy_versions=report.policy_versions,
        record=report.record,
        files=[File.model_validate(file.model_dump()) for file in report.files],
        files_url=report.files_url,
    )


def event_of(row: Row[Any]) -> Event:
    return Event.model_validate(dict(row._mapping) | {"data": loads(row.data)})


def callback_of(row: Row[Any]) -> CallbackView:
    return CallbackView.model_validate(
        {name: row._mapping[name] for name in CallbackView.model_fields if name in row._mapping}
    )


def queued_of(row: Row[Any]) -> Queued:
    """Of a session's row with its task's `order`, `priority`, `lane` and `waiting_s`."""
    return Queued(
        order=row.order,
        session_id=row.session_id,
        task_id=row.task_id,
        group_id=row.group_id,
        sample=row.sample,
        attempt=row.attempt,
        priority=row.priority,
        lane=lane_of(row.lane),
        deadline=None if row.waiting_s is None else row.queued_at + row.waiting_s,
    )
