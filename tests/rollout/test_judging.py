"""How a run of a harness is judged: by its exit status and its calls, never by what it wrote to stderr."""

from pathlib import Path

import pytest

from polar_mitm.capture.record import Call
from polar_mitm.capture.session import SessionFolder
from polar_mitm.rollout.sample import _status
from polar_mitm.sandboxes.base import Exit
from tests.capture.samples import make_call

NOISE = "ERROR stream disconnected: 426 Upgrade Required\n"


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    made = SessionFolder.create(tmp_path, "ses_1")
    made.stderr.write_text(NOISE)
    made.stdout.write_text("")
    return made


def ended(code: int, *, timed_out: bool = False) -> Exit:
    return Exit(code=code, timed_out=timed_out, seconds=3.0)


def test_P050_an_error_on_stderr_beside_exit_code_0_is_a_completed_run(folder: SessionFolder) -> None:
    assert _status(ended(0), folder, []) == ("completed", None)


@pytest.mark.parametrize(("calls", "status"), [([make_call("one")], "failed"), ([], "error")])
def test_a_run_that_ends_badly_quotes_the_last_words(calls: list[Call], status: str, folder: SessionFolder) -> None:
    assert _status(ended(1), folder, calls) == (status, f"exit code 1: {NOISE.strip()}")


def test_a_run_that_took_too_long_is_a_timeout_whatever_its_exit_code(folder: SessionFolder) -> None:
    assert _status(ended(0, timed_out=True), folder, []) == ("timeout", "stopped after 3 s")
