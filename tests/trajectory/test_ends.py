"""End-of-turn tokens: which are learned, and what becomes of the ones that a template puts others for."""

from pathlib import Path

import pytest

from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.ends import EndTokens
from polar_mitm.trajectory.seen import read_session
from tests.trajectory.sessions import World
from tests.trajectory.template import END, OTHER_END, SPECIAL

THIRD_END = 22


def learned(world: World, out: Path, given: tuple[int, ...] = ()) -> frozenset[int]:
    return EndTokens(read_session(world.write(out)).calls, given).ids


def test_what_ends_turns_is_learned_each_of_several(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    for end in (END, OTHER_END, END):
        world.answer(talk, "One.", end=end)
        talk.user("More.")
    assert learned(world, tmp_path) == {END, OTHER_END}


def test_the_last_token_of_an_answer_that_was_cut_off_is_no_end(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One", end=None)
    world.answer(talk.user("More."), "Two", end=None, finish="stop", sampling={"stop": ["Two"]})
    world.answer(talk.user("More."), "Three.", forced=((0, 3),))
    world.answer(talk.user("More."), "Four.", logprobs=[])
    assert learned(world, tmp_path) == frozenset()


def test_what_stands_inside_an_answer_is_no_end(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.", response_ids=[300, OTHER_END, 301, END])
    world.answer(talk.user("More."), "Two.", end=OTHER_END)
    assert learned(world, tmp_path) == {END}


def test_ends_can_be_given(tmp_path: Path) -> None:
    assert learned(World(), tmp_path, (THIRD_END,)) == {THIRD_END}


@pytest.mark.parametrize("rewritten", ["fork", "substitute"])
def test_an_end_that_the_template_leaves_out(tmp_path: Path, rewritten: str) -> None:
    """The answer is followed at once by the next message."""
    world, talk = World(), World().talk()
    first = world.answer(talk, "One.", end=OTHER_END)
    assert first.response
    follows = [*first.prompt_ids, *first.response.response_ids[:-1], SPECIAL, SPECIAL + 1]
    world.answer(talk.user("More."), "Two.", prompt_ids=follows)
    options = Options(rewritten="substitute" if rewritten == "substitute" else "fork")
    [trace] = build(world.write(tmp_path), options).traces
    assert [turn.relation for turn in trace.turns] == ["root", "template_tail"]
    end = [OTHER_END] if rewritten == "substitute" else []
    stands = [*first.response.response_ids[:-1], *end, SPECIAL, SPECIAL + 1]
    assert trace.response_ids[: len(stands)] == stands
    assert trace.exact == (rewritten == "fork")


def test_a_prompt_that_goes_on_inside_the_answer(tmp_path: Path) -> None:
    """The harness has the model continue its own message: the end of turn is taken away."""
    world, talk = World(), World().talk()
    first = world.answer(talk, "One.")
    assert first.response
    second = world.answer(talk, " Two.", prompt_ids=[*first.prompt_ids, *first.response.response_ids[:-1]])
    trajectory = build(world.write(tmp_path))
    [trace] = trajectory.traces
    assert trajectory.relations == {"root": 1, "template_tail": 1}
    assert trajectory.ledger.bins == {"trained": world.sampled - 1, "context": 1}
    assert second.response
    assert trace.prompt_ids + trace.response_ids == second.prompt_ids + second.response.response_ids


def test_a_text_that_goes_on_where_the_end_was_is_rewritten(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One")
    talk.messages[-1]["content"] = "One and two"
    world.answer(talk.user("More."), "Three.")
    trajectory = build(world.write(tmp_path))
    assert trajectory.relations == {"root": 1, "rewritten": 1}
    assert trajectory.breaks[0].cause == "message_edited"


def test_without_a_known_end_nothing_is_substituted(tmp_path: Path) -> None:
    """No one can tell where the re-rendered answer ends."""
    world, talk = World(), World().talk()
    world.answer(talk, "hello", spelled=True, end=None)
    world.answer(talk.user("More."), "Two", end=None)
    folder = world.write(tmp_path)
    options = Options(rewritten="substitute", drift_limit=1.0)
    assert len(build(folder, options).traces) == 2
    told = Options(rewritten="substitute", drift_limit=1.0, end_tokens=(END,))
    [trace] = build(folder, told).traces
    drift = trace.turns[1].drift
    assert drift and (drift.sampled_tokens, drift.rendered_tokens, drift.common_tokens) == (5, 1, 0)
    assert trace.response_ids[5] == END and trace.loss_mask[5] == 0
