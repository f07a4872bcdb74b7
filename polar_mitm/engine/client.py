"""The client to a vLLM OpenAI server: have one chat request sampled with its token data.

How bytes travel is `transport`'s, what the server can do is `probe`'s, what a body says is `body`'s, what an answer
holds is `sample`'s, what a refusal means is `refusals`', prompts of token ids are `exact`'s. Starting a server belongs
to `local`.

The server must run with vLLM's default `--tool-strict-level auto`: a higher level puts a grammar over every tool call,
so their log-probabilities are not the policy's own, and lets the model leave a script.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self

import orjson

from polar_mitm.chat import CallError, ChatRequest
from polar_mitm.engine.body import Outgoing, compose, has_images
from polar_mitm.engine.capabilities import Capabilities, EngineNotReady, EngineUnfit, EngineUnreachable
from polar_mitm.engine.control import Control
from polar_mitm.engine.exact import Exact, Refused, TokenIn, Unavailable
from polar_mitm.engine.exact_cut import Continuation
from polar_mitm.engine.exact_probe import look
from polar_mitm.engine.probe import completion_of, probe
from polar_mitm.engine.refusals import EngineLost, Refusal, call_error, engine_error, overflow, read_refusal
from polar_mitm.engine.sample import Completion, Sample, holds_to, read_sample
from polar_mitm.engine.transport import Answer, Transport
from polar_mitm.prompts import Broken, Tokens

__all__ = [
    "Capabilities",
    "Continuation",
    "Engine",
    "EngineLost",
    "EngineNotReady",
    "EngineUnfit",
    "EngineUnreachable",
    "Sample",
]

_PROBE_S: Final = 180.0
"""The first answer of a vLLM on a loaded CPU machine took 34 s; a grammar's first use adds 5 s."""
_COUNT_S: Final = 60.0
"""vLLM counts 120,000 tokens in 0.4 s on two idle cores; the rest is for a machine that is busy sampling."""
_RECOUNT_S: Final = 10.0
"""For the true length of a prompt that was refused: the client waits for its error meanwhile."""
_HEALTH_S: Final = 5.0
_CHAT_NAME: Final = "chatcmpl-"
"""What vLLM puts before the name of a call on its chat route."""


type Health = Literal["well", "silent", "gone"]
"""`silent`: it gave no answer within a few seconds, as also a machine does that is busy. `gone`: nobody is there, or it
says itself that it cannot answer."""


