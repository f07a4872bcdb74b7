"""What kind of call each recorded request is: a turn of its harness, or one of the side requests beside it."""

import pytest

from polar_mitm.proxy.kinds import Opening, classify
from tests.wire.fixtures import Fixture, fixtures

KINDS = {"turn": "turn", "sub": "subagent", "title": "title", "classifier": "classifier", "compaction": "compaction"}
"""By the label of the recording, without its number."""

BY_THE_TURNS_ALONE = {
    ("gemini-cli", "sub-1"),
    ("qwen-code", "sub-1"),
    ("opencode", "compaction"),
    ("pi", "compaction"),
    ("qwen-code", "compaction-again"),
}
"""They say nothing of what they are: that they differ from the session's first turn tells it."""

ALL = fixtures()
REFUSED = [fixture for fixture in ALL if "thread" in fixture.body]
SERVED = [fixture for fixture in ALL if fixture not in REFUSED]


def run_of(fixture: Fixture) -> tuple[str, str]:
    return fixture.id.split("/")[0], fixture.data["scene"]


OPENINGS = {run_of(fixture): Opening.of(fixture.ask().chat) for fixture in SERVED if fixture.data["label"] == "turn-1"}


def kind(fixture: Fixture, main: Opening | None) -> str:
    found, reason = classify(fixture.request, fixture.ask(), main)
    assert reason
    return found


def expected(fixture: Fixture) -> str:
    return KINDS[fixture.data["label"].partition("-")[0]]


@pytest.mark.parametrize("fixture", SERVED, ids=lambda fixture: fixture.id)
def test_a_recorded_request_is_of_the_kind_that_its_harness_meant(fixture: Fixture) -> None:
    assert kind(fixture, OPENINGS[run_of(fixture)]) == expected(fixture)
    # A title or a verdict may come before the first turn.
    unmarked = (fixture.data["harness"], fixture.data["label"]) in BY_THE_TURNS_ALONE
    assert kind(fixture, None) == ("turn" if unmarked else expected(fixture))


def test_every_recording_was_looked_at_and_every_kind_is_among_them() -> None:
    assert len(SERVED) + len(REFUSED) == len(ALL)
    assert {expected(fixture) for fixture in SERVED} == set(KINDS.values())
    # pi learns from a refusal that it must send its whole conversation; what is refused is no call.
    assert {fixture.data["harness"] for fixture in REFUSED} == {"pi"}
