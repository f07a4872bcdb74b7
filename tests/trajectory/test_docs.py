"""docs/trajectories.md names every word that a trajectory can hold, and no other."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from polar_mitm.trajectory.trace import Bin, Cause, Relation

PAGE = (Path(__file__).parents[2] / "docs" / "trajectories.md").read_text()


@pytest.mark.parametrize(("heading", "words"), [("relation", Relation), ("cause", Cause), ("bin", Bin)])
def test_the_page_explains_each_word_once(heading: str, words: Any) -> None:
    table = PAGE.split(f"\n| {heading} |")[1].split("\n\n")[0]
    named = [word for row in table.splitlines()[2:] for word in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(get_args(words.__value__))
