"""The tables that commands print: what a model or a client wrote is shown as it is, whatever it looks like."""

from rich.console import Console

from polar_mitm.cli.tables import call_row, calls_table
from tests.capture.samples import make_call


def test_text_that_looks_like_markup_is_shown_as_it_is() -> None:
    call = make_call("call_1", prompt_ids=[1], response_ids=[2])
    assert call.response
    call.response.text = r"a \[/x] [red]b[/] [/nothing]"
    console = Console(width=120)
    with console.capture() as captured:
        console.print(calls_table([call_row(call)]))
    assert r"a \[/x] [red]b[/] [/nothing]" in captured.get()
