"""What holds for every session, held against what the generator knows was sampled, and in which context."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from polar_mitm.capture.record import Call
from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.trace import Trajectory
from tests.trajectory.random_sessions import faithful_worlds, worlds
from tests.trajectory.sessions import World

OPTIONS = [
    Options(builder="per_request"),
    Options(rewritten="fork"),
    Options(rewritten="substitute"),
    Options(rewritten="substitute", drift_limit=1.0),
]
names = ["per_request", "fork", "substitute", "substitute any"]


def built(world: World, options: Options | None = None) -> Trajectory:
    with tempfile.TemporaryDirectory() as out:
        return build(world.write(Path(out)), options)


def sampled(call: Call) -> list[int]:
    return call.response.response_ids if call.response else []


@pytest.mark.parametrize("options", OPTIONS, ids=names)
@given(world=worlds())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_session_keeps_the_promise(options: Options, world: World) -> None:
    trajectory = built(world, options)
    truth = {call.identity.call_id: call for call in world.calls}

    # The ledger balances, call by call.
    assert trajectory.ledger.sampled == world.sampled == sum(trajectory.ledger.bins.values())
    entries: Counter[str] = Counter()
    for entry in trajectory.ledger.entries:
        assert entry.reason
        entries[entry.call_id] += entry.tokens
    assert entries == Counter({name: len(sampled(call)) for name, call in truth.items()})

    trained: Counter[tuple[str, int]] = Counter()
    for trace in trajectory.traces:
        assert len(trace.response_ids) == len(trace.loss_mask) == len(trace.logprobs)
        drifted, of_turns = False, 0
        for turn in trace.turns:
            call = truth[turn.call_id]
            assert call.response
            drifted = drifted or turn.drift is not None
            for place in range(turn.start, turn.end):
                offset = place - turn.start
                assert trace.response_ids[place] == call.response.response_ids[offset]
                if not trace.loss_mask[place]:
                    continue
                of_turns += 1
                trained[turn.call_id, offset] += 1
                assert trace.logprobs[place] == call.response.logprobs[offset]
                assert not any(start <= offset < end for start, end in call.response.forced)
                if not drifted:
                    context = trace.prompt_ids + trace.response_ids[:place]
                    assert context == call.prompt_ids + call.response.response_ids[:offset]
        assert of_turns == sum(trace.loss_mask), "only what a turn sampled is trained"
        assert trace.exact == (not drifted)
        starts = [turn.started_at for turn in trace.turns]
        assert starts == sorted(starts)
    assert all(count == 1 for count in trained.values()), "a sampled token is trained once"
    assert len(trained) == trajectory.ledger.bins.get("trained", 0)

    firsts = [trace.turns[0].started_at for trace in trajectory.traces]
    assert firsts == sorted(firsts)
    turns = [turn.call_id for trace in trajectory.traces for turn in trace.turns]
    assert len(turns) == len(set(turns))
    assert sum(trajectory.relations.values()) == len(world.calls)
    if trajectory.masked:
        assert not trained
    if trained:
        assert sum(trace.weight for trace in trajectory.traces) == pytest.approx(1.0)


@given(world=worlds())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_the_harness_went_on_from_is_trained_and_what_it_never_got_is_not(world: World) -> None:
    bins = {entry.call_id: entry.bin for entry in built(world).ledger.entries if entry.tokens}
    arrived = {call.origin.kind_reason.split(":")[0] for call in world.calls if call.delivery.status == "delivered"}
    last = [_last_answer(call) for call in world.calls if call.origin.kind == "turn"]
    for call in world.calls:
        name = call.identity.call_id
        lost = call.delivery.status != "delivered" and f"repeats {name}" not in arrived
        if lost or call.error:
            assert bins.get(name) not in ("trained", "forced")
        elif f"{name}00" in last:
            assert bins.get(name) not in ("superseded", "undelivered", "aborted")


def _last_answer(call: Call) -> str | None:
    """The id of the tool call in the last answer of a request."""
    answers = [message for message in call.request.messages if message["role"] == "assistant"]
    return answers[-1].get("tool_calls", [{}])[0].get("id") if answers else None


@given(world=worlds())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_trained_does_not_depend_on_how_traces_are_cut(world: World) -> None:
    """But for template tails, which a merged trace leaves out."""
    alone, forks, substitutes = (built(world, options).ledger.bins for options in OPTIONS[:3])
    assert substitutes == alone
    kept = "masked" if "masked" in alone else "trained"
    assert Counter(alone) == Counter(forks) - Counter(context=forks.get("context", 0)) + Counter(
        {kept: forks.get("context", 0)}
    )


@given(faithful_worlds())
@settings(max_examples=150, deadline=None)
def test_conversations_that_only_grow_are_one_trace_each(drawn: tuple[World, int]) -> None:
    world, conversations = drawn
    trajectory = built(world)
    assert len(trajectory.traces) == conversations
    assert trajectory.ledger.bins == {"trained": world.sampled}
    assert not trajectory.breaks


@given(world=worlds())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_break_shows_the_first_tokens_that_differ(world: World) -> None:
    truth = {call.identity.call_id: call for call in world.calls}
    for found in built(world).breaks:
        call, parent = truth[found.call_id], truth[found.parent_call_id]
        whole = parent.prompt_ids + sampled(parent)
        assert whole[: found.position] == call.prompt_ids[: found.position]
        assert whole[found.position : found.position + 1] != call.prompt_ids[found.position : found.position + 1]
        start = max(0, found.position - 8)
        assert found.parent_around == whole[start : start + len(found.parent_around)]
        assert found.prompt_around == call.prompt_ids[start : start + len(found.prompt_around)]
        assert found.why
