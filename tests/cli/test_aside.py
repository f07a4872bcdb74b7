"""What is printed beside the work: in order, and never waited for."""

import logging
import threading
from collections.abc import Callable

import pytest

from polar_mitm.cli import aside as module
from polar_mitm.cli.aside import Aside, AsideHandler


def raising(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_work_is_done_in_order_and_seen_through_at_the_end() -> None:
    done: list[int] = []
    aside = Aside()
    for number in range(100):
        aside.do(lambda number=number: done.append(number))  # type: ignore[misc]
    aside.close()
    assert done == list(range(100))


def test_work_that_is_held_up_holds_up_nobody_not_even_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSING_S", 0.1)
    held, done = threading.Event(), threading.Event()
    aside = Aside()
    aside.do(held.wait)
    aside.do(done.set)
    aside.close()  # while it waits
    assert not done.is_set()
    held.set()
    assert done.wait(10)


@pytest.mark.parametrize("error", [BrokenPipeError(), UnicodeEncodeError("ascii", "→", 0, 1, "no")])
def test_a_reader_that_has_gone_or_cannot_show_a_line_costs_no_other(error: Exception) -> None:
    done = threading.Event()
    aside = Aside()
    aside.do(raising(error))
    aside.do(done.set)
    aside.close()
    assert done.is_set()


def test_a_log_goes_the_same_way() -> None:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    aside = Aside()
    logger = logging.Logger("of this test")
    logger.addHandler(AsideHandler(aside, handler))
    logger.warning("one %s", "line")
    aside.close()
    assert records == ["one line"]
