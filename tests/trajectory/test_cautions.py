from typing import Any

import pytest

from polar_mitm.trajectory.cautions import cautions
from polar_mitm.trajectory.trace import Turn


def turn(mode: str | None, **sampling: Any) -> Turn:
    return Turn(
        call_id="call_1",
        start=0,
        end=1,
        relation="root",
        kind="turn",
        started_at=0.0,
        finish_reason="stop",
        bin="trained",
        logprobs_mode=mode,
        sampling=sampling,
    )


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (turn("raw_logprobs", temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, presence_penalty=0.0), []),
        (turn("raw_logprobs", temperature=1, top_k=0, repetition_penalty=1.0, seed=7), []),
        (turn("raw_logprobs"), []),
        (turn(None, temperature=0.0), ["sampled at temperature 0.0, and the log-probabilities are those at 1"]),
        (turn("processed_logprobs", temperature=0.5, presence_penalty=1.0), []),
        (
            turn("raw_logprobs", top_p=0.9, min_p=0.1),
            ["sampled under top_p and min_p, which the log-probabilities do not know"],
        ),
        (
            turn("processed_logprobs", top_k=20),
            ["sampled under top_k: the log-probabilities are of what the filter left"],
        ),
        (
            turn("raw_logprobs", repetition_penalty=1.1),
            ["sampled under repetition_penalty, which the log-probabilities do not know"],
        ),
    ],
)
def test_a_turn_whose_probabilities_are_not_the_samplers_says_so(one: Turn, found: list[str]) -> None:
    assert cautions(one) == found
