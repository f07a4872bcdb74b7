"""Which trace a call stands in, and as what."""

from pathlib import Path

import pytest

from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.trace import Trace, Trajectory
from tests.trajectory.sessions import World
from tests.trajectory.template import END, OTHER_END, Template


def relations(trajectory: Trajectory) -> dict[str, str]:
    """The relation of each call, by the last characters of its id."""
    return {turn.call_id[-2:]: turn.relation for trace in trajectory.traces for turn in trace.turns}


def bins(trajectory: Trajectory) -> dict[str, int]:
    return {name: count for name, count in trajectory.ledger.bins.items() if count}


def calls_of(trace: Trace) -> list[str]:
    return [turn.call_id[-2:] for turn in trace.turns]


def test_a_conversation_that_only_grows_is_one_trace(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    for text in ("One.", "Two.", "Three."):
        world.answer(talk, text)
        talk.user("And then?")
    trajectory = build(world.write(tmp_path))
    [trace] = trajectory.traces
    assert trajectory.relations == {"root": 1, "extends": 2}
    assert bins(trajectory) == {"trained": world.sampled}
    last = world.calls[-1]
    assert last.response
    assert trace.prompt_ids + trace.response_ids == last.prompt_ids + last.response.response_ids
    assert trace.trained == world.sampled and trace.exact and trace.weight == 1.0
    for turn, call in zip(trace.turns, world.calls, strict=True):
        assert call.response
        assert trace.response_ids[turn.start : turn.end] == call.response.response_ids
        assert trace.logprobs[turn.start : turn.end] == call.response.logprobs
        assert set(trace.loss_mask[turn.start : turn.end]) == {1}


def test_per_request_makes_a_trace_of_each_call(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    for text in ("One.", "Two.", "Three."):
        world.answer(talk, text)
        talk.user("And then?")
    trajectory = build(world.write(tmp_path), Options(builder="per_request"))
    assert [trace.prompt_ids for trace in trajectory.traces] == [call.prompt_ids for call in world.calls]
    assert sum(trace.trained for trace in trajectory.traces) == world.sampled
    assert sum(trace.weight for trace in trajectory.traces) == pytest.approx(1.0)
    assert [trace.lineage.kind for trace in trajectory.traces] == ["main"] * 3


def test_an_answer_cut_off_by_length_goes_on_in_the_same_trace(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "It was a long", end=None)
    world.answer(talk.user("Go on."), "story.")
    trajectory = build(world.write(tmp_path))
    assert trajectory.relations == {"root": 1, "extends": 1}
    assert len(trajectory.traces) == 1


def test_another_end_of_turn_is_a_template_tail_and_stays_one_exact_trace(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.", end=OTHER_END)
    world.answer(talk.user("More."), "Two.", end=END)
    world.answer(talk.user("More."), "Three.", end=OTHER_END)
    trajectory = build(world.write(tmp_path))
    [trace] = trajectory.traces
    assert trajectory.relations == {"root": 1, "template_tail": 1, "extends": 1}
    assert bins(trajectory) == {"trained": world.sampled - 1, "context": 1}
    last = world.calls[-1]
    assert last.response
    assert trace.prompt_ids + trace.response_ids == last.prompt_ids + last.response.response_ids
    assert trace.exact


def test_a_substituted_template_tail_trains_the_sampled_end(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.", end=OTHER_END)
    world.answer(talk.user("More."), "Two.")
    trajectory = build(world.write(tmp_path), Options(rewritten="substitute"))
    [trace] = trajectory.traces
    assert bins(trajectory) == {"trained": world.sampled}
    assert not trace.exact
    drift = trace.turns[1].drift
    assert drift and (drift.sampled_tokens, drift.rendered_tokens, drift.common_tokens) == (3, 3, 2)


def test_a_rewritten_answer_begins_a_new_trace_in_which_the_old_tokens_are_context(tmp_path: Path) -> None:
    world, talk = World(Template(spaced=True)), World().talk()
    world.answer(talk, "", tool="read", arguments='{"path":"a"}')
    world.answer(talk.tool("text"), "It says text.")
    trajectory = build(world.write(tmp_path))
    first, second = trajectory.traces
    assert trajectory.relations == {"root": 1, "rewritten": 1}
    assert bins(trajectory) == {"trained": world.sampled}
    assert second.prompt_ids == world.calls[1].prompt_ids
    assert second.lineage.kind == "fork" and second.lineage.of_trace == first.trace_id
    assert first.weight + second.weight == pytest.approx(1.0)


def test_substitution_keeps_one_trace_and_measures_the_drift(tmp_path: Path) -> None:
    world, talk = World(Template(spaced=True)), World().talk()
    world.answer(talk, "", tool="read", arguments='{"path":"a"}')
    world.answer(talk.tool("text"), "It says text.")
    world.answer(talk.user("Sure?"), "Yes.")
    folder = world.write(tmp_path)
    trajectory = build(folder, Options(rewritten="substitute"))
    [trace] = trajectory.traces
    assert not trace.exact and trace.trained == world.sampled
    drift = trace.turns[1].drift
    assert drift and drift.rendered_tokens == drift.sampled_tokens + 1 == drift.common_tokens + 1
    assert trace.turns[2].drift is None
    strict = build(folder, Options(rewritten="substitute", drift_limit=0.01))
    assert [calls_of(trace) for trace in strict.traces] == [["00"], ["01", "02"]]


def test_going_back_begins_a_new_trace_and_what_was_left_stays_trained(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.")
    back = talk.copy()
    world.answer(talk.user("Left."), "Two.")
    world.answer(talk.user("On."), "Three.")
    world.answer(back.user("Right."), "Four.")
    world.answer(back.user("On."), "Five.")
    trajectory = build(world.write(tmp_path))
    assert [calls_of(trace) for trace in trajectory.traces] == [["00", "01", "02"], ["03", "04"]]
    assert relations(trajectory)["03"] == "rewound"
    assert bins(trajectory) == {"trained": world.sampled}
    rewind = trajectory.traces[1].lineage
    assert (rewind.kind, rewind.of_call) == ("rewind", world.calls[0].identity.call_id)


def test_of_two_answers_to_one_prompt_the_one_that_is_continued_is_trained(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk.copy(), "Lost.", append=False)
    world.answer(talk, "Kept.")
    world.answer(talk.user("More."), "End.")
    trajectory = build(world.write(tmp_path))
    assert relations(trajectory) == {"00": "root", "01": "retried", "02": "extends"}
    [lost] = [entry for entry in trajectory.ledger.entries if entry.bin == "superseded"]
    assert lost.call_id == world.calls[0].identity.call_id and lost.tokens == 3
    assert [calls_of(trace) for trace in trajectory.traces if trace.trained] == [["01", "02"]]


def test_a_lost_answer_is_superseded_by_the_one_that_arrived(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "Lost.", delivery="aborted")
    world.answer(talk, "Kept.")
    trajectory = build(world.write(tmp_path))
    assert bins(trajectory) == {"superseded": 3, "trained": 3}


@pytest.mark.parametrize(("delivery", "name"), [("aborted", "aborted"), ("partial", "undelivered")])
def test_an_answer_that_did_not_arrive_is_not_trained(tmp_path: Path, delivery: str, name: str) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.")
    world.answer(talk.user("More."), "Lost.", delivery=delivery)
    trajectory = build(world.write(tmp_path))
    assert bins(trajectory) == {"trained": 3, name: 3}


def test_an_answer_that_was_continued_did_arrive_whatever_its_record_says(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    call = world.answer(talk, "One.")
    call.delivery.status = "partial"
    world.answer(talk.user("More."), "Two.")
    assert bins(build(world.write(tmp_path))) == {"trained": world.sampled}


def test_an_error_instead_of_the_answer_is_undelivered(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.", failure="the engine did not read it")
    [entry] = build(world.write(tmp_path)).ledger.entries
    assert (entry.bin, entry.tokens) == ("undelivered", 3)
    assert "the engine did not read it" in entry.reason


def test_a_compaction_is_a_side_request_and_what_follows_names_it(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.")
    world.answer(talk.user("More."), "Two.")
    summing = talk.copy(kind="compaction").user("Sum up.")
    compaction = world.answer(summing, "The task was begun and two steps are done.")
    after = world.talk(user="Before: The task was begun and two steps are done. Now go on.")
    world.answer(after, "Three.")
    trajectory = build(world.write(tmp_path))
    assert relations(trajectory) == {"00": "root", "01": "extends", "02": "side_request", "03": "compacted"}
    main, summary, new = trajectory.traces
    assert summary.lineage.kind == "side" and summary.trained == 0
    assert new.lineage.kind == "compaction"
    assert (new.lineage.of_trace, new.lineage.of_call) == (main.trace_id, compaction.identity.call_id)
    assert new.broken_by and new.broken_by.cause == "compaction"


def test_a_compaction_by_another_agent_names_the_conversation_that_it_tells_of(tmp_path: Path) -> None:
    """pi and opencode send the conversation as one text; opencode's summary comes back as an assistant's message."""
    world, talk = World(), World().talk()
    world.answer(talk, "", tool="shell", arguments='{"cmd":"seq 10001 11500"}')
    world.answer(talk.tool("10001 10002"), "Both lists are printed.")
    summing = world.talk(system="You sum up.", user="[tool call] shell seq 10001 11500", kind="compaction")
    compaction = world.answer(summing, "One list was printed.")
    after = world.talk(user="What did we do so far?")
    after.messages.append({"role": "assistant", "content": "One list was printed."})
    world.answer(after.user("Go on."), "Done.")
    main, _, new = build(world.write(tmp_path)).traces
    assert (new.lineage.kind, new.lineage.of_trace) == ("compaction", main.trace_id)
    assert new.lineage.of_call == compaction.identity.call_id
    assert new.broken_by and new.broken_by.cause == "compaction"


def test_a_summary_that_is_looked_through_once_more_is_of_the_same_conversation(tmp_path: Path) -> None:
    """Gemini CLI's second request leaves the first one's question out: two answers stand together in it."""
    world, talk = World(), World().talk()
    world.answer(talk, "", tool="shell", arguments='{"cmd":"seq 10001 11500"}')
    world.answer(talk.tool("10001 10002"), "So.")
    world.answer(talk.copy(kind="compaction").user("Sum up."), "One list was printed.", append=False)
    again = talk.copy(kind="compaction")
    again.messages[0] = {"role": "system", "content": "You sum up."}
    again.messages[-1] = {"role": "assistant", "content": "So.One list was printed."}
    compaction = world.answer(again.user("Is that all?"), "One list was printed, and no other.", append=False)
    world.answer(world.talk(user="One list was printed, and no other."), "Done.")
    trajectory = build(world.write(tmp_path))
    new = trajectory.traces[-1]
    assert (new.lineage.kind, new.lineage.of_call) == ("compaction", compaction.identity.call_id)
    assert new.lineage.of_trace == trajectory.traces[0].trace_id


def test_a_compaction_that_tells_of_nothing_that_was_said_is_of_no_trace(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One list was printed.")
    world.answer(
        world.talk(system="You sum up.", user="Something else.", kind="compaction"), "All of it is done by now."
    )
    world.answer(world.talk(user="Before: All of it is done by now."), "Done.")
    new = build(world.write(tmp_path)).traces[-1]
    assert (new.lineage.kind, new.lineage.of_trace) == ("compaction", None)


def test_sub_agents_have_their_own_traces_and_name_the_call_that_asked_for_them(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    caller = world.answer(talk, "", tool="task", arguments='{"a":"count the blue files","b":"count the red files"}')
    subs = [
        world.talk(system="You help.", user=text, agent=name, kind="subagent")
        for name, text in (("a", "count the blue files"), ("b", "count the red files"))
    ]
    for text in ("Three.", "Four."):
        for sub in subs:
            world.answer(sub, text)
            sub.user("Sure?")
    world.answer(talk.tool("Three."), "Three files.")
    trajectory = build(world.write(tmp_path))
    assert [calls_of(trace) for trace in trajectory.traces] == [["00", "05"], ["01", "03"], ["02", "04"]]
    assert [trace.lineage.kind for trace in trajectory.traces] == ["main", "subagent", "subagent"]
    assert {trace.lineage.of_call for trace in trajectory.traces[1:]} == {caller.identity.call_id}
    assert bins(trajectory) == {"trained": world.sampled}


def test_a_sub_agent_that_begins_with_its_callers_history_is_no_continuation_of_it(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.")
    sub = talk.copy(agent="a", kind="subagent").user("You are a helper now.")
    world.answer(sub, "Two.")
    world.answer(talk.user("More."), "Three.")
    trajectory = build(world.write(tmp_path))
    assert [calls_of(trace) for trace in trajectory.traces] == [["00", "02"], ["01"]]
    assert relations(trajectory)["01"] == "subagent"


def test_forks_of_a_sub_agent_stay_the_sub_agents(tmp_path: Path) -> None:
    world = World(Template(spaced=True))
    world.answer(world.talk(), "One.")
    sub = world.talk(system="You help.", agent="a", kind="subagent")
    world.answer(sub, "", tool="read", arguments='{"path":"a"}')
    world.answer(sub.tool("text"), "It says text.")
    found = [(trace.lineage.kind, trace.lineage.within) for trace in build(world.write(tmp_path)).traces]
    assert found == [("main", "main"), ("subagent", "subagent"), ("fork", "subagent")]


def test_the_first_prompt_asked_again_is_no_rewind(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "Lost.", delivery="aborted")
    world.answer(talk, "Kept.")
    assert [trace.lineage.kind for trace in build(world.write(tmp_path)).traces] == ["main", "main"]


def test_parents_that_cannot_be_told_apart_are_quarantined(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk.copy(), "Same.")
    world.answer(talk, "Same.")
    world.answer(talk.user("More."), "End.")
    trajectory = build(world.write(tmp_path))
    assert relations(trajectory)["02"] == "ambiguous"
    assert bins(trajectory) == {"quarantined": 6, "trained": 3}
    last = trajectory.traces[-1]
    assert last.lineage.of_trace is None and last.prompt_ids == world.calls[2].prompt_ids


def test_two_last_answers_to_one_prompt_are_quarantined(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk.copy(), "One.")
    world.answer(talk, "Two.")
    assert bins(build(world.write(tmp_path))) == {"quarantined": 6}


def test_a_marked_retry_that_arrived_delivers_the_first_answer(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    first = world.answer(talk, "One.", delivery="aborted")
    world.repeat(talk, first)
    trajectory = build(world.write(tmp_path))
    assert bins(trajectory) == {"trained": 3}
    assert trajectory.relations == {"root": 1, "retried": 1}
    [empty] = [entry for entry in trajectory.ledger.entries if entry.tokens == 0]
    assert first.identity.call_id in empty.reason


def test_forced_spans_are_context(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One two three.", forced=((0, 2), (4, 5)))
    [trace] = build(world.write(tmp_path)).traces
    assert trace.loss_mask == [0, 0, 1, 1, 0, 1, 1]


def test_an_invalid_call_is_context_for_what_follows(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.", logprobs=[-1.0])
    world.answer(talk.user("More."), "Two.")
    trajectory = build(world.write(tmp_path))
    [trace] = trajectory.traces
    assert bins(trajectory) == {"invalid": 3, "trained": 3}
    assert trace.loss_mask[:3] == [0, 0, 0] and trace.logprobs[:3] == [0.0, 0.0, 0.0]


def test_a_masked_session_keeps_its_traces_and_trains_nothing(tmp_path: Path) -> None:
    world, talk = World(status="timeout", status_reason="600 s"), World().talk()
    world.answer(talk, "One.")
    trajectory = build(world.write(tmp_path))
    assert trajectory.masked == "timeout: 600 s"
    assert bins(trajectory) == {"masked": 3}
    assert [(trace.trained, trace.weight) for trace in trajectory.traces] == [(0, 0.0)]


def test_a_missing_reward_masks_and_is_no_zero(tmp_path: Path) -> None:
    world, talk = World(reward=None, evaluation_error="the grader crashed"), World().talk()
    world.answer(talk, "One.")
    folder = world.write(tmp_path)
    trajectory = build(folder)
    assert trajectory.masked == "no reward: the grader crashed" and trajectory.reward is None
    assert build(folder, Options(unrewarded="keep")).masked is None
