"""What a run folder already holds: which samples are done, and what a run that was killed left behind."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.recover import recover
from polar_mitm.errors import NotReady
from polar_mitm.rollout.outcome import Outcome
from polar_mitm.sandboxes import SANDBOXES, scratch
from polar_mitm.tasks.scenario import Scenario

LOCK = ".run.lock"

DONE = ("completed", "failed", "timeout")
"""Endings of a session that was run and graded. After any other the sample is run again, as its next attempt."""


class RunBusy(NotReady):
    """Another run writes to the folder."""


class Cell(NamedTuple):
    """What samples are compared within."""

    scenario: str
    harness: str
    sandbox: str
    intercept: str

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        return cls(scenario.name, scenario.harness, scenario.sandbox, scenario.intercept)

    @classmethod
    def of_session(cls, session: SessionRecord) -> Self:
        name = (session.task_id or "").partition("/")[0]
        return cls(name, session.harness or "", session.sandbox or "", session.intercept or "")


type Key = tuple[Cell, str, int]
"""A sample: its cell, its task's id, its number."""


@dataclass(slots=True)
class Kept:
    """The samples of a run folder."""

    done: dict[Key, Outcome] = field(default_factory=dict)
    attempts: dict[Key, int] = field(default_factory=dict)
    """How often each was begun."""

    @staticmethod
    def key(cell: Cell, task_id: str, sample: int) -> Key:
        return cell, task_id, sample


def take_up(out: Path) -> Kept:
    """Read every session of the folder, and close those whose process was killed: they are no more than begun.

    Of a sample that is done more than once the first counts. The caller holds the folder's lock alone, so that nothing
    open here is alive. Raises OSError, SessionFileError, CallFileError and CallLogError.
    """
    kept = Kept()
    for path in sorted(path for path in out.glob("ses_*") if path.is_dir()):
        folder = SessionFolder(path)
        if not folder.record.exists() and not folder.calls.exists():
            continue  # killed before it wrote anything
        session = recover(path)
        sweep(session)
        if session.sample is None:
            continue
        sample = Kept.key(Cell.of_session(session), session.task_id or "", session.sample)
        kept.attempts[sample] = max(kept.attempts.get(sample, 0), session.attempt)
        if session.status in DONE and not session.incomplete:
            kept.done.setdefault(sample, Outcome.of(path))
    return kept


def sweep(session: SessionRecord) -> None:
    """End what a session whose process was killed left running, and remove its containers, their images and folders."""
    if session.incomplete and (sandbox := SANDBOXES.get(session.sandbox or "")):
        sandbox.sweep(session.session_id)
        scratch.sweep(session.session_id)


@contextmanager
def held(out: Path, *, alone: bool, gateway: bool = False) -> Iterator[None]:
    """Hold the run folder, or a gateway's: runs may share it, but who takes up a killed one needs it alone.

    Raises RunBusy and OSError.
    """
    handle = os.open(out / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            if gateway:
                raise RunBusy(f"another gateway uses {out}: stop it, or name another --state") from None
            raise RunBusy(f"another run writes to {out}: wait for it, or name another --out") from None
        yield
    finally:
        os.close(handle)
