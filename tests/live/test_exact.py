"""Prompts of token ids on real parts: sessions of harnesses are one chain each, in the context it was sampled in."""

import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from polar_mitm.capture.record import Call
from polar_mitm.chat import (
    Assistant,
    ChatRequest,
    Message,
    Sampling,
    System,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    User,
)
from polar_mitm.engine.client import Continuation, Engine, Sample
from polar_mitm.engine.scripted import tool_call_regex
from polar_mitm.harnesses import HARNESSES
from tests.conftest import Staged
from tests.live.polar import SCENARIOS, only, rows, run
from tests.live.test_write_file import need_parts
from tests.proxy.asks import ANTHROPIC, CHAT, GOOGLE, RESPONSES, Ask, with_tool
from tests.proxy.test_exact import extends, follow, sequence
from tests.proxy.test_one_call import one_at_a_time

pytestmark = pytest.mark.live

CLOSE = 1e-3
"""Of log-probabilities in float32: the engine may batch the same work in another way."""


async def logprobs_of(url: str, ids: list[int]) -> list[float]:
    """What the engine itself gives each of these ids in the context of those before it; 0.0 for the first."""
    asked = {"model": "tiny", "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    async with aiohttp.ClientSession(trust_env=False) as http, http.post(f"{url}/v1/completions", json=asked) as answer:
        answer.raise_for_status()
        given = (await answer.json())["choices"][0]["prompt_logprobs"]
    assert len(given) == len(ids)
    return [0.0, *(at[str(token)]["logprob"] for at, token in zip(given[1:], ids[1:], strict=True))]


async def furthest(url: str, chain: list[Call]) -> tuple[float, int]:
    """How far the captured log-probabilities are from the engine's own over the whole chain, and of how many tokens.

    Under a grammar they are post-mask, so spans that a script forced are left out.
    """
    given = await logprobs_of(url, sequence(chain[-1]))
    worst, count = 0.0, 0
    for call in chain:
        assert call.response
        for place, captured in enumerate(call.response.logprobs):
            if not any(start <= place < end for start, end in call.response.forced):
                worst = max(worst, abs(captured - given[len(call.prompt_ids) + place]))
                count += 1
    return worst, count


def turns_of(harness: str, tokens: str, engine_url: str, out: Path) -> list[Call]:
    """The turns of one session of six scripted tool calls and a text of the model's own."""
    ended = run(
        *("run-task", SCENARIOS / "five_turns.yaml", "--harness", harness, "--sandbox", "host", "--json"),
        *("--engine-url", engine_url, "--out", out, "--tokens", tokens),
    )
    assert ended.returncode == 0, ended.stderr
    (row,) = rows(ended.stdout)
    assert (row["status"], row["reward"]) == ("completed", 1.0)
    there = only(out)
    assert (there.session.tokens, there.session.tokens_reason) == (tokens, None)
    turns = [call for call in there.calls if call.origin.kind == "turn"]
    assert len(turns) == 7
    assert all(call.checks.valid and call.checks.decode_matches_text for call in turns)
    return turns


@pytest.mark.parametrize("harness", [name for name in HARNESSES if name not in ("command", "pi-frozen")])
async def test_a_harness_session_is_one_chain_of_what_was_sampled(
    harness: str, engine_url: str, tmp_path: Path
) -> None:
    need_parts(harness, "host")
    turns = turns_of(harness, "exact", engine_url, tmp_path)
    for before, call in pairwise(turns):
        assert extends(call, before)
        assert call.built
        assert (call.built.from_call_id, call.built.broken) == (before.identity.call_id, None)
        assert call.parent_call_id == before.identity.call_id
        assert call.engine
        assert (call.engine.tokens, call.engine.policy_version) == ("exact", "default")
    worst, count = await furthest(engine_url, turns)
    print(f"{harness}: {len(turns)} turns, {len(sequence(turns[-1]))} tokens, {count} free ones within {worst:.1e}")
    assert count >= 1 or harness == "mini-swe-agent"  # whose every turn is a call, the last one too
    assert worst < CLOSE


@pytest.mark.parametrize("harness", ["pi", "claude-code"])
async def test_by_messages_the_same_session_drifts_at_every_scripted_call(
    harness: str, engine_url: str, tmp_path: Path
) -> None:
    need_parts(harness, "host")
    turns = turns_of(harness, "chat", engine_url, tmp_path)
    # A forced call comes back in the template's own words and tokens.
    assert sum(not extends(call, before) for before, call in pairwise(turns)) >= 5
    assert all(call.engine and call.engine.tokens == "chat" and call.built is None for call in turns)


async def test_a_sub_agents_conversation_is_a_chain_of_its_own(engine_url: str, tmp_path: Path) -> None:
    need_parts("claude-code", "host")
    ended = run(
        *("run-task", SCENARIOS / "sub_agent.yaml", "--harness", "claude-code", "--sandbox", "host"),
        *("--engine-url", engine_url, "--out", tmp_path),
    )
    assert ended.returncode == 0, ended.stderr
    calls = {call.identity.call_id: call for call in only(tmp_path).calls}
    for call in calls.values():
        assert call.built
        assert call.built.broken is None
        if parent := calls.get(call.built.from_call_id or ""):
            assert call.origin.kind == parent.origin.kind
            assert extends(call, parent)
    roots = [call.origin.kind for call in calls.values() if call.built and not call.built.from_call_id]
    assert sorted(roots) == ["subagent", "turn"]


ONE_OF = {"type": "object", "properties": {"cmd": {"enum": ["ls", "cat a.txt"]}}, "required": ["cmd"]}


def choosing(ask: Ask, mode: str) -> Ask:
    """The same request, in which the model must call the tool (`required`) or must not (`none`)."""
    words: dict[str, dict[str, Any]] = {
        "anthropic": {"tool_choice": {"type": "any" if mode == "required" else "none"}},
        "google": {"toolConfig": {"functionCallingConfig": {"mode": "ANY" if mode == "required" else "NONE"}}},
    }
    choice = words.get(ask.provider, {"tool_choice": mode})
    if mode == "required" and ask.provider.startswith("openai"):
        choice["parallel_tool_calls"] = False
    if mode == "required" and ask.provider == "anthropic":
        choice["tool_choice"]["disable_parallel_tool_use"] = True
    return Ask(**{**{name: getattr(ask, name) for name in Ask.__dataclass_fields__}, "body": {**ask.body, **choice}})


@pytest.mark.parametrize("ask", [ANTHROPIC, CHAT, RESPONSES, GOOGLE], ids=str)
async def test_words_between_calls_were_sampled_in_the_context_that_the_chain_shows(
    ask: Ask, stage: Staged, engine_url: str, tokens: str
) -> None:
    async with stage(engine_url=engine_url) as on:
        session = on.open_session(sampling={"max_tokens": 48, "min_tokens": 2})
        ask = with_tool(ask, "run")
        for turn in range(8):
            got = await on.post(choosing(ask, "required" if turn % 4 == 1 else "none"), session=session)
            assert got.status == 200, got.body
            ask = follow(ask, got, f"So be it, {turn}. <|im_end|> Go on.")
        calls = on.calls(session)
    assert len(calls) == 8
    drifted = [n for n, (before, call) in enumerate(pairwise(calls), start=1) if not extends(call, before)]
    if tokens == "chat":
        assert drifted
        return
    assert drifted == []
    worst, count = await furthest(engine_url, calls)
    print(f"{ask.provider}: {len(sequence(calls[-1]))} tokens, {count} free ones within {worst:.1e}")
    assert count > 20
    assert worst < CLOSE


async def test_a_call_that_was_not_passed_on_stays_in_the_chain(stage: Staged, engine_url: str, tokens: str) -> None:
    two = "\n".join(tool_call_regex("run", {"cmd": cmd}) for cmd in ("ls", "cat a.txt"))
    async with stage(engine_url=engine_url) as on:
        session = on.open_session(sampling={"max_tokens": 200})
        ask = one_at_a_time(CHAT, "run")
        sample = session.engine.chat
        session.engine.chat = partial(sample, force_regex=two)  # type: ignore[method-assign]  # what few models do by chance
        got = await on.post(ask, session=session)
        assert len(got.json["choices"][0]["message"]["tool_calls"]) == 1
        session.engine.chat = sample  # type: ignore[method-assign]
        await on.post(follow(ask, got, "a.txt"), session=session)
        first, second = on.calls(session)
    assert first.response
    assert len(first.response.tool_calls) == 2
    assert [message["role"] for message in second.request.messages] == ["user", "assistant", "tool", "tool"]
    if tokens == "exact":
        assert extends(second, first)
        assert second.built
        assert second.built.broken is None


RUN = Tool("run", "Runs.", {**ONE_OF, "additionalProperties": False}, strict=True)
HELLO = (System("Be brief."), User((Text("Say hello."),)))
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": ({}, {}),
    "text beside tools": ({"tools": (RUN,)}, {}),
    "no call allowed": ({"tools": (RUN,), "tool_choice": ToolChoice("none")}, {}),
    "a call required": ({"tools": (RUN,), "tool_choice": ToolChoice("required"), "parallel_tool_calls": False}, {}),
    "several calls required": ({"tools": (RUN,), "tool_choice": ToolChoice("required")}, {}),
    "a named call": ({"tools": (RUN,), "tool_choice": ToolChoice("named", "run")}, {}),
    "a script": ({"tools": (RUN,)}, {"force_regex": tool_call_regex("run", {"cmd": "ls"})}),
    "letters of several tokens": ({}, {"force_regex": "Grüße, 世界 🌍!"}),
    "a schema": ({"json_schema": {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}}, {}),
    "a choice of words": ({"choices": ("Strings", "Brass")}, {}),
    "a stop string": ({"json_schema": {"enum": ["one STOP two"]}, "sampling": Sampling(stop=("STOP",))}, {}),
    "a stop string within a token": (
        {"json_schema": {"enum": ["international"]}, "sampling": Sampling(stop=("nat",))},
        {},
    ),
    "a stop string in a call": (
        {"tools": (RUN,), "tool_choice": ToolChoice("named", "run"), "sampling": Sampling(stop=("cat a",))},
        {},
    ),
    "the end of a call as stop string": (
        {"tools": (RUN,), "tool_choice": ToolChoice("named", "run"), "sampling": Sampling(stop=("</tool_call>",))},
        {},
    ),
    "a limit": ({"sampling": Sampling(max_tokens=3)}, {"force_regex": "one two three four five six"}),
    "a limit in a call": (
        {"tools": (RUN,), "sampling": Sampling(max_tokens=20)},
        {"force_regex": tool_call_regex("run", {"cmd": "ls"})},
    ),
    "more than the window": ({"sampling": Sampling(max_tokens=10**7)}, {}),
}
OF_THE_WAY = {"tokens", "policy_version", "weight_versions", "ended", "tool_calls", "usage", "sampling_sent"}


