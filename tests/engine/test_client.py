import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatRequest,
    Image,
    NotCarried,
    Sampling,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    User,
    tool_wire,
)
from polar_mitm.engine import transport
from polar_mitm.engine.body import IMAGE_PLACEHOLDER
from polar_mitm.engine.client import Engine, EngineNotReady, EngineUnfit, EngineUnreachable
from tests.engine.answers import Json, completion, entry, hello, models, refusal

HELLO = ChatRequest((User((Text("Hello"),)),))
PROBE = completion(entry(2, "<|im_end|>", -1.8, top=[-1.8, -4.2]), finish_reason="length")


@dataclass(slots=True)
class Reply:
    body: Json | str
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Server:
    """A model server that answers the probe, then what `chats` holds, the last of it for ever."""

    url: str = ""
    models: Reply = field(default_factory=lambda: Reply(models("tiny")))
    version: Reply = field(default_factory=lambda: Reply({"version": "0.32.0"}))
    probe: Reply = field(default_factory=lambda: Reply(PROBE))
    chats: list[Reply] = field(default_factory=lambda: [Reply(hello())])
    tokenize: Reply = field(default_factory=lambda: Reply({"count": 1234, "max_model_len": 1000}))
    delay_s: float = 0.0
    bodies: list[Json] = field(default_factory=list)
    counted: list[Json] = field(default_factory=list)
    """The bodies that came to be counted."""
    headers: list[dict[str, str]] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    most_at_once: int = 0
    _at_once: int = 0

    async def count(self, request: web.Request) -> web.Response:
        self.counted.append(await request.json())
        return respond(self.tokenize)

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.headers.append(dict(request.headers))
        if body.get("top_logprobs"):
            return respond(self.probe)
        self.bodies.append(body)
        self.begun.set()
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        finally:
            self._at_once -= 1
        return respond(self.chats.pop(0) if len(self.chats) > 1 else self.chats[0])


def respond(reply: Reply) -> web.Response:
    text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
    return web.Response(text=text, status=reply.status, content_type=reply.content_type, headers=reply.headers)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()

    def answer(pick: Callable[[], Reply]) -> Callable[[web.Request], Any]:
        async def handle(_request: web.Request) -> web.Response:
            return respond(pick())

        return handle

    app.router.add_get("/v1/models", answer(lambda: server.models))
    app.router.add_get("/version", answer(lambda: server.version))
    app.router.add_post("/tokenize", server.count)
    app.router.add_post("/v1/chat/completions", server.chat)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    yield server
    await runner.cleanup()


async def failure(engine: Engine, request: ChatRequest = HELLO, **options: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        await engine.chat(request, **options)
    return caught.value


async def test_opening_finds_out_what_is_served(server: Server) -> None:
    async with Engine(server.url + "/v1/") as engine:
        found = engine.capabilities
    assert (found.url, found.model, found.max_model_len, found.engine_version) == (server.url, "tiny", 1000, "0.32.0")
    assert (found.logprobs_mode, found.template_hash, found.tokenizer_hash) == ("raw_logprobs", None, None)


async def test_a_server_without_a_version_or_a_window_is_still_fit(server: Server) -> None:
    server.version = Reply("Not Found", 404, "text/plain")
    server.models = Reply(models("tiny", max_model_len=None))
    async with Engine(server.url) as engine:
        assert (engine.capabilities.engine_version, engine.capabilities.max_model_len) == (None, None)


async def test_logprobs_after_filters_are_told_from_raw_ones(server: Server) -> None:
    server.probe = Reply(completion(entry(2, "", 0.0, top=[0.0, -9999.0])))
    async with Engine(server.url) as engine:
        assert engine.capabilities.logprobs_mode == "processed_logprobs"


async def test_nothing_listening_is_unreachable_and_names_the_url() -> None:
    with pytest.raises(EngineUnreachable, match=r"http://127\.0\.0\.1:9.*Is vLLM running there\?"):
        await Engine("http://127.0.0.1:9").open()


@pytest.mark.parametrize(
    "answer",
    [Reply("<html>login</html>", 200, "text/html"), Reply("Not Found", 404, "text/plain"), Reply("{}"), Reply("[]")],
)
async def test_what_lists_no_models_is_no_engine(server: Server, answer: Reply) -> None:
    server.models = answer
    with pytest.raises(EngineUnreachable, match="is this vLLM"):
        await Engine(server.url).open()


def bare(**fields: object) -> Reply:
    body = json.loads(json.dumps(PROBE))
    for key, value in fields.items():
        (body if key == "prompt_token_ids" else body["choices"][0])[key] = value
    return Reply(body)


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (bare(prompt_token_ids=None), "no prompt token ids; polar needs a vLLM that knows return_token_ids"),
        (bare(token_ids=None), "no response token ids"),
        (bare(logprobs=None), "no log-probabilities"),
        (Reply(completion(entry(2, "", 3.5, top=[3.5, 1.0]))), "it gives logits"),
        (Reply(refusal("logprobs are off"), 400), "refuses a one-token chat: logprobs are off"),
    ],
)
async def test_an_engine_without_token_data_is_refused_at_the_start(server: Server, probe: Reply, reason: str) -> None:
    server.probe = probe
    with pytest.raises(EngineUnfit, match=reason) as caught:
        await Engine(server.url).open()
    assert isinstance(caught.value, EngineNotReady)
    assert server.url in str(caught.value)


