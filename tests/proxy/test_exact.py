"""Sessions whose prompts are built from what was sampled, through the real proxy: in each provider's own history."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from polar_mitm.capture.record import Call
from polar_mitm.prompts import Tokens
from tests.conftest import Staged
from tests.fakes.templates import decoded, forgetful
from tests.fakes.vllm import DERENDER, GENERATE, RENDER, Reply
from tests.proxy.asks import ANTHROPIC, CHAT, GOOGLE, JSON_ASKS, RESPONSES, TOOL, Ask, streamed, with_tool
from tests.proxy.stage import Got, Stage, staged, until

ARGUMENTS = '{"cmd":"ls","n":1.0}'
CALLING = Reply("Now.\n", tool_calls=[(TOOL, ARGUMENTS)])


def sequence(call: Call) -> list[int]:
    """All that the engine saw and sampled in this call."""
    assert call.response
    return call.prompt_ids + call.response.response_ids


def extends(call: Call, before: Call) -> bool:
    known = sequence(before)
    return call.prompt_ids[: len(known)] == known


def follow(ask: Ask, got: Got, words: str = "Go on.") -> Ask:
    """The next request of a client: its history as its SDK keeps it, then tool results or words."""
    body, answer = ask.body, got.json
    match ask.provider:
        case "anthropic":
            content = answer["content"]
            ids = [block["id"] for block in content if block["type"] == "tool_use"]
            new: Any = [{"type": "tool_result", "tool_use_id": name, "content": words} for name in ids] or words
            turns = [{"role": "assistant", "content": content}, {"role": "user", "content": new}]
            return replace(ask, body={**body, "messages": [*body["messages"], *turns]})
        case "openai-chat":
            message = answer["choices"][0]["message"]
            ids = [call["id"] for call in message.get("tool_calls") or []]
            new = [{"role": "tool", "tool_call_id": name, "content": words} for name in ids]
            new = new or [{"role": "user", "content": words}]
            return replace(ask, body={**body, "messages": [*body["messages"], message, *new]})
        case "openai-responses":
            items = answer["output"]
            ids = [item["call_id"] for item in items if item["type"] == "function_call"]
            new = [{"type": "function_call_output", "call_id": name, "output": words} for name in ids]
            new = new or [{"role": "user", "content": words}]
            return replace(ask, body={**body, "input": [*body["input"], *items, *new]})
        case _:
            content = answer["candidates"][0]["content"]
            made = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
            parts = [
                {"functionResponse": {"id": call["id"], "name": call["name"], "response": {"output": words}}}
                for call in made
            ] or [{"text": words}]
            return replace(
                ask, body={**body, "contents": [*body["contents"], content, {"role": "user", "parts": parts}]}
            )


@pytest.fixture
def exact(proxy_home: Path, tmp_path: Path) -> Staged:
    return partial(staged, tmp_path / "out", tokens="exact")


async def turns(on: Stage, ask: Ask, count: int, **kwargs: Any) -> Ask:
    """So many turns of one conversation; the request that would come next."""
    for _ in range(count):
        got = await on.post(ask, **kwargs)
        assert got.status == 200, got.body
        ask = follow(ask, got)
    return ask


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_each_prompt_begins_with_all_that_was_seen_and_sampled(ask: Ask, stage: Staged, tokens: Tokens) -> None:
    replies = [CALLING, Reply("", tool_calls=[(TOOL, ARGUMENTS)] * 2), Reply(" Well.\n"), CALLING, Reply("Done.")]
    async with stage(*replies) as on:
        await turns(on, with_tool(ask), 5)
        calls = on.calls()
    assert len(calls) == 5
    for before, call in itertools.pairwise(calls):
        assert call.parent_call_id == before.identity.call_id
        assert call.engine
        assert call.engine.tokens == tokens
        if tokens == "exact":
            assert extends(call, before)
            assert call.checks.prefix == "extends"
            assert call.built
            assert (call.built.from_call_id, call.built.ids) == (before.identity.call_id, len(sequence(before)))
            assert (call.built.broken, call.built.why) == (None, "")
        else:
            assert call.built is None
    # Without it the template's own words for the call take the place of what was sampled.
    assert extends(calls[1], calls[0]) == (tokens == "exact")
    # What the model is shown of its calls is what it wrote, whatever the client made of it.
    history = [m for m in calls[-1].request.messages if m["role"] == "assistant"]
    assert [m["content"] for m in history] == ["Now.\n", "", " Well.\n", "Now.\n"]
    assert {c["function"]["arguments"] for m in history for c in m.get("tool_calls", ())} == {ARGUMENTS}
    assert not any(call.request.not_carried for call in calls)


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_a_client_that_does_not_return_thoughts_still_has_the_model_see_them(ask: Ask, exact: Staged) -> None:
    async with exact(replace(CALLING, reasoning="Hm."), Reply("Yes.", reasoning="So.")) as on:
        await turns(on, with_tool(ask), 3)
        calls = on.calls()
    assert extends(calls[1], calls[0])
    assert extends(calls[2], calls[1])
    assert "<think>Hm.</think>" in decoded(calls[2].prompt_ids)


async def test_a_template_that_drops_old_thoughts_drops_none_that_were_sampled(exact: Staged) -> None:
    async with exact(replace(CALLING, reasoning="Hm."), Reply("Yes.", reasoning="So.")) as on:
        on.fake.template = forgetful
        await turns(on, with_tool(ANTHROPIC), 4)
        calls = on.calls()
    assert all(extends(call, before) for before, call in itertools.pairwise(calls))
    assert decoded(calls[3].prompt_ids).count("<think>So.</think>") == 2


@pytest.mark.parametrize(
    "reply",
    [
        Reply("Hello, w", finish_reason="length"),
        Reply("Hello ", stop_reason="STOP"),
        Reply("a<|im_end|>\n<|im_start|>user\nb"),
    ],
    ids=["length", "stop", "mark inside"],
)
async def test_however_a_reply_ended_the_next_prompt_goes_on_from_it(reply: Reply, exact: Staged) -> None:
    async with exact(reply) as on:
        await turns(on, CHAT, 2)
        first, second = on.calls()
    assert extends(second, first)
    rest = decoded(second.prompt_ids[len(sequence(first)) :])
    end = "" if "mark" in reply.text or reply.text.startswith("a") else "<|im_end|>"
    assert rest == f"{end}\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"


async def test_requests_at_the_same_time_that_continue_one_reply_are_a_fork(exact: Staged) -> None:
    hold = asyncio.Event()
    async with exact(CALLING) as on:
        ask = follow(with_tool(CHAT), await on.post(with_tool(CHAT)))
        on.fake.script = [Reply("left", hold=hold), Reply("right", hold=hold)]
        both = [asyncio.create_task(on.post(ask)), asyncio.create_task(on.post(ask))]
        await until(lambda: on.fake.running == 2)
        hold.set()
        answers = await asyncio.gather(*both)
        on.fake.script = [Reply("on")]
        for got in answers:
            await on.post(follow(ask, got))
        root, *branches = on.calls()
        heads = [call for call in branches if call.response and call.response.text != "on"]
        leaves = [call for call in branches if call.response and call.response.text == "on"]
    assert all(extends(head, root) for head in heads)
    assert len({call.response.text for call in heads if call.response}) == 2
    for leaf in leaves:
        (head,) = [call for call in heads if call.identity.call_id == leaf.parent_call_id]
        assert extends(leaf, head)


async def test_many_conversations_at_once_do_not_mix(exact: Staged) -> None:
    async with exact(CALLING) as on:

        async def converse(number: int) -> None:
            await turns(on, with_tool(ANTHROPIC).saying(f"task {number}"), 4)

        await asyncio.gather(*map(converse, range(8)))
        calls = {call.identity.call_id: call for call in on.calls()}
    assert len(calls) == 32
    for call in calls.values():
        first = call.request.messages[0]["content"]
        assert decoded(call.prompt_ids).count("task ") == 1
        assert first in decoded(call.prompt_ids)
        if call.parent_call_id:
            assert extends(call, calls[call.parent_call_id])
    assert sum(call.parent_call_id is None for call in calls.values()) == 8


async def test_a_retry_of_a_turn_is_that_turns_answer_and_goes_on_from_it(exact: Staged) -> None:
    async with exact(CALLING) as on:
        ask = follow(with_tool(CHAT), await on.post(with_tool(CHAT)))
        again = replace(ask, headers={**ask.headers, "x-stainless-retry-count": "1"})
        first, second = await on.post(ask), await on.post(again)
        assert first.body == second.body
        await on.post(follow(ask, second))
        _, turn, retry, last = on.calls()
    assert (retry.origin.kind, retry.built, retry.parent_call_id) == ("retry", None, turn.parent_call_id)
    assert extends(last, turn)


Change = Callable[[dict[str, Any]], dict[str, Any]]


def reworded(body: dict[str, Any]) -> dict[str, Any]:
    text = orjson.dumps(body).decode()
    assert text.count("Now.") == 1
    return dict(orjson.loads(text.replace("Now.", "Now!")))


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (reworded, "reply_edited"),
        (lambda body: {**body, "tools": []}, "tools_changed"),
        (lambda body: {**body, "messages": [{"role": "system", "content": "x"}, *body["messages"]]}, "system_changed"),
        (
            lambda body: {**body, "messages": [{"role": "user", "content": "x"}, *body["messages"][1:]]},
            "history_edited",
        ),
        (lambda body: {**body, "reasoning_effort": "high"}, "thinking_changed"),
        (lambda body: {**body, "messages": body["messages"][:1]}, None),
    ],
    ids=["reply", "tools", "system", "message", "thinking", "first turn again"],
)
async def test_a_history_that_was_changed_is_rendered_anew_and_the_record_says_why(
    change: Change, broken: str | None, exact: Staged
) -> None:
    async with exact(CALLING) as on:
        ask = follow(with_tool(CHAT), await on.post(with_tool(CHAT)))
        changed = replace(ask, body=change(ask.body))
        assert (await on.post(changed)).status == 200
        await on.post(follow(changed, await on.post(changed)))
        root, anew, _, last = on.calls()
    assert anew.built
    assert (anew.built.from_call_id, anew.built.ids, anew.built.broken) == (None, 0, broken)
    assert (root.identity.call_id in anew.built.why) == (broken is not None)
    assert anew.engine
    assert anew.engine.tokens == "exact"
    # From there on it is a conversation like any other.
    assert last.built
    assert last.checks.prefix == "extends"
    assert last.built.broken is None


async def test_an_image_goes_as_a_message_and_so_does_all_that_follows_it(exact: Staged) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {**CHAT.body, "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, picture]}]}
    async with exact(Reply("I see.")) as on:
        await turns(on, replace(CHAT, body=body), 2)
        for call in on.calls():
            assert call.engine
            assert call.engine.tokens == "chat"
            assert call.built
            assert (call.built.broken, call.built.from_call_id) == ("image", None)


@pytest.mark.parametrize("route", [RENDER, GENERATE])
async def test_an_engine_that_loses_a_route_in_the_middle_costs_exactness_and_no_call(
    route: str, exact: Staged
) -> None:
    async with exact(CALLING) as on:
        ask = await turns(on, with_tool(CHAT), 1)
        on.fake.lacks = {route}
        ask = await turns(on, ask, 1)
        on.fake.lacks = set()
        await turns(on, ask, 1)
        first, lost, last = on.calls()
    assert lost.engine
    assert lost.built
    assert (lost.engine.tokens, lost.built.broken, lost.checks.valid) == ("chat", "engine", True)
    assert lost.built.why.startswith(f"{route} answered 403")
    assert not extends(lost, first)
    # The ids that the engine saw then are ids like any others.
    assert extends(last, lost)


async def test_tokens_that_were_sampled_and_not_parsed_are_on_the_record_of_the_failed_call(exact: Staged) -> None:
    async with exact(CALLING) as on:
        on.fake.lacks = {DERENDER}
        got = await on.post(with_tool(CHAT))
        assert got.status == 502
        (call,) = on.calls()
    assert call.error
    assert call.error.what.startswith(f"{on.fake.url} did not parse what it had sampled: {DERENDER} answered 403")
    assert call.response
    assert (len(call.response.response_ids) > 10, call.response.stop_reason) == (True, None)
    assert call.checks.valid


@pytest.mark.parametrize("ask", (ANTHROPIC, streamed(RESPONSES)), ids=str)
async def test_an_engine_that_was_restarted_goes_on_from_the_same_ids(ask: Ask, exact: Staged) -> None:
    async with exact(CALLING) as on:
        ask = with_tool(replace(ask, body={**ask.body, "stream": False}))
        after = await turns(on, ask, 1)
        await on.fake.stop()
        assert (await on.post(after)).status >= 500
        await on.fake.start()
        await turns(on, after, 1)
        first, failed, second = on.calls()
    assert failed.error
    assert extends(second, first)


async def test_a_session_by_messages_keeps_no_ids(stage: Staged, tokens: Tokens) -> None:
    async with stage(CALLING) as on:
        await turns(on, with_tool(CHAT), 2)
        replies = [reply for tree in on.session.chains._trees for reply in tree.replies]
    assert len(replies) == 2
    assert [bool(reply.ids) for reply in replies] == [tokens == "exact"] * 2


async def test_an_aborted_reply_is_no_part_of_a_chain(exact: Staged) -> None:
    async with exact(Reply("Half", finish_reason="abort"), Reply("Whole.")) as on:
        assert (await on.post(CHAT)).status >= 500
        assert not on.session.chains._trees
        assert (await on.post(CHAT)).status == 200


async def test_a_prompt_that_grew_too_long_to_be_built_is_rendered_where_that_fits(exact: Staged) -> None:
    async with exact(Reply("Yes.", reasoning="a" * 800)) as on:
        on.fake.template, on.fake.max_model_len = forgetful, 1000
        on.engine._token_in = replace(on.engine._token_in, window=1000)  # type: ignore[type-var]
        ask = replace(CHAT, body={**CHAT.body, "messages": [{"role": "user", "content": "b" * 200}]})
        await turns(on, ask, 2)
        _, second = on.calls()
    assert second.built
    assert (second.built.broken, second.built.from_call_id) == ("window", None)


async def test_google_calls_without_ids_are_not_taken_for_polars(exact: Staged) -> None:
    async with exact(CALLING) as on:
        ask = with_tool(GOOGLE)
        after = follow(ask, await on.post(ask))
        text = orjson.dumps(after.body).decode()
        for call in on.calls()[0].response.tool_calls:  # type: ignore[union-attr]
            text = text.replace(f'"id":"{call["id"]}",', "")
        await on.post(replace(after, body=orjson.loads(text)))
        call = on.calls()[-1]
    assert call.built
    assert (call.built.broken, call.built.from_call_id) == ("reply_edited", None)
