"""One export: sessions in, one at a time, rows out, and what is to be said about it at the end."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from polar_mitm.trajectory.cautions import cautions
from polar_mitm.trajectory.exporters.base import ExportRefused, Format, Session, Sink, Tally
from polar_mitm.trajectory.exporters.check import checked
from polar_mitm.trajectory.exporters.output import appearing


def export(
    sessions: Iterable[Session], form: Format, out: Path, *, models: Collection[str] = (), overwrite: bool = False
) -> Tally:
    """Write all rows to `out`, or nothing. `models` keeps only the traces of these; empty keeps all.

    Raises ExportRefused, ExportFailed, PackageMissing, and what iterating the sessions raises.
    """
    tally = Tally()
    with appearing(out, folder=form.folder, overwrite=overwrite) as made:
        sink = form.sink(made)
        try:
            for session in _once(sessions):
                if kept := _of_models(session, models, tally):
                    _write(Session(checked(kept.trajectory), kept.record), form, sink, tally)
        finally:
            sink.close()
        if not tally.sessions:
            of_them = f" with a trace of {' or '.join(models)}" if models else ""
            raise ExportRefused(f"there is no session{of_them} to export")
    return tally


def _once(sessions: Iterable[Session]) -> Iterator[Session]:
    seen: set[str] = set()
    for session in sessions:
        name = session.trajectory.session_id
        if name in seen:
            raise ExportRefused(f"session {name} is there twice: move one of its folders away")
        seen.add(name)
        yield session


def _of_models(session: Session, models: Collection[str], tally: Tally) -> Session | None:
    traces = session.trajectory.traces
    kept = [trace for trace in traces if not models or trace.model in models]
    if len(kept) == len(traces):
        return session
    if not kept:
        tally.left_out["sessions of other models"] += 1
        return None
    tally.left_out["traces of other models"] += len(traces) - len(kept)
    return Session(session.trajectory.model_copy(update={"traces": kept}), session.record)


def _write(session: Session, form: Format, sink: Sink, tally: Tally) -> None:
    trajectory = session.trajectory
    tally.models |= {trace.model for trace in trajectory.traces if trace.model is not None}
    if form.one_model and len(tally.models) > 1:
        names = ", ".join(sorted(tally.models))
        raise ExportRefused(
            f"session {trajectory.session_id} brings the models together to {names}, whose token ids are not the same "
            f"vocabulary's: name one with --model, or export to parquet, jsonl or atif, which keep them apart"
        )
    for row in form.rows(session, tally):
        sink.write(row)
        tally.rows += 1
    tally.sessions += 1
    tally.trained_tokens += sum(trace.trained for trace in trajectory.traces)
    if trajectory.masked is not None:
        tally.masked[trajectory.masked] += 1
    elif trajectory.reward is None and all(trace.reward is None for trace in trajectory.traces):
        tally.without_reward += 1
    for trace in trajectory.traces:
        for turn in trace.turns:
            if any(trace.loss_mask[turn.start : turn.end]):
                tally.cautions.update(cautions(turn))
    versions = {version for trace in trajectory.traces for version in trace.policy_versions}
    tally.across_versions += len(versions) > 1


def summary(tally: Tally) -> dict[str, Any]:
    """The tally as JSON holds it."""
    return {
        "sessions": tally.sessions,
        "rows": tally.rows,
        "trained_tokens": tally.trained_tokens,
        "models": sorted(tally.models),
        "masked": dict(tally.masked),
        "left_out": {what: count for what, count in tally.left_out.items() if count},
        "places": tally.places,
        "without_reward": tally.without_reward,
        "across_versions": tally.across_versions,
        "cautions": dict(tally.cautions),
    }