async def test_a_model_that_is_not_served_is_refused_with_the_names_of_those_that_are(server: Server) -> None:
    server.models = Reply(models("one", "two"))
    with pytest.raises(EngineUnfit, match="no model 'three', but one, two"):
        await Engine(server.url, model="three").open()
    async with Engine(server.url, model="two") as engine:
        assert engine.capabilities.model == "two"


async def test_a_refused_key_is_said_at_the_start(server: Server) -> None:
    server.models = Reply({"error": "Unauthorized"}, 401)
    with pytest.raises(EngineUnfit, match="--api-key"):
        await Engine(server.url).open()


async def test_the_key_goes_out_as_a_bearer_token(server: Server) -> None:
    async with Engine(server.url, api_key="secret") as engine:
        await engine.chat(HELLO)
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer secret", "Bearer secret"]


async def test_an_ordinary_call_takes_one_round_trip(server: Server) -> None:
    async with Engine(server.url) as engine:
        sample = await engine.chat(HELLO, overrides={"temperature": 1.0})
    assert (sample.text, sample.response_ids, sample.invalid_reason) == ("Hello", [5, 6, 2], None)
    assert sample.request_messages == [{"role": "user", "content": "Hello"}]
    assert sample.sampling_sent == {"temperature": 1.0}
    assert len(server.bodies) == 1


async def test_the_proxy_variables_of_the_environment_are_not_followed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with Engine(server.url) as engine:
        assert (await engine.chat(HELLO)).text == "Hello"


async def test_asking_for_more_than_the_window_is_clamped_without_a_second_call(server: Server) -> None:
    async with Engine(server.url) as engine:
        sample = await engine.chat(ChatRequest(HELLO.messages, sampling=Sampling(max_tokens=128_000)))
    assert [body["max_tokens"] for body in server.bodies] == [1000]
    why = "clamped from 128000 to 984: the window is 1000 tokens and the prompt takes 16"
    assert sample.not_carried == (NotCarried("max_tokens", why),)


async def test_an_engine_that_wants_fewer_tokens_gets_what_fits(server: Server) -> None:
    too_much = "maximum context length is 1000 tokens. However, you requested 1216 tokens (316 in the messages, 900 in"
    server.chats = [Reply(refusal(too_much), 400), Reply(hello())]
    async with Engine(server.url) as engine:
        await engine.chat(ChatRequest(HELLO.messages, sampling=Sampling(max_tokens=900)))
    assert [body["max_tokens"] for body in server.bodies] == [900, 684]


async def test_an_engine_that_keeps_refusing_is_asked_no_third_time(server: Server) -> None:
    server.chats = [Reply(refusal("max_tokens=9 cannot be greater than max_model_len=8", "max_tokens"), 400)]
    async with Engine(server.url) as engine:
        error = await failure(engine, ChatRequest(HELLO.messages, sampling=Sampling(max_tokens=900)))
    assert (error.kind, len(server.bodies)) == ("invalid_request", 2)


OVERFLOW = refusal(
    "This model's maximum context length is 1000 tokens. However, your prompt contains at least 1001 input tokens, "
    "which exceeds this limit even without any output tokens.",
    "input_tokens",
)