class Engine:
    """A vLLM OpenAI server. `open` before the first `chat`, `close` after the last; also an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        max_concurrency: int = 256,
        timeout_s: float = 3600,
    ) -> None:
        """`url` with or without a trailing `/v1`. `model` None takes the first one served. `timeout_s` holds for one
        call, its wait for one of the `max_concurrency` places included. A user and password in `url` are sent to the
        engine, and shown and written nowhere."""
        self._transport = Transport(url, api_key)
        self._wanted_model = model
        self._places = asyncio.Semaphore(max_concurrency)
        self._timeout_s = timeout_s
        self._capabilities: Capabilities | None = None
        self._token_in: TokenIn | None = None
        self._text_only = False
        self._running: set[str] = set()
        self.control = Control(self._transport)
        """For a change of its weights."""

    @property
    def url(self) -> str:
        return self._transport.url

    @property
    def opened(self) -> bool:
        return self._capabilities is not None

    @property
    def capabilities(self) -> Capabilities:
        """As of the last `open` or `probe`. RuntimeError before that."""
        if self._capabilities is None:
            raise RuntimeError("Engine.open() has not been awaited")
        return self._capabilities

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def connect(self) -> None:
        """Enough to use `control`."""
        self._transport.open()

    async def open(self, model: str | None = None) -> Capabilities:
        """Find out what is served and have one token sampled. `model` must be served, where none was named before.

        Raises EngineUnreachable or EngineUnfit.
        """
        self._wanted_model = self._wanted_model or model
        self.connect()
        try:
            return await self.probe()
        finally:
            if self._capabilities is None:
                await self.close()

    async def probe(self) -> Capabilities:
        """The same again, of an engine that is open. Raises EngineUnreachable or EngineUnfit."""
        try:
            async with asyncio.timeout(_PROBE_S):
                found = await probe(self._transport, self._wanted_model)
                routes = await look(self._transport, found.model, found.max_model_len, self._running)
        except CallError as error:
            raise EngineUnreachable(self.url, f"{error.detail}. Is vLLM running there?") from error
        except TimeoutError as error:
            if await self.control.paused():
                raise EngineUnreachable(
                    self.url, "it is paused: end the update of its weights, or POST /resume"
                ) from error
            raise EngineUnreachable(self.url, f"no answer within {_PROBE_S:.0f} s; is it overloaded?") from error
        self._token_in = routes if isinstance(routes, TokenIn) else None
        self._capabilities = replace(found, not_exact=routes if isinstance(routes, str) else None)
        return self._capabilities

    async def close(self) -> None:
        """Close all connections; calls still running fail as engine errors. Safe to call twice."""
        await self._transport.close()

    async def health(self) -> Health:
        try:
            async with asyncio.timeout(_HEALTH_S):
                return "well" if (await self._transport.get("/health")).status == 200 else "gone"
        except CallError:
            return "gone"
        except TimeoutError:
            return "silent"

    async def abort(self, *, only_chat: bool = False) -> bool:
        """End the calls that are being sampled; each returns what it has so far. False where the engine cannot.

        `only_chat`: those alone whose prompts went as messages.
        """
        names = sorted(name for name in self._running if name.startswith(_CHAT_NAME) or not only_chat)
        return not names or await self.control.abort(names)

    async def chat(
        self,
        request: ChatRequest,
        *,
        overrides: Mapping[str, Any] = {},
        force_regex: str | None = None,
        tool_choice_none: bool = False,
        tokens: Tokens = "chat",
        continuation: Continuation | None = None,
    ) -> Sample:
        """Have the request sampled. Cancelling closes the connection, and vLLM gives the request up.

        With `exact` tokens the prompt goes out as token ids, after those of `continuation` where it can be built from
        them; as messages where the request has images or the engine has lost its token routes, and the sample says so.

        An overloaded engine is asked again until the call's time limit: told of it, harnesses send up to 40 requests
        for the one. `overrides` are vLLM sampling fields that win over what the client asked. `force_regex` fixes the
        whole answer.
        ValueError for `exact` tokens with an engine that offers no token routes.
        Raises CallError: context_overflow, overloaded, engine, no_model, timeout, invalid_request or too_large.
        """
        if tokens == "exact" and self._token_in is None:
            raise ValueError(f"the engine {self.capabilities.not_exact}")
        routes = self._token_in if tokens == "exact" else None
        written = partial(
            compose,
            request,
            model=self.capabilities.model,
            overrides=overrides,
            force_regex=force_regex,
            tool_choice_none=tool_choice_none,
        )
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with asyncio.timeout_at(deadline), self._places:
                return await self._chat(request, written, force_regex, routes, continuation, deadline)
        except TimeoutError as error:
            raise engine_error(self.url, f"did not answer within {self._timeout_s:.0f} s", kind="timeout") from error

    async def count(self, request: ChatRequest, *, overrides: Mapping[str, Any] = {}) -> int:
        """Tokens of the request's prompt, by the served template and tokenizer. It waits for no place among the calls.

        Raises CallError: overloaded, engine, no_model, timeout, invalid_request or too_large.
        """
        while True:
            text_only = self._text_only
            outgoing = compose(request, model=self.capabilities.model, overrides=overrides, text_only=text_only)
            try:
                async with asyncio.timeout(_COUNT_S):
                    answer = await self._transport.post("/tokenize", outgoing.prompt)
            except TimeoutError as error:
                what = f"did not count the prompt within {_COUNT_S:.0f} s"
                raise engine_error(self.url, what, kind="timeout") from error
            if answer.status == 200:
                return self._counted(answer)
            refusal = read_refusal(answer.status, answer.raw)
            if not self._learn(refusal, request, text_only):
                raise call_error(refusal, url=self.url, model=self.capabilities.model)

    async def _chat(
        self,
        request: ChatRequest,
        written: Callable[..., Outgoing],
        force_regex: str | None,
        routes: TokenIn | None,
        continuation: Continuation | None,
        deadline: float,
    ) -> Sample:
        room = self.capabilities.max_model_len
        shortened = False
        most_stops: int | None = None
        broken: tuple[Broken, str] | None = None
        while True:
            text_only = self._text_only
            outgoing = written(text_only=text_only)
            pictured = has_images(request) and not text_only
            if routes and not pictured:
                try:
                    exact = await routes.sample(outgoing, continuation, deadline)
                    return self._read_exact(exact, outgoing, force_regex)
                except Unavailable as gone:
                    routes, broken = None, ("engine", str(gone))
                except Refused as refused:
                    raise await self._as_error(refused.refusal, outgoing) from refused
            outgoing = outgoing.within(room)
            if most_stops is not None:
                outgoing = outgoing.with_stops(most_stops)
            answer = await self._sampled(outgoing, deadline)
            if answer.status == 200:
                sample = self._read(completion_of(answer, self.url), outgoing, force_regex)
                if broken or routes:
                    sample.broken, sample.why = broken or ("image", "the request holds an image")
                return sample
            refusal = read_refusal(answer.status, answer.raw)
            if self._learn(refusal, request, text_only):
                continue
            if most_stops is None and (most_stops := refusal.most_stops) is not None:
                continue
            if not shortened and (fitting := refusal.room(outgoing.max_tokens)):
                room, shortened = fitting, True
            else:
                raise await self._as_error(refusal, outgoing)

    async def _sampled(self, outgoing: Outgoing, deadline: float) -> Answer:
        name = f"polar-{secrets.token_hex(8)}"
        running = _CHAT_NAME + name
        self._running.add(running)
        try:
            body = {**outgoing.body, "request_id": name}
            return await self._transport.patient_post("/v1/chat/completions", body, deadline)
        finally:
            self._running.discard(running)

    def _learn(self, refusal: Refusal, request: ChatRequest, text_only: bool) -> bool:
        """Whether this refusal of a request that was not sent as `text_only` tells that the model takes no images."""
        told = refusal.refuses_images and has_images(request) and not text_only
        self._text_only = self._text_only or told
        return told

    def _read_exact(self, exact: Exact, outgoing: Outgoing, force_regex: str | None) -> Sample:
        window = self.capabilities.max_model_len or 0
        outgoing = outgoing.within(max(1, window - len(exact.prompt_ids)))
        sample = self._read(exact.completion, outgoing, None if exact.unread else force_regex)
        sample.tokens, sample.ended = "exact", exact.ended
        sample.built_ids, sample.broken, sample.why = exact.built_ids, exact.broken, exact.why
        sample.weight_versions = exact.weight_versions
        sample.policy_version = exact.weight_versions[0][2] if exact.weight_versions else None
        sample.unread = exact.unread
        if sample.prompt_ids and sample.prompt_ids != exact.prompt_ids:
            sample.invalid_reason = "the engine saw other prompt ids than it was sent"
        return sample

    def _read(self, completion: Completion, outgoing: Outgoing, force_regex: str | None) -> Sample:
        sample = read_sample(completion, outgoing, self.capabilities.max_model_len)
        sample.engine = self.capabilities
        if force_regex is not None and not holds_to(force_regex, sample):
            # A script keeps an untrained model from choosing its own commands: whatever else came must not be run.
            mend = "start vLLM without --tool-strict-level"
            raise engine_error(self.url, "did not keep to the script's regex", mend=mend)
        return sample

    async def _as_error(self, refusal: Refusal, outgoing: Outgoing) -> CallError:
        if not refusal.overflows(outgoing.max_tokens):
            return call_error(refusal, url=self.url, model=self.capabilities.model)
        limit = refusal.limit or self.capabilities.max_model_len
        prompt = await self._count(outgoing) or refusal.prompt_tokens or 0
        return overflow(prompt, limit)

    async def _count(self, outgoing: Outgoing) -> int | None:
        """The prompt's true length. vLLM's refusal counts no further than one token over the window, and clients that
        shorten their history read how far they are over it."""
        with contextlib.suppress(CallError, TimeoutError):
            async with asyncio.timeout(_RECOUNT_S):
                answer = await self._transport.post("/tokenize", outgoing.prompt)
            if answer.status == 200:
                return self._counted(answer)
        return None

    def _counted(self, answer: Answer) -> int:
        with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
            count = orjson.loads(answer.raw).get("count")
            if isinstance(count, int):
                return count
        raise engine_error(self.url, "gave no count of the prompt", mend="is this vLLM?")
