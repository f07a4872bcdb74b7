"""How a run of a harness is judged: by its exit status and its calls, never by what it wrote to stderr."""

from pathlib import Path

import pytest

from polar_mitm.capture.record import Call, Failure
from polar_mitm.capture.session import Ending
from polar_mitm.rollout.judging import LARGEST_OUTPUT, judge, printed
from polar_mitm.sandboxes.base import Exit
from tests.capture.samples import make_call

NOISE = "ERROR stream disconnected: 426 Upgrade Required"
OVERFLOW = Failure(what="the prompt has 12000 tokens, the window 8192", kind="context_overflow", fault="client")
LEFT = Failure(what="the client left before the answer", kind="client_left", fault="client")


def ended(code: int, *, timed_out: bool = False) -> Exit:
    return Exit(code=code, timed_out=timed_out, seconds=3.0)


def call(failure: Failure | None = None) -> Call:
    made = make_call("one")
    made.error = failure
    return made


def judged(code: int, calls: list[Call], *, timed_out: bool = False, steps: int = 0) -> tuple[Ending, str | None]:
    return judge(ended(code, timed_out=timed_out), calls, steps=steps, last_words=NOISE)


def test_P050_an_error_on_stderr_beside_exit_code_0_is_a_completed_run() -> None:
    assert judged(0, [call()]) == ("completed", None)


def test_a_run_that_ends_badly_quotes_the_last_words() -> None:
    assert judged(1, [call()]) == ("failed", f"exit code 1: {NOISE}")
    assert judged(1, []) == ("error", f"exit code 1: {NOISE}")


def test_a_run_without_one_call_is_an_error_though_its_exit_code_is_0() -> None:
    assert judged(0, []) == ("error", f"exit code 0 without one model call: {NOISE}")
    assert judge(ended(0), [], steps=0, last_words="") == ("error", "exit code 0 without one model call")


def test_a_run_whose_last_turn_failed_is_no_completed_one() -> None:
    assert judged(0, [call(), call(OVERFLOW)]) == (
        "failed",
        "exit code 0 after a call that failed: the prompt has 12000 tokens, the window 8192",
    )
    assert judged(1, [call(OVERFLOW)])[1] == f"exit code 1: {NOISE}; its last call failed: {OVERFLOW.what}"


def test_a_failed_call_that_another_followed_was_got_over() -> None:
    assert judged(0, [call(OVERFLOW), call()]) == ("completed", None)


def test_a_side_request_that_failed_is_no_failure_of_the_run() -> None:
    title = call(OVERFLOW)
    title.origin.kind = "title"
    assert judged(0, [call(), title]) == ("completed", None)


def test_a_call_that_the_harness_itself_gave_up_is_no_failure_of_the_run() -> None:
    assert judged(0, [call(), call(LEFT)]) == ("completed", None)


def test_a_script_that_was_not_taken_whole_is_a_failure() -> None:
    assert judged(0, [call()], steps=2) == (
        "failed",
        "0 of the script's 2 steps were taken: does the harness offer the tool?",
    )


def test_a_run_that_took_too_long_is_a_timeout_whatever_its_exit_code() -> None:
    assert judged(0, [], timed_out=True) == ("timeout", "stopped after 3 s")


def test_a_run_that_its_sandbox_ended_at_a_limit_says_which() -> None:
    over = Exit(code=137, timed_out=False, seconds=3.0, over_limit="memory: the limit is 64 MiB")
    assert judge(over, [call()], steps=0, last_words=NOISE) == ("failed", "memory: the limit is 64 MiB")


def test_of_a_long_output_the_end_is_read(tmp_path: Path) -> None:
    file = tmp_path / "stdout"
    file.write_bytes(b"x" * LARGEST_OUTPUT + b"\xff\0end")
    assert len(printed(file)) == LARGEST_OUTPUT
    assert printed(file).endswith("x\ufffd\0end")


def test_an_output_that_was_never_made_is_empty(tmp_path: Path) -> None:
    assert printed(tmp_path / "none") == ""


@pytest.mark.parametrize("words", ["", "y" * 1000])
def test_the_last_words_are_cut(words: str) -> None:
    _, reason = judge(ended(1), [], steps=0, last_words=words)
    assert reason == ("exit code 1" if not words else f"exit code 1: {'y' * 400}")


def test_a_session_that_reached_a_limit_of_its_own_ends_as_its_harness_does() -> None:
    limit = Failure(what="the session's limit of 2 calls is reached", kind="limit", fault="polar", status=200)
    assert judged(0, [call(), call(limit)]) == ("completed", None)