async def test_an_overflow_says_how_long_the_prompt_is(server: Server) -> None:
    server.chats = [Reply(OVERFLOW, 400)]
    async with Engine(server.url) as engine:
        error = await failure(engine)
        server.tokenize = Reply("", 404)
        uncounted = await failure(engine)
    assert (error.kind, error.over) == ("context_overflow", (1234, 1000))
    assert error.message == "the prompt is 1234 tokens long, the model's window is 1000 tokens"
    assert (uncounted.message, uncounted.over) == (
        "the prompt is 1001 tokens long, the model's window is 1000 tokens",
        (1001, 1000),
    )


async def test_a_prompt_refused_by_its_characters_is_never_said_to_fit(server: Server) -> None:
    text = (
        "This model's maximum context length is 1000 tokens. However, your prompt contains 99999 characters (more than "
        "8000 characters, which is the upper bound for 1000 input tokens). Please reduce the length of the prompt."
    )
    server.chats, server.tokenize = [Reply(refusal(text, "input_text"), 400)], Reply("", 404)
    async with Engine(server.url) as engine:
        error = await failure(engine)
    assert error.over == (1001, 1000)
    assert error.message == "the prompt is at least 1001 tokens long, the model's window is 1000 tokens"


async def test_a_prompt_of_exactly_the_window_is_an_overflow_too(server: Server) -> None:
    server.tokenize = Reply({"count": 1000})
    server.chats = [Reply(refusal("max_tokens must be at least 1, got 0.", "max_tokens"), 400)]
    async with Engine(server.url) as engine:
        error = await failure(engine)
    assert (error.kind, error.over) == ("context_overflow", (1001, 1000))
    assert error.message.startswith("the prompt and one token of an answer are 1001 tokens long")


async def test_a_text_model_gets_no_image_a_second_time(server: Server) -> None:
    server.chats = [Reply(refusal("tiny is not a multimodal model"), 400), Reply(hello())]
    request = ChatRequest((User((Text("look"), Image("data:image/png;base64,AAAA"))),))
    async with Engine(server.url) as engine:
        first = await engine.chat(request)
        second = await engine.chat(request)
    assert len(server.bodies) == 3
    for sample in (first, second):
        assert sample.request_messages[0]["content"] == f"look\n{IMAGE_PLACEHOLDER}"
        assert [note.field for note in sample.not_carried] == ["images"]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(refusal("temperature must be in [0, 2], got 5.0.", "temperature"), 400), "invalid_request"),
        (Reply(refusal("EngineCore encountered an issue.", code=500), 500), "engine"),
        (Reply(refusal("The model `tiny` does not exist.", "model", 404), 404), "no_model"),
        (Reply(refusal("Unauthorized", code=401), 401), "no_model"),
        (Reply("<html>Bad Gateway</html>", 502, "text/html"), "engine"),
        (Reply("<html>Please log in</html>", 200, "text/html"), "engine"),
        (Reply('{"choices": []}'), "engine"),
        (Reply('{"choices"', headers={"Content-Encoding": "gzip"}), "engine"),
        (Reply(refusal("too much", code=413), 413), "too_large"),
    ],
)
async def test_a_failed_call_is_named_by_its_kind_and_where_the_engine_is_is_not_for_the_client(
    server: Server, reply: Reply, kind: str
) -> None:
    server.chats = [reply]
    async with Engine(server.url) as engine:
        error = await failure(engine)
    assert error.kind == kind
    assert server.url.removeprefix("http://") not in error.message
    if kind != "invalid_request":
        assert server.url in error.detail


async def test_a_redirect_is_not_followed_wherever_it_leads(server: Server) -> None:
    async with Engine(server.url) as elsewhere, Engine(server.url) as engine:
        server.chats = [Reply("", 307, headers={"Location": f"{elsewhere.url}/v1/chat/completions"}), Reply(hello())]
        error = await failure(engine)
    assert (error.kind, error.message, len(server.bodies)) == ("engine", "the engine answered 307", 1)


