"""Traces of real sessions on a real engine: every trained token has the probability that the trace gives it."""

from pathlib import Path

import pytest

from polar_mitm.trajectory.builders import Options
from polar_mitm.trajectory.run import build_run
from polar_mitm.trajectory.trace import Trace
from tests.live.polar import SCENARIOS, run
from tests.live.test_exact import CLOSE, logprobs_of
from tests.live.test_write_file import need_parts

pytestmark = pytest.mark.live


async def furthest(url: str, traces: list[Trace]) -> float:
    """How far a trained token's log-probability is from the engine's own over the whole trace, at most."""
    worst = 0.0
    for trace in traces:
        if trace.trained:
            given = (await logprobs_of(url, trace.prompt_ids + trace.response_ids))[len(trace.prompt_ids) :]
            far = [abs(one - two) for one, two in zip(given, trace.logprobs, strict=True)]
            worst = max(worst, *(distance for distance, mask in zip(far, trace.loss_mask, strict=True) if mask))
    return worst


async def test_the_engine_gives_trained_tokens_the_probabilities_of_their_traces(
    engine_url: str, tmp_path: Path
) -> None:
    """In exact traces to the last digits, whatever the mode; where sampled ids stand in for others it does not."""
    need_parts("pi", "host")
    for tokens, merged in (("exact", True), ("chat", False)):
        out = tmp_path / tokens
        ended = run(
            *("run-task", SCENARIOS / "five_turns.yaml", "--harness", "pi", "--sandbox", "host", "--samples", "2"),
            *("--engine-url", engine_url, "--out", out, "--tokens", tokens),
        )
        assert ended.returncode == 0, ended.stderr
        exact = [trace for trajectory in build_run(out) for trace in trajectory.traces]
        assert all(trace.exact for trace in exact)
        assert (len(exact) == 2) == merged, [trace.broken_by for trace in exact]
        assert await furthest(engine_url, exact) < CLOSE
        loose = build_run(out, Options(rewritten="substitute", drift_limit=1.0))
        replaced = [trace for trajectory in loose for trace in trajectory.traces]
        assert len(replaced) == 2
        assert all(trace.exact == merged for trace in replaced)
        assert (await furthest(engine_url, replaced) < CLOSE) == merged


@pytest.mark.parametrize("harness", ["claude-code", "codex"])
async def test_a_sub_agents_trace_names_the_call_that_asked_for_it(
    harness: str, engine_url: str, tmp_path: Path
) -> None:
    """Claude Code waits for its sub-agents, Codex does not."""
    need_parts(harness, "host")
    ended = run(
        *("run-task", SCENARIOS / "sub_agent.yaml", "--harness", harness, "--sandbox", "host"),
        *("--engine-url", engine_url, "--out", tmp_path, "--tokens", "exact"),
    )
    assert ended.returncode == 0, ended.stderr
    [trajectory] = build_run(tmp_path)
    [sub] = [trace for trace in trajectory.traces if trace.lineage.kind == "subagent"]
    [asked] = [turn for trace in trajectory.traces for turn in trace.turns if turn.call_id == sub.lineage.of_call]
    assert asked.tools and "agent" in asked.tools[0].lower()
    assert len(sub.turns) == 3
    assert sum(trajectory.ledger.bins.values()) == trajectory.ledger.sampled
