"""The tables that commands print: what a model or a client wrote is shown as it is, whatever it looks like."""

from pathlib import Path

from rich.console import Console

from polar_mitm.capture.session import SessionRecord
from polar_mitm.cli.tables import call_row, calls_table, outcome_lines, outcomes_table
from polar_mitm.rollout.outcome import Outcome
from tests.capture.samples import make_call


def test_text_that_looks_like_markup_is_shown_as_it_is() -> None:
    call = make_call("call_1", prompt_ids=[1], response_ids=[2])
    assert call.response
    call.response.text = r"a \[/x] [red]b[/] [/nothing]"
    console = Console(width=120)
    with console.capture() as captured:
        console.print(calls_table([call_row(call)]))
    assert r"a \[/x] [red]b[/] [/nothing]" in captured.get()


def test_a_row_a_sample_and_a_row_a_call_fit_a_terminal_of_80_columns() -> None:
    session = SessionRecord(session_id="ses_01a22a52e159930b1566fc317e", sample=12, status="completed", started_at=0)
    session.calls, session.prompt_tokens, session.response_tokens, session.reward = 120, 1_234_567, 98_765, 0.5
    outcome = Outcome(Path("runs") / session.session_id, session, -10.25, {"tool_calls": 119, "stop": 1})
    call = make_call("call_1", prompt_ids=range(120_000), response_ids=range(9_999))
    assert call.response
    call.response.finish_reason = "tool_calls"
    console = Console(width=80)
    with console.capture() as captured:
        console.print(outcomes_table([outcome]))
        console.print(calls_table([call_row(call)]))
    assert len(captured.get().splitlines()) == 4
    assert "tool_calls" in captured.get() and "…" not in captured.get()
    assert outcome_lines([outcome]) == [f"    12  runs/{session.session_id}  119 tool_calls, 1 stop"]
