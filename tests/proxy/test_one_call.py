"""Clients that allow one tool call at a time, and a model that makes more: through the real proxy, in each API."""

from dataclasses import replace
from itertools import pairwise

import pytest

from polar_mitm.prompts import Tokens
from polar_mitm.trajectory.builders import build
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, CHAT, RESPONSES, TOOL, Ask, streamed, with_tool
from tests.proxy.test_exact import extends, follow

TWO = Reply("Both.", tool_calls=[(TOOL, '{"cmd":"one"}'), (TOOL, '{"cmd":"two"}')])
NOT_RUN = "This call was not run: only one call at a time is allowed."
ASKS = (ANTHROPIC, CHAT, RESPONSES)


def one_at_a_time(ask: Ask, tool: str = TOOL, *, allowed: bool = False) -> Ask:
    ask = with_tool(ask, tool)
    if ask.provider == "anthropic":
        choice = {"type": "auto", "disable_parallel_tool_use": not allowed}
        return replace(ask, body={**ask.body, "tool_choice": choice})
    return replace(ask, body={**ask.body, "parallel_tool_calls": allowed})


@pytest.mark.parametrize("ask", ASKS, ids=str)
async def test_the_client_gets_the_first_call_alone_and_the_record_has_all(ask: Ask, stage: Staged) -> None:
    async with stage(TWO) as on:
        for sent in (one_at_a_time(ask), streamed(one_at_a_time(ask))):
            body = (await on.post(sent)).body
            assert b"one" in body
            assert b"two" not in body
        for call in on.calls():
            assert call.response
            assert [made["function"]["arguments"] for made in call.response.tool_calls] == [
                a for _, a in TWO.tool_calls
            ]
            assert call.response.repairs == [f"one call at a time was asked for, so these were not passed on: {TOOL}"]
            assert call.request.not_carried == []
            assert call.checks.valid


@pytest.mark.parametrize("ask", ASKS, ids=str)
async def test_one_call_or_many_that_are_allowed_are_all_passed_on(ask: Ask, stage: Staged) -> None:
    async with stage(TWO, Reply("", tool_calls=[(TOOL, "{}")])) as on:
        assert b"two" in (await on.post(one_at_a_time(ask, allowed=True))).body
        await on.post(one_at_a_time(ask))
        for call in on.calls():
            assert call.response
            assert call.response.repairs == []


@pytest.mark.parametrize("ask", ASKS, ids=str)
async def test_later_turns_go_on_from_all_that_was_sampled(ask: Ask, stage: Staged, tokens: Tokens) -> None:
    async with stage(TWO, TWO, Reply("Done."), Reply("Bye.")) as on:
        next_ask = one_at_a_time(ask)
        for _ in range(4):
            next_ask = follow(next_ask, await on.post(next_ask))
        calls = on.calls()
        for before, call in pairwise(calls):
            assert call.parent_call_id == before.identity.call_id
            if tokens == "exact":
                assert extends(call, before)
                assert call.built
                assert call.built.broken is None
        told = calls[-1].request.messages
        assert [message["role"] for message in told if message["role"] != "system"] == (
            ["user"] + ["assistant", "tool", "tool"] * 2 + ["assistant", "user"]
        )
        for at, message in enumerate(told):
            if message.get("tool_calls"):
                first, second = message["tool_calls"]
                answers = {told[at + n]["tool_call_id"]: told[at + n]["content"] for n in (1, 2)}
                assert answers == {first["id"]: "Go on.", second["id"]: NOT_RUN}
    trajectory = build(on.session.log.folder.path)
    bins = {name: count for name, count in trajectory.ledger.bins.items() if count}
    sampled = sum(len(call.response.response_ids) for call in calls if call.response)
    assert sum(bins.values()) == trajectory.ledger.sampled == sampled
    if tokens == "exact":
        assert len(trajectory.traces) == 1
