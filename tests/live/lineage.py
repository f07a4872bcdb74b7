"""What is recorded of sub-agents and of compactions: the kind of each call, what it continues, whom it names.

Both scenarios are scripted, so that it is known which calls there must be.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from polar_mitm.capture.record import Call
from polar_mitm.harnesses import HARNESSES
from polar_mitm.trajectory.builders import build
from tests.live.polar import SCENARIOS, Left

SUB_AGENTS: Final = ("claude-code", "codex", "qwen-code", "gemini-cli", "opencode")

WINDOWS: Final = {
    "pi": 16_000,
    "pi-frozen": 16_000,
    "claude-code": 45_000,
    "codex": 32_000,
    "qwen-code": 32_000,
    "opencode": 32_000,
}
"""Tokens that each harness is told of, small enough for three outputs of 9,000 tokens to fill it. gemini-cli compresses
between two prompts only, see `compress`; mini-swe-agent never does."""

AFTERWARDS: Final = ("pi-frozen",)
"""Those that compact between two prompts only, and after the last one too."""

IDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "claude-code": ("x-claude-code-session-id", "", "x-claude-code-agent-id"),
    "codex": ("session-id", "x-codex-parent-thread-id", "thread-id"),
    "opencode": ("", "x-parent-session-id", "x-session-id"),
}
"""By harness: what main agent and sub-agent have in common, what names the main agent, what the sub-agent alone."""


def compaction_scenario(harness: str, folder: Path) -> Path:
    """The scenario for this harness, with its window, in a file of its own."""
    text = (SCENARIOS / "compaction.yaml").read_text()
    for line, other in (
        ("window: 16000\n", f"window: {WINDOWS[harness]}\n"),
        ("harness: pi\n", f"harness: {harness}\n"),
    ):
        assert line in text
        text = text.replace(line, other)
    file = folder / f"compaction-{harness}.yaml"
    file.write_text(text)
    return file


def wrong_with_sub_agent(harness: str, there: Left) -> str:
    """What is wrong with the session of scenarios/sub_agent.yaml; empty when all is right."""
    turns, subs = of_kind(there.calls, "turn"), of_kind(there.calls, "subagent")
    steps = 3 if harness == "gemini-cli" else 2
    checks = {
        f"status {there.session.status}: {there.session.status_reason}": there.session.status == "completed",
        f"reward {there.session.reward}": there.session.reward == 1.0,
        f"kinds {sorted(kinds(there.calls))}": kinds(there.calls) - {"title"} == {"turn", "subagent"},
        "an invalid call": all(call.checks.valid for call in there.calls),
        "the main agent's steps": forced(turns) == 2,
        "the sub-agent's steps": forced(subs) == steps,
        "the main agent's turns do not continue each other": chained(turns),
        "the sub-agent's turns do not continue each other": chained(subs),
        "the ids of the two agents": named(harness, turns, subs),
        "the sub-agent's trace does not name the call that started it": started(harness, there, turns),
    }
    return "; ".join(what for what, right in checks.items() if not right)


def wrong_with_compaction(harness: str, there: Left) -> str:
    """What is wrong with the session of scenarios/compaction.yaml; empty when all is right."""
    turns, compactions = of_kind(there.calls, "turn"), of_kind(there.calls, "compaction")
    checks = {
        f"status {there.session.status}: {there.session.status_reason}": there.session.status == "completed",
        f"reward {there.session.reward}": there.session.reward == (None if harness == "gemini-cli" else 1.0),
        f"kinds {sorted(kinds(there.calls))}": kinds(there.calls) - {"title"} == {"turn", "compaction"},
        "an invalid call": all(call.checks.valid for call in there.calls),
        "each step is taken once": forced(turns) == (1 if harness == "gemini-cli" else 4),
        "the summary is the scripted one": forced(compactions) == len(compactions) > 0,
        "a compacted conversation does not name its compaction, and what was compacted": resumed(harness, there),
        "the window's number does not rise": harness != "codex" or windows(turns) == list(range(len(compactions) + 1)),
    }
    return "; ".join(what for what, right in checks.items() if not right)


def started(harness: str, there: Left, turns: list[Call]) -> bool:
    """Whether the sub-agent's trace names the turn that called the harness's tool for it, and the trace of that."""
    tool, _ = HARNESSES[harness].delegate("")
    made = {turn.identity.call_id: turn.response.tool_calls for turn in turns if turn.response}
    asked = [name for name, calls in made.items() if any(call["function"]["name"] == tool for call in calls)]
    traces = build(there.folder.path).traces
    main = {trace.trace_id for trace in traces if trace.lineage.within == "main"}
    subs = [trace.lineage for trace in traces if trace.lineage.kind == "subagent"]
    return bool(subs) and all([one.of_call] == asked and one.of_trace in main for one in subs)


def resumed(harness: str, there: Left) -> bool:
    """Whether after each compaction a conversation begins whose trace names it, and the trace before."""
    calls = [call for call in there.calls if call.origin.kind in ("turn", "compaction")]
    # gemini-cli has its summary looked through once more: of several in a row the last one counts.
    followed = [one for one, then in pairwise(calls) if (one.origin.kind, then.origin.kind) == ("compaction", "turn")]
    traces = build(there.folder.path).traces
    begun = [trace.lineage for trace in traces if trace.lineage.kind == "compaction"]
    main = {trace.trace_id for trace in traces if trace.lineage.within == "main"}
    named = dict.fromkeys(one.of_call for one in begun)  # each once: a first turn may be asked for again
    return (
        list(named) == [call.identity.call_id for call in followed]
        and all(one.of_trace in main for one in begun)
        and bool(followed) == (harness not in AFTERWARDS)
    )


def kinds(calls: Iterable[Call]) -> set[str]:
    return {call.origin.kind for call in calls}


def of_kind(calls: Iterable[Call], kind: str) -> list[Call]:
    return [call for call in calls if call.origin.kind == kind]


def forced(calls: Iterable[Call]) -> int:
    return sum(bool(call.response and call.response.forced) for call in calls)


def chained(calls: list[Call]) -> bool:
    """Whether each continues an earlier one of them, but for the first."""
    ids = {call.identity.call_id for call in calls}
    return calls[0].parent_call_id is None and all(call.parent_call_id in ids for call in calls[1:])


def named(harness: str, turns: list[Call], subs: list[Call]) -> bool:
    """Whether the headers tell the two apart, and whose the sub-agent is. Some harnesses send none."""
    if harness not in IDS:
        return True
    common, of_main, own = IDS[harness]
    main = turns[0].origin.harness_ids
    return all(
        main.get(common) == call.origin.harness_ids.get(common)
        and (not of_main or call.origin.harness_ids.get(of_main) == main.get(own))
        and call.origin.harness_ids.get(own) not in (None, main.get(own))
        for call in subs
    )


def windows(turns: list[Call]) -> list[int]:
    """The numbers of Codex's windows, each once."""
    return sorted({int(call.origin.harness_ids["x-codex-window-id"].rpartition(":")[2]) for call in turns})