BUSY = Reply(refusal("busy", code=503), 503)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds in place of seconds."""
    monkeypatch.setattr(transport, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(transport, "_LONGEST_PAUSE_S", 0.04)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("busy", [BUSY, Reply("slow down", 429, "text/plain")])
async def test_an_overloaded_engine_is_asked_again_until_it_takes_the_work(server: Server, busy: Reply) -> None:
    server.chats = [busy, busy, busy, Reply(hello())]
    async with Engine(server.url) as engine:
        assert (await engine.chat(HELLO)).text == "Hello"
    assert len(server.bodies) == 4
    assert all(body == server.bodies[0] for body in server.bodies)


async def test_an_engine_that_says_how_long_to_wait_is_left_alone_for_so_long(server: Server) -> None:
    server.chats = [Reply(BUSY.body, 503, headers={"Retry-After": "1"}), Reply(hello())]
    began = time.monotonic()
    async with Engine(server.url) as engine:
        assert (await engine.chat(HELLO)).text == "Hello"
    assert 1.0 <= time.monotonic() - began < 2.0


async def test_an_engine_that_stays_overloaded_is_told_of_at_the_calls_time_limit_and_no_earlier(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S"):
        monkeypatch.setattr(transport, pause, 0.3)
    monkeypatch.setattr(transport.random, "uniform", lambda low, high: low)
    server.chats = [BUSY]
    # Asked at 0, 0.3 and 0.6 s; what is left then is for a busy machine, and too short for another pause.
    async with Engine(server.url, timeout_s=0.85) as engine:
        error = await failure(engine)
    assert (error.kind, "busy" in error.detail, len(server.bodies)) == ("overloaded", True, 3)
    assert {record.message for record in caplog.records} == {
        f"polar: the engine at {server.url} is overloaded (503): calls wait"
    }


async def test_a_wait_longer_than_the_time_limit_is_not_begun(server: Server) -> None:
    server.chats = [Reply(BUSY.body, 503, headers={"Retry-After": "3600"})]
    async with Engine(server.url, timeout_s=60) as engine:
        assert (await failure(engine)).kind == "overloaded"
    assert len(server.bodies) == 1


async def test_a_call_that_waits_for_an_overloaded_engine_can_be_cancelled(server: Server) -> None:
    server.chats = [BUSY]
    async with Engine(server.url) as engine:
        call = asyncio.create_task(engine.chat(HELLO))
        await asyncio.wait_for(server.begun.wait(), 5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_prompt_is_counted_without_being_sampled_and_without_a_place(server: Server) -> None:
    server.delay_s = 60
    request = ChatRequest(HELLO.messages, tools=(WEATHER,), thinking=Thinking(enabled=False))
    async with Engine(server.url, max_concurrency=1) as engine:
        running = asyncio.create_task(engine.chat(HELLO))
        await asyncio.wait_for(server.begun.wait(), 5)
        assert await asyncio.wait_for(asyncio.gather(*(engine.count(request) for _ in range(50))), 5) == [1234] * 50
        running.cancel()
    assert len(server.bodies) == 1
    assert server.counted[0] == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [tool_wire(replace(WEATHER, strict=None))],
        "chat_template_kwargs": {"enable_thinking": False},
    }


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Reply(refusal("no messages"), 400), "invalid_request"),
        (Reply(refusal("busy"), 503), "overloaded"),
        (Reply("Not Found", 404, "text/plain"), "no_model"),
        (Reply('{"tokens": []}'), "engine"),
        (Reply("<html>", 200, "text/html"), "engine"),
        (Reply("[]"), "engine"),
    ],
)
async def test_a_count_that_fails_is_named_by_its_kind(server: Server, answer: Reply, kind: str) -> None:
    server.tokenize = answer
    async with Engine(server.url) as engine:
        with pytest.raises(CallError) as caught:
            await engine.count(HELLO)
    assert caught.value.kind == kind


async def test_the_field_at_fault_is_passed_on(server: Server) -> None:
    server.chats = [Reply(refusal("temperature must be in [0, 2], got 5.0.", "temperature"), 400)]
    async with Engine(server.url) as engine:
        assert (await failure(engine)).param == "temperature"


async def test_P093_an_answer_that_streams_though_nobody_asked_is_no_answer(server: Server) -> None:
    stream = 'data: {"choices": [{"delta": {"content": "hi"}}]}\n\ndata: [DONE]\n\n'
    server.chats = [Reply(stream, 200, "text/event-stream")]
    async with Engine(server.url) as engine:
        error = await failure(engine)
    assert error.kind == "engine"
    assert "answered with text/event-stream instead of JSON" in error.message


async def test_an_answer_without_an_end_is_an_engine_error_and_takes_no_more_memory_than_the_limit(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_LARGEST_ANSWER", 100_000)
    async with Engine(server.url) as engine:
        server.chats = [Reply("x" * 100_001)]
        error = await failure(engine)
        assert (error.kind, error.message) == ("engine", "the engine answered with more than 100000 bytes")
        server.chats = [Reply(json.dumps(hello()).ljust(100_000))]
        assert (await engine.chat(HELLO)).text == "Hello"


async def test_an_engine_that_has_died_is_an_engine_error(server: Server) -> None:
    async with Engine(server.url) as engine:
        engine._transport.url = "http://127.0.0.1:9"
        error = await failure(engine)
    assert (error.kind, error.message) == ("engine", "the engine gave no answer")
    assert error.detail.startswith("http://127.0.0.1:9/v1/chat/completions gave no answer: ")


async def test_no_answer_in_time_is_a_timeout_and_closes_the_connection(server: Server) -> None:
    async with Engine(server.url, timeout_s=0.2) as engine:
        server.delay_s = 60
        error = await failure(engine)
        await asyncio.wait_for(server.given_up.wait(), 1)
    assert error.kind == "timeout"


async def test_P122_cancelling_closes_the_connection(server: Server) -> None:
    server.delay_s = 60
    async with Engine(server.url) as engine:
        call = asyncio.create_task(engine.chat(HELLO))
        await asyncio.wait_for(server.begun.wait(), 5)
        call.cancel()
        await asyncio.wait_for(server.given_up.wait(), 1)
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_no_more_calls_run_at_once_than_allowed(server: Server) -> None:
    server.delay_s = 0.02
    async with Engine(server.url, max_concurrency=3) as engine:
        await asyncio.gather(*(engine.chat(HELLO) for _ in range(10)))
    assert (server.most_at_once, len(server.bodies)) == (3, 10)


async def test_what_is_no_utf8_is_the_clients_mistake(server: Server) -> None:
    async with Engine(server.url) as engine:
        error = await failure(engine, ChatRequest((User((Text("cut \ud83d"),)),)))
    assert (error.kind, server.bodies) == ("invalid_request", [])


async def test_an_answer_off_its_script_never_reaches_the_harness(server: Server) -> None:
    text = '<tool_call>{"name": "run", "arguments": {"command": "reboot"}}</tool_call>'
    calls = [("run", '{"command": "reboot"}')]
    server.chats = [Reply(completion(entry(5, text), tool_calls=calls, finish_reason="tool_calls"))]
    async with Engine(server.url) as engine:
        error = await failure(engine, force_regex="ok")
    assert (error.kind, "--tool-strict-level" in error.detail) == ("engine", True)


async def test_using_an_engine_that_was_not_opened_is_a_mistake_in_polar() -> None:
    with pytest.raises(RuntimeError, match="open"):
        await Engine("http://127.0.0.1:9").chat(HELLO)


WEATHER = Tool(
    "weather",
    "Weather of a city",
    {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
     "additionalProperties": False},
    strict=True,
)  # fmt: skip


@pytest.mark.live
async def test_a_real_engine_gives_whole_token_data_at_once_for_many(engine_url: str) -> None:
    request = ChatRequest(HELLO.messages, sampling=Sampling(max_tokens=60))
    async with Engine(engine_url) as engine:
        assert engine.capabilities.logprobs_mode == "raw_logprobs"
        samples = await asyncio.gather(*(engine.chat(request, overrides={"temperature": 1.0}) for _ in range(16)))
    for sample in samples:
        assert (sample.invalid_reason, sample.decode_matches_text, sample.forced) == (None, True, [])
        assert len(sample.response_ids) == len(sample.logprobs) == sample.usage.completion_tokens > 0
        assert len(sample.prompt_ids) == sample.usage.prompt_tokens > 0
        assert max(sample.logprobs) <= 0
    assert len({tuple(sample.response_ids) for sample in samples}) > 1


@pytest.mark.live
@pytest.mark.parametrize("choice", [ToolChoice("required"), ToolChoice("named", "weather")])
async def test_a_real_engine_forces_a_call_and_its_arguments_are_the_sampled_ones(
    engine_url: str, choice: ToolChoice
) -> None:
    request = ChatRequest(
        HELLO.messages, tools=(WEATHER,), tool_choice=choice, parallel_tool_calls=False,
        sampling=Sampling(max_tokens=400),
    )  # fmt: skip
    async with Engine(engine_url) as engine:
        sample = await engine.chat(request)
    (call,) = sample.tool_calls
    assert (call.name, list(json.loads(call.arguments))) == ("weather", ["city"])
    assert sample.token_bytes is not None
    assert call.arguments.encode() in b"".join(sample.token_bytes)
    assert sample.finish_reason == ("tool_calls" if choice.mode == "required" else "stop")
    assert sample.forced == [(0, len(sample.response_ids))]
    assert (sample.invalid_reason, sample.decode_matches_text) == (None, True)


@pytest.mark.live
@pytest.mark.parametrize("beyond", [-100, 1, 100_000])
async def test_a_real_engine_takes_a_client_that_asks_for_too_much(engine_url: str, beyond: int) -> None:
    """Below the window vLLM lowers max_tokens to what is left of it by itself, above it refuses: both must work."""
    async with Engine(engine_url) as engine:
        window = engine.capabilities.max_model_len or 0
        messages = (User((Text("a b c d " * 100),)),)
        sample = await engine.chat(ChatRequest(messages, sampling=Sampling(max_tokens=window + beyond)))
    room = window - len(sample.prompt_ids)
    assert room < window - 400
    (note,) = sample.not_carried
    assert (note.field, note.why.partition(":")[0]) == ("max_tokens", f"clamped from {window + beyond} to {room}")
    assert sample.invalid_reason is None


@pytest.mark.live
async def test_a_real_engine_tells_a_prompt_that_leaves_no_room(engine_url: str) -> None:
    async with Engine(engine_url) as engine:
        window = engine.capabilities.max_model_len or 0
        error = await failure(engine, ChatRequest((User((Text("a b c d " * (window // 4 + 500)),)),)))
    assert error.kind == "context_overflow"
    assert error.over is not None
    assert (error.over[0] > window + 1000, error.over[1]) == (True, window)


@pytest.mark.live
@pytest.mark.parametrize("thinking", [Thinking(), Thinking(enabled=False), Thinking(effort="low")])
async def test_a_real_engine_counts_exactly_the_prompt_that_it_samples_from(
    engine_url: str, thinking: Thinking
) -> None:
    calling = Assistant("", "Hm.", (ToolCall("c1", "weather", '{"city": "Oslo"}'),))
    messages = (System("Be brief."), *HELLO.messages, calling, ToolResult("c1", (Text("cold"),)))
    request = ChatRequest(messages, (WEATHER,), thinking=thinking, sampling=Sampling(max_tokens=2))
    async with Engine(engine_url) as engine:
        assert await engine.count(request) == len((await engine.chat(request)).prompt_ids)


@pytest.mark.live
async def test_a_real_engine_takes_every_word_for_effort_and_a_text_model_counts_images(engine_url: str) -> None:
    picture = Image("data:image/png;base64,iVBORw0KGgo=")
    async with Engine(engine_url) as engine:
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"):
            request = ChatRequest(HELLO.messages, thinking=Thinking(effort=effort), sampling=Sampling(max_tokens=1))
            assert (await engine.chat(request)).sampling_sent
        assert await engine.count(ChatRequest((User((picture,)),))) > 5


@pytest.mark.live
async def test_a_real_text_model_gets_a_placeholder_for_an_image(engine_url: str) -> None:
    picture = Image("data:image/png;base64,iVBORw0KGgo=")
    async with Engine(engine_url) as engine:
        sample = await engine.chat(ChatRequest((User((picture,)),), sampling=Sampling(max_tokens=4)))
    assert sample.request_messages == [{"role": "user", "content": IMAGE_PLACEHOLDER}]


@pytest.mark.live
async def test_P122_a_real_engine_gives_up_a_cancelled_call_within_a_second(engine_url: str) -> None:
    async with Engine(engine_url) as engine, aiohttp.ClientSession() as session:

        async def running() -> float:
            async with session.get(f"{engine.url}/metrics") as response:
                lines = (await response.text()).splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))

        request = ChatRequest(HELLO.messages, sampling=Sampling(max_tokens=2000))
        call = asyncio.create_task(engine.chat(request, overrides={"ignore_eos": True}))
        async with asyncio.timeout(10):
            while await running() == 0:  # noqa: ASYNC110  (the engine is another process)
                await asyncio.sleep(0.02)
        call.cancel()
        async with asyncio.timeout(1):
            while await running() > 0:  # noqa: ASYNC110  (the engine is another process)
                await asyncio.sleep(0.02)
        assert call.cancelled() or call.cancelling()


async def test_a_password_in_the_url_reaches_the_engine_and_nothing_that_is_shown() -> None:
    engine = Engine("http://someone:secret@127.0.0.1:9/v1")
    assert engine.url == "http://127.0.0.1:9"
    with pytest.raises(EngineUnreachable) as failed:
        await engine.open()
    assert "secret" not in str(failed.value)
