"""Prompts of token ids, over the stand-in engine: what is sent, what comes back, and what is done without."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatRequest,
    Image,
    Message,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    User,
)
from polar_mitm.engine import exact_probe
from polar_mitm.engine.client import Continuation, Engine, EngineUnfit, Sample
from tests.fakes.templates import Json, Template, chatml, decoded, encoded, forgetful, markless, renamed_end, unclosed
from tests.fakes.vllm import DERENDER, GENERATE, RENDER, TOKEN_ROUTES, FakeVllm, Reply
from tests.proxy.stage import until

END = "<|im_end|>"
RUN = Tool("run", "Runs a command.", {"type": "object", "properties": {"command": {"type": "string"}}})
CALLING = Reply("", tool_calls=[("run", '{"command":"ls"}')])


def asked(text: str = "Say hello.") -> User:
    return User((Text(text),))


def following(sample: Sample, request: ChatRequest, *new: Message, **changes: Any) -> tuple[ChatRequest, Continuation]:
    """The request that continues a conversation, and what it continues."""
    said = Assistant(changes.get("text", sample.text), "", sample.tool_calls)
    messages = (*request.messages, said, *new)
    ids = [*sample.prompt_ids, *sample.response_ids]
    continuation = Continuation(ids, len(sample.prompt_ids), sample.ended, len(request.messages) + 1)
    return ChatRequest(messages, tools=request.tools), continuation


async def two_turns(
    engine: Engine, *new: Message, tools: Sequence[Tool] = (RUN,), **options: Any
) -> tuple[Sample, Sample]:
    request = ChatRequest((asked(),), tools=tuple(tools), **options)
    first = await engine.chat(request, tokens="exact")
    answers = [ToolResult(call.id, (Text("file.txt"),)) for call in first.tool_calls]
    again, continuation = following(first, request, *(new or answers or [asked("Go on.")]))
    return first, await engine.chat(again, tokens="exact", continuation=continuation)


@pytest.mark.parametrize("route", TOKEN_ROUTES)
async def test_an_engine_without_one_of_the_routes_is_told_at_the_start(route: str) -> None:
    async with FakeVllm(lacks=[route]) as fake, Engine(fake.url) as engine:
        found = engine.capabilities
        assert not found.exact
        assert found.not_exact
        assert found.not_exact.startswith(f"has no token routes: {route} answered 403")
        assert "--enable-scale-out" in found.not_exact
        with pytest.raises(ValueError, match="the engine has no token routes"):
            await engine.chat(ChatRequest((asked(),)), tokens="exact")
        assert (await engine.chat(ChatRequest((asked(),)))).text == "Hello."


async def test_exact_is_what_is_used_unless_someone_wants_otherwise_or_the_engine_lacks_it() -> None:
    async with FakeVllm() as fake, Engine(fake.url) as engine:
        assert engine.capabilities.tokens(None) == engine.capabilities.tokens("exact") == ("exact", None)
        assert engine.capabilities.tokens("chat") == ("chat", None)
    async with FakeVllm(lacks=[RENDER]) as fake, Engine(fake.url) as engine:
        assert engine.capabilities.tokens("chat") == ("chat", None)
        used, reason = engine.capabilities.tokens(None)
        assert used == "chat"
        assert reason
        assert reason.startswith("the engine has no token routes")
        with pytest.raises(EngineUnfit, match="token ids are asked for, but it has no token routes"):
            engine.capabilities.tokens("exact")


async def test_a_template_that_shows_no_replies_offers_no_exact_prompts() -> None:
    def forgetting(messages: Sequence[Json], tools: Sequence[Json], go_on: bool) -> str:
        return chatml([message for message in messages if message["role"] != "assistant"], tools, go_on)

    async with FakeVllm(template=forgetting) as fake, Engine(fake.url) as engine:
        assert engine.capabilities.not_exact == "has a chat template of which it cannot be told where a reply ends"


async def test_a_reply_that_a_markless_template_cannot_end_is_rendered_anew() -> None:
    async with FakeVllm(template=markless) as fake, Engine(fake.url) as engine:
        first, second = await two_turns(engine)
        assert (second.built_ids, second.broken) == (0, "end_token")
        fake.script = [Reply("Hello, w", finish_reason="length")]
        first, second = await two_turns(engine)
    sampled = [*first.prompt_ids, *first.response_ids]
    assert decoded(second.prompt_ids[len(sampled) :]) == "\nuser:\nGo on.\nassistant:\n"


@pytest.mark.parametrize("template", [chatml, forgetful])
@pytest.mark.parametrize("reply", [Reply("Hel<|im_end|>lo."), CALLING, Reply("", reasoning="Hm.")], ids=str)
async def test_the_next_prompt_begins_with_all_that_was_sampled(template: Template, reply: Reply) -> None:
    async with FakeVllm(reply, template=template) as fake, Engine(fake.url) as engine:
        first, second = await two_turns(engine)
    sampled = [*first.prompt_ids, *first.response_ids]
    assert second.prompt_ids[: len(sampled)] == sampled
    assert (second.built_ids, second.broken, second.tokens) == (len(sampled), None, "exact")
    said = "file.txt" if reply is CALLING else "Go on."
    assert decoded(second.prompt_ids[len(sampled) :]) == f"\n<|im_start|>user\n{said}{END}\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "reply", [Reply("Hello, w", finish_reason="length"), Reply("Hello", stop_reason="STOP")], ids=["length", "stop"]
)
async def test_a_reply_that_the_model_did_not_end_gets_the_templates_end(reply: Reply) -> None:
    async with FakeVllm(reply) as fake, Engine(fake.url) as engine:
        first, second = await two_turns(engine)
    assert not first.ended
    sampled = [*first.prompt_ids, *first.response_ids]
    assert second.prompt_ids[: len(sampled)] == sampled
    assert decoded(second.prompt_ids[len(sampled) :]).startswith(f"{END}\n<|im_start|>user\nGo on.")


@pytest.mark.parametrize(("reply", "mark"), [(Reply(end="<|user|>"), "<|user|>"), (CALLING, "<|observation|>")])
async def test_where_nothing_closes_a_reply_its_last_token_is_not_written_twice(reply: Reply, mark: str) -> None:
    reply = Reply(reply.text, reply.tool_calls, end=mark)
    async with FakeVllm(reply, template=unclosed) as fake, Engine(fake.url) as engine:
        first, second = await two_turns(engine)
    sampled = [*first.prompt_ids, *first.response_ids]
    assert second.built_ids == len(sampled)
    assert decoded(second.prompt_ids[len(sampled) - 1 :]).startswith(f"{mark}\n")


async def test_a_reply_ended_otherwise_than_the_template_ends_one_is_rendered_anew() -> None:
    async with FakeVllm(template=renamed_end) as fake, Engine(fake.url) as engine:
        first, second = await two_turns(engine)
        messages = [{"role": "user", "content": "Say hello."}, {"role": "assistant", "content": first.text}]
        rendered = encoded(renamed_end([*messages, {"role": "user", "content": "Go on."}], [], True))
    assert second.prompt_ids == rendered
    assert (second.tokens, second.built_ids, second.broken) == ("exact", 0, "end_token")
    assert second.why == "the model ended its reply with token 2, which the template does not"


async def test_a_prompt_is_rendered_once_where_nothing_drifted_and_never_more_than_twice() -> None:
    async with FakeVllm() as fake, Engine(fake.url) as engine:
        before = fake.renders
        await two_turns(engine)
        assert fake.renders - before == 2  # "Hello." comes back as it was sampled
        fake.script = [CALLING]
        before = fake.renders
        await two_turns(engine)
        assert fake.renders - before == 3  # the call's arguments do not
        before = fake.renders
        await engine.chat(ChatRequest((asked(),), sampling=Sampling(max_tokens=10**9)), tokens="exact")
        assert fake.renders - before == 1


async def test_the_room_for_the_answer_is_what_the_built_prompt_leaves() -> None:
    async with FakeVllm(CALLING, max_model_len=1000) as fake, Engine(fake.url) as engine:
        first, second = await two_turns(engine, sampling=Sampling(max_tokens=10**6))
        room = 1000 - len(first.prompt_ids)
        assert (fake.requests[0]["max_tokens"], first.sampling_sent["max_tokens"]) == (room, room)
        why = f"clamped from 1000000 to {room}: the window is 1000 tokens and the prompt takes {len(first.prompt_ids)}"
        assert [note.why for note in first.not_carried] == [why]
        assert fake.requests[1]["max_tokens"] == 1000 - len(second.prompt_ids)
        await engine.chat(ChatRequest((asked(),), sampling=Sampling(max_tokens=7)), tokens="exact")
        assert fake.requests[2]["max_tokens"] == 7


async def test_a_prompt_too_long_to_be_built_is_rendered_where_that_fits() -> None:
    thinking = Reply("Yes.", reasoning="a" * 800)
    async with FakeVllm(thinking, template=forgetful, max_model_len=1000) as fake, Engine(fake.url) as engine:
        _, second = await two_turns(engine, asked("b" * 200), tools=())
    assert (second.built_ids, second.broken) == (0, "window")
    assert second.why.endswith("tokens long, the model's window is 1000 tokens")


async def test_a_prompt_that_does_not_fit_is_the_same_error_as_in_chat() -> None:
    async with FakeVllm(max_model_len=300) as fake, Engine(fake.url) as engine:
        errors = []
        for tokens in ("exact", "chat"):
            fake.script = [Reply(status=400, error="maximum context length is 300 tokens. However, 999 input tokens")]
            with pytest.raises(CallError) as caught:
                await engine.chat(ChatRequest((asked("a" * 400),)), tokens=tokens)
            errors.append((caught.value.kind, caught.value.message, caught.value.over, caught.value.param))
    assert errors[0] == errors[1]
    assert errors[0][0] == "context_overflow"


async def test_ids_that_the_engine_refuses_are_given_up_for_a_rendered_prompt() -> None:
    async with FakeVllm() as fake, Engine(fake.url) as engine:
        first = await engine.chat(ChatRequest((asked(),)), tokens="exact")
        request, _ = following(first, ChatRequest((asked(),)), asked("b"))
        foreign = Continuation([*first.prompt_ids, 70000, 2], len(first.prompt_ids), True, 2)
        sample = await engine.chat(request, tokens="exact", continuation=foreign)
    assert (sample.text, sample.tokens, sample.built_ids, sample.broken) == ("Hello.", "exact", 0, "engine")
    assert sample.why.startswith("it refused the ids: the prompt and max_tokens are longer than the window, or a token")


async def test_an_engine_that_came_back_with_another_tokenizer_is_sent_none_of_the_old_ids() -> None:
    async with FakeVllm(CALLING) as fake, Engine(fake.url) as engine:
        request = ChatRequest((asked(),), tools=(RUN,))
        first = await engine.chat(request, tokens="exact")
        again, continuation = following(first, request, ToolResult(first.tool_calls[0].id, (Text("ok"),)))
        prompt_ids = fake._prompt_ids
        fake._prompt_ids = lambda body: [token ^ 1 for token in prompt_ids(body)]  # type: ignore[method-assign]
        second = await engine.chat(again, tokens="exact", continuation=continuation)
    assert (second.built_ids, second.broken) == (0, "engine")
    assert second.why.endswith("was it restarted with another model?")


async def test_an_engine_that_fails_on_built_ids_is_not_asked_again_with_others() -> None:
    async with FakeVllm() as fake, Engine(fake.url) as engine:
        fake.script = [CALLING, Reply(status=500, error="CUDA out of memory"), Reply()]
        with pytest.raises(CallError, match="answered 500"):
            await two_turns(engine)
        assert len(fake.requests) == 2
        # Nor is one that refuses a prompt in which there is nothing of polar's making.
        fake.script, fake.requests = [Reply(), Reply(status=400, error="no"), Reply()], []
        with pytest.raises(CallError, match="no"):
            await two_turns(engine)
        assert len(fake.requests) == 2


async def test_token_routes_that_hang_are_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_probe, "_LIMIT_S", 0.3)
    async with FakeVllm() as fake:
        fake.hangs = True
        async with Engine(fake.url) as engine:
            assert engine.capabilities.not_exact == "did not answer on its token routes within 0 s"
            assert (await engine.chat(ChatRequest((asked(),)))).text == "Hello."


@pytest.mark.parametrize("route", [RENDER, GENERATE])
async def test_an_engine_that_loses_a_route_is_sent_messages_and_gets_ids_again_when_it_has_it_back(route: str) -> None:
    async with FakeVllm() as fake, Engine(fake.url) as engine:
        fake.lacks = {route}
        lost = await engine.chat(ChatRequest((asked(),)), tokens="exact")
        assert (lost.text, lost.tokens, lost.broken) == ("Hello.", "chat", "engine")
        assert lost.why.startswith(f"{route} answered 403")
        fake.lacks = set()
        assert (await engine.chat(ChatRequest((asked(),)), tokens="exact")).tokens == "exact"


async def test_what_was_sampled_and_not_parsed_is_kept_with_the_error() -> None:
    async with FakeVllm(CALLING) as fake, Engine(fake.url) as engine:
        fake.lacks = {DERENDER}
        sample = await engine.chat(ChatRequest((asked(),), tools=(RUN,)), tokens="exact")
    assert sample.unread
    assert sample.unread.kind == "engine"
    assert sample.unread.message == "the engine did not parse what it had sampled"
    assert (sample.text, sample.tool_calls) == (
        '<tool_call>\n{"name": "run", "arguments": {"command":"ls"}}\n</tool_call>',
        (),
    )
    assert (len(sample.response_ids), sample.invalid_reason) == (len(encoded(sample.text)) + 1, None)
    assert len(fake.requests) == 1


async def test_an_image_goes_as_a_message() -> None:
    picture = User((Text("look"), Image("data:image/png;base64,AAAA")))
    async with FakeVllm() as fake, Engine(fake.url) as engine:
        before = fake.renders
        sample = await engine.chat(ChatRequest((picture,)), tokens="exact")
        assert (sample.tokens, sample.broken, sample.why) == ("chat", "image", "the request holds an image")
        assert fake.renders == before
        # A model that takes none is shown a line of text in its place, which has ids.
        fake.script = [Reply(status=400, error="fake is not a multimodal model"), Reply()]
        told = await engine.chat(ChatRequest((picture,)), tokens="exact")
    assert (told.tokens, told.broken, [note.field for note in told.not_carried]) == ("exact", None, ["images"])


async def test_the_weights_that_sampled_are_on_the_sample() -> None:
    async with FakeVllm() as fake, Engine(fake.url) as engine:
        fake.weights = "step-7"
        sample = await engine.chat(ChatRequest((asked(),)), tokens="exact")
    assert (sample.policy_version, sample.weight_versions) == ("step-7", [(0, len(sample.response_ids), "step-7")])


async def test_an_engine_that_saw_other_ids_than_it_was_sent_makes_the_sample_invalid() -> None:
    async with FakeVllm() as fake, Engine(fake.url) as engine:
        generated = fake._generated
        fake._generated = lambda prompt, reply, text: generated([*prompt, 11], reply, text)  # type: ignore[method-assign]
        sample = await engine.chat(ChatRequest((asked(),)), tokens="exact")
    assert sample.invalid_reason == "the engine saw other prompt ids than it was sent"


SAME: dict[str, tuple[Reply, dict[str, Any]]] = {
    "text": (Reply("Hé, <b>!"), {}),
    "nothing": (Reply(""), {}),
    "mark inside": (Reply("a<|im_end|>b"), {}),
    "call": (CALLING, {"tools": (RUN,)}),
    "text and calls": (Reply("Now.", tool_calls=[("run", "{}"), ("run", '{"a": 1}')]), {"tools": (RUN,)}),
    "broken call": (Reply("", tool_calls=[("run", '{"a": ')]), {"tools": (RUN,)}),
    "required": (CALLING, {"tools": (RUN,), "tool_choice": ToolChoice("required")}),
    "named": (CALLING, {"tools": (RUN,), "tool_choice": ToolChoice("named", "run")}),
    "none": (Reply("No."), {"tools": (RUN,), "tool_choice": ToolChoice("none")}),
    "thought": (Reply("Yes.", reasoning="Hm."), {}),
    "thought alone": (Reply("", reasoning="Hm."), {}),
    "length": (Reply("Hell", finish_reason="length"), {"sampling": Sampling(max_tokens=4)}),
    "call and length": (Reply("", tool_calls=[("run", "{}")], finish_reason="length"), {"tools": (RUN,)}),
    "stop string": (Reply("Hello ", stop_reason="STOP"), {"sampling": Sampling(stop=("STOP",))}),
    "stop in thought": (Reply("", reasoning="Hm", stop_reason="STOP"), {"sampling": Sampling(stop=("STOP",))}),
    "schema": (Reply('{"a": 1}'), {"json_schema": {"type": "object"}}),
    "abort": (Reply("Half", finish_reason="abort"), {}),
    "no logprobs": (Reply("Hello.", logprobs=False), {}),
    "no ids": (Reply("Hello.", token_ids=False), {}),
}


DIFFERENT = {"tokens", "policy_version", "weight_versions", "ended", "sampling_sent", "tool_calls", "broken", "why"}
"""What says how it was sampled, and the engine's own ids of calls."""