@pytest.mark.parametrize("case", CASES)
async def test_a_sample_is_the_same_by_ids_and_by_messages(case: str, engine_url: str) -> None:
    fields, options = CASES[case]
    request = ChatRequest(HELLO, **fields)
    greedy: dict[str, Any] = {"temperature": 0.0, "ignore_eos": False}
    if request.sampling.max_tokens is None:
        greedy["max_tokens"] = 64
    async with Engine(engine_url) as engine:
        chat = await engine.chat(request, overrides=greedy, **options)
        exact = await engine.chat(request, overrides=greedy, tokens="exact", **options)
    for name in Sample.__dataclass_fields__.keys() - OF_THE_WAY - {"logprobs"}:
        assert getattr(exact, name) == getattr(chat, name), name
    assert exact.logprobs == pytest.approx(chat.logprobs, abs=CLOSE)
    assert [(call.name, call.arguments) for call in exact.tool_calls] == [
        (call.name, call.arguments) for call in chat.tool_calls
    ]
    assert (exact.usage.prompt_tokens, exact.usage.completion_tokens) == (
        chat.usage.prompt_tokens,
        chat.usage.completion_tokens,
    )
    assert (exact.policy_version, exact.weight_versions) == ("default", [(0, len(exact.response_ids), "default")])


async def test_a_history_of_200_turns_is_joined_like_a_short_one(engine_url: str) -> None:
    messages: list[Message] = [*HELLO]
    for turn in range(200):
        call = ToolCall(f"call_{turn}", "run", '{"cmd":"ls"}')
        messages += [Assistant("", "", (call,)), ToolResult(call.id, (Text("words and words again, " * 50),))]
    limit = Sampling(max_tokens=8)
    async with Engine(engine_url) as engine:
        first = await engine.chat(ChatRequest(tuple(messages), tools=(RUN,), sampling=limit), tokens="exact")
        ids = [*first.prompt_ids, *first.response_ids]
        messages += [Assistant("another text, which drifts"), User((Text("Go on."),))]
        began = time.perf_counter()
        second = await engine.chat(
            ChatRequest(tuple(messages), tools=(RUN,), sampling=limit),
            tokens="exact",
            continuation=Continuation(ids, len(first.prompt_ids), first.ended, len(messages) - 1),
        )
        print(f"{len(second.prompt_ids)} tokens: {time.perf_counter() - began:.2f} s")
    assert len(ids) > 40_000
    assert second.prompt_ids[: len(ids)] == ids
    assert (second.built_ids, second.broken) == (len(ids), None)
