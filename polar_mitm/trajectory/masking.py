"""What session.json says of a session as training data: whether it may be trained on, and what it is compared with."""

from polar_mitm.capture.folder import SessionRecord


def group_of(record: SessionRecord) -> str:
    """The name of its group. Other harnesses ask other things of a model, so their rewards are not compared."""
    if record.task_id is None:
        return record.session_id
    return f"{record.task_id}/{record.harness}" if record.harness else record.task_id


def masked(record: SessionRecord, *, torn: bool, keep_unrewarded: bool) -> str | None:
    """Why no token of this session is trained; None when nothing is against it. `torn`: its last call was cut off."""
    if record.poisoned is not None:
        return f"poisoned: {record.poisoned}"
    if torn:
        return "incomplete: its last call was cut off"
    if record.status == "open":
        return "incomplete: it was never closed"
    if record.status != "completed":
        return f"{record.status}: {record.status_reason}" if record.status_reason else record.status
    if record.reward is None and not keep_unrewarded:
        return f"no reward: {record.evaluation_error or 'no evaluator gave one'}"
    return None