@pytest.mark.parametrize("case", SAME)
async def test_a_sample_is_the_same_in_both_ways(case: str) -> None:
    reply, fields = SAME[case]
    request = ChatRequest((asked(),), **fields)
    async with FakeVllm(reply) as fake, Engine(fake.url) as engine:
        chat = await engine.chat(request)
        exact = await engine.chat(request, tokens="exact")
    for name in Sample.__dataclass_fields__.keys() - DIFFERENT:
        assert getattr(exact, name) == getattr(chat, name), name
    nameless: Callable[[ToolCall], tuple[str, str]] = lambda call: (call.name, call.arguments)  # noqa: E731
    assert list(map(nameless, exact.tool_calls)) == list(map(nameless, chat.tool_calls))


async def test_a_call_that_is_given_up_is_given_up_by_the_engine() -> None:
    async with FakeVllm(Reply(delay_s=60)) as fake, Engine(fake.url) as engine:
        call = asyncio.create_task(engine.chat(ChatRequest((asked(),)), tokens="exact"))
        await until(lambda: fake.running)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: not fake.running)
    assert fake.cancelled == 1


async def test_the_time_limit_holds_for_all_of_a_calls_requests() -> None:
    async with FakeVllm(Reply(delay_s=60)) as fake, Engine(fake.url, timeout_s=0.3) as engine:
        with pytest.raises(CallError) as caught:
            await engine.chat(ChatRequest((asked(),)), tokens="exact")
    assert caught.value.kind == "timeout"
