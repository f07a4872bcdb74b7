"""Section G of docs/pitfalls.md, by number."""

from pathlib import Path

import pytest

from polar_mitm.capture.record import Call
from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.run import build_run
from polar_mitm.trajectory.trace import Trace, Turn
from tests.trajectory.sessions import World
from tests.trajectory.template import OTHER_END, Template


def ids_of(call: Call) -> list[int]:
    assert call.response
    return call.response.response_ids


def assert_context(world: World, trace: Trace, turn: Turn) -> None:
    """The turn stands in the trace where it stood in the engine."""
    [call] = [call for call in world.calls if call.identity.call_id == turn.call_id]
    assert trace.prompt_ids + trace.response_ids[: turn.start] == call.prompt_ids
    assert trace.response_ids[turn.start : turn.end] == ids_of(call)[: turn.end - turn.start]


def test_P141_sampled_ids_stay_those_that_the_logprobs_belong_to(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    call = world.answer(talk, "hello", spelled=True)
    assert call.response and world.template.encode("hello") != call.response.response_ids[:-1]
    [trace] = build(world.write(tmp_path)).traces
    assert trace.response_ids == call.response.response_ids and trace.logprobs == call.response.logprobs


def test_P142_a_call_that_comes_back_rerendered_is_trained_and_counted_by_tool(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    for _ in range(3):
        world.answer(talk, "", tool="edit", arguments='{"old":"a","new":"b"}')
        function = talk.messages[-1]["tool_calls"][0]["function"]
        function["arguments"] = '{"new":"b","old":"a","replace_all":false}'
        talk.tool("done")
    world.answer(talk, "Done.")
    world.write(tmp_path)
    run = build_run(tmp_path)
    [trajectory] = run
    assert trajectory.ledger.bins == {"trained": world.sampled}
    assert run.totals.causes == {"arguments_rerendered": 3}
    assert run.totals.tools["edit"] == run.totals.trained_tools["edit"] == sum(len(ids_of(c)) for c in world.calls[:3])


def test_P143_thinking_that_a_template_takes_out_is_a_named_break(tmp_path: Path) -> None:
    world, talk = World(Template(forgetful=True)), World().talk()
    for _ in range(4):
        world.answer(talk, "So.", reasoning="hm")
        talk.user("More.")
    trajectory = build(world.write(tmp_path))
    assert [found.cause for found in trajectory.breaks] == ["reasoning_stripped"] * 3
    assert [trace.prompt_ids for trace in trajectory.traces] == [call.prompt_ids for call in world.calls]
    assert trajectory.ledger.bins == {"trained": world.sampled}


def test_P145_no_two_renders_are_patched_together(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One and two.")
    talk.messages[-1]["content"] = "One, two."
    world.answer(talk.user("More."), "Three.")
    for trace in build(world.write(tmp_path)).traces:
        assert world.template.decode(trace.prompt_ids + trace.response_ids).count("One") == 1
        for turn in trace.turns:
            assert_context(world, trace, turn)


@pytest.mark.parametrize("ends", [(None, 20, 20, 20, 20, 20), (20, OTHER_END, 20, OTHER_END, None, 20)])
def test_P147_every_turn_of_a_long_conversation_has_its_own_context(tmp_path: Path, ends: tuple[int | None]) -> None:
    world, talk = World(), World().talk()
    for end in ends:
        world.answer(talk, "Word by word.", end=end)
        talk.user("More.")
    [trace] = build(world.write(tmp_path)).traces
    assert len(trace.turns) == 6
    for turn in trace.turns:
        assert_context(world, trace, turn)


def test_P152_how_a_turn_was_sampled_stands_on_it(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    sampling = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "logprobs": 0}
    call = world.answer(talk, "One.", sampling=sampling)
    assert call.engine
    call.engine.logprobs_mode = "raw_logprobs"
    world.write(tmp_path)
    run = build_run(tmp_path)
    [trajectory] = run
    turn = trajectory.traces[0].turns[0]
    assert turn.sampling == {"temperature": 0.7, "top_p": 0.9, "top_k": 20}
    assert turn.logprobs_mode == "raw_logprobs"
    assert "sampled at temperature 0.7, and the log-probabilities are those at 1" in run.totals.cautions


def test_P153_a_run_says_that_filters_were_on(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    for sampling in ({"temperature": 1.0, "top_p": 0.9, "top_k": -1}, {"temperature": 1.0, "top_p": 1.0}):
        call = world.answer(talk, "One.", sampling=sampling)
        assert call.engine
        call.engine.logprobs_mode = "processed_logprobs"
        talk.user("More.")
    world.write(tmp_path)
    run = build_run(tmp_path)
    list(run)
    assert run.totals.cautions == {"sampled under top_p: the log-probabilities are of what the filter left": 1}


@pytest.mark.parametrize(
    ("deliveries", "bins"),
    [
        (("delivered", "delivered"), {"quarantined": 6}),
        (("aborted", "delivered"), {"superseded": 3, "trained": 3}),
        (("delivered", "partial"), {"superseded": 3, "trained": 3}),
        (("aborted", "aborted"), {"aborted": 6}),
    ],
)
def test_P157_the_delivery_says_which_of_two_last_answers_counted(
    tmp_path: Path, deliveries: tuple[str, str], bins: dict[str, int]
) -> None:
    world, talk = World(), World().talk()
    for text, delivery in zip(("One.", "Two."), deliveries, strict=True):
        world.answer(talk, text, delivery=delivery, append=False)
    assert build(world.write(tmp_path)).ledger.bins == bins


def test_P159_a_session_may_have_several_roots_after_a_compaction(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.")
    world.answer(talk.copy(kind="compaction").user("Sum up."), "One step is done by now.")
    world.answer(world.talk(user="Summary: One step is done by now."), "Two.")
    trajectory = build(world.write(tmp_path))
    assert [trace.lineage.kind for trace in trajectory.traces] == ["main", "side", "compaction"]
    assert trajectory.traces[2].lineage.of_trace == trajectory.traces[0].trace_id


def test_P161_a_title_is_never_trained(tmp_path: Path) -> None:
    world = World()
    world.answer(world.talk("Give a title.", tools=[], kind="title"), "A title.")
    world.answer(world.talk(), "One.")
    trajectory = build(world.write(tmp_path))
    assert [trace.trained for trace in trajectory.traces] == [0, 3]
    assert trajectory.ledger.bins == {"side_request": 5, "trained": 3}


def test_P163_drift_is_asked_for_and_measured(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "hello", spelled=True)
    world.answer(talk.user("More."), "Two.")
    folder = world.write(tmp_path)
    default = build(folder)
    assert default.rewritten == "fork" and all(trace.exact for trace in default.traces)
    [trace] = build(folder, Options(rewritten="substitute", drift_limit=1.0)).traces
    assert not trace.exact
    drift = trace.turns[1].drift
    assert drift and (drift.sampled_tokens, drift.rendered_tokens, drift.common_tokens) == (6, 2, 1)
