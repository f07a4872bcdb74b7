"""docs/pitfalls.md says the truth: a number with a test has one, and one without says why."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (P\d{3}) \| (.+) \| (yes|no)([;:] .+)? \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs/pitfalls.md").read_text())
NAMED = {
    number
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    for number in re.findall(r"P\d{3}", name)
}


@pytest.mark.parametrize(("number", "holds", "answer", "reason"), ROWS, ids=[row[0] for row in ROWS])
def test_a_number_with_a_test_has_one_and_one_without_says_why(
    number: str, holds: str, answer: str, reason: str
) -> None:
    assert (number in NAMED) == (answer == "yes")
    assert answer == "yes" or reason


def test_every_row_of_the_page_is_read_and_no_number_stands_twice() -> None:
    lines = [line for line in (ROOT / "docs/pitfalls.md").read_text().splitlines() if line.startswith("| P")]
    assert len(lines) == len(ROWS)
    assert len({row[0] for row in ROWS}) == len(ROWS)
