"""The client to a vLLM OpenAI server: find out what it can do, and have one chat request sampled with its token data.

One HTTP session, never through a proxy. What a body says is `body`'s, what an answer holds is `sample`'s, what a
refusal means is `refusals`'. Starting a server belongs to `local`.

The server must run with vLLM's default `--tool-strict-level auto`: a higher level puts a grammar over every tool call,
so their log-probabilities are not the policy's own, and lets the model leave a script.
"""

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit, urlunsplit

import aiohttp
import orjson

from polar_mitm.chat import CallError, ChatRequest, Json
from polar_mitm.engine.body import TOKEN_DATA, Outgoing, compose, has_images
from polar_mitm.engine.refusals import Refusal, call_error, engine_error, overflow, read_refusal
from polar_mitm.engine.sample import Completion, Sample, TokenData, holds_to, read_completion, read_sample, token_data
from polar_mitm.json_text import dumps

logger = logging.getLogger(__name__)

__all__ = ["Capabilities", "Engine", "EngineNotReady", "EngineUnfit", "EngineUnreachable", "Sample"]

_CONNECT_S: Final = 10.0
_PROBE_S: Final = 180.0
"""The first answer of a vLLM on a loaded CPU machine took 34 s; a grammar's first use adds 5 s."""
_COUNT_S: Final = 60.0
"""vLLM counts 120,000 tokens in 0.4 s on two idle cores; the rest is for a machine that is busy sampling."""
_RECOUNT_S: Final = 10.0
"""For the true length of a prompt that was refused: the client waits for its error meanwhile."""
_OVERLOADED: Final = (429, 503)
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_KEEP_ALIVE_S: Final = 4.0
"""Under the 5 s after which vLLM closes an idle connection: a request must not meet a connection being closed."""
_CERTAIN: Final = -1000.0
"""vLLM writes -9999 for a token with no probability left; no raw log-probability comes near."""


class EngineNotReady(Exception):
    """The engine cannot be used. The message names the URL and the mend."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"engine at {url}: {reason}")
        self.url = url
        self.reason = reason


class EngineUnreachable(EngineNotReady):
    """Nothing answers there, or nothing that is a model server."""


class EngineUnfit(EngineNotReady):
    """It answers, but it has no usable model, refuses polar's key, or gives no token ids and log-probabilities."""


@dataclass(slots=True, frozen=True)
class Capabilities:
    """What the engine says of itself, and what one sampled token showed."""

    url: str
    model: str
    max_model_len: int | None
    """The window: prompt and answer together, in tokens."""
    engine_version: str | None
    logprobs_mode: str | None
    """`raw_logprobs` or `processed_logprobs` (after temperature and filters); None where one token could not tell."""
    template_hash: str | None = None
    tokenizer_hash: str | None = None
    """vLLM gives neither over HTTP (0.32)."""


@dataclass(slots=True, frozen=True)
class _Answer:
    status: int
    json: bool
    content_type: str
    raw: bytes
    retry_after_s: float | None
    """How long the engine wants to be left alone, where it says so."""


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
        address, self._auth = _without_credentials(url)
        self.url = address.rstrip("/").removesuffix("/v1").rstrip("/")
        self._wanted_model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._places = asyncio.Semaphore(max_concurrency)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._capabilities: Capabilities | None = None
        self._text_only = False

    @property
    def capabilities(self) -> Capabilities:
        """RuntimeError before `open`."""
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

    async def open(self) -> Capabilities:
        """Find out what is served and have one token sampled. Raises EngineUnreachable or EngineUnfit."""
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            auth=self._auth,
            # Concurrency is `_places`' business; aiohttp's own limit would hide calls from their time limit.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        try:
            async with asyncio.timeout(_PROBE_S):
                self._capabilities = await self._probe()
        except CallError as error:
            raise EngineUnreachable(self.url, f"{error.detail}. Is vLLM running there?") from error
        except TimeoutError as error:
            raise EngineUnreachable(self.url, f"no answer within {_PROBE_S:.0f} s; is it overloaded?") from error
        finally:
            if self._capabilities is None:
                await self.close()
        return self._capabilities

    async def close(self) -> None:
        """Close all connections; calls still running fail as engine errors. Safe to call twice."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def chat(
        self,
        request: ChatRequest,
        *,
        overrides: Mapping[str, Any] = {},
        force_regex: str | None = None,
        tool_choice_none: bool = False,
    ) -> Sample:
        """Have the request sampled. Cancelling closes the connection, and vLLM gives the request up.

        An overloaded engine is asked again until the call's time limit: told of it, harnesses send up to 40 requests
        for the one. `overrides` are vLLM sampling fields that win over what the client asked. `force_regex` fixes the
        whole answer.
        Raises CallError: context_overflow, overloaded, engine, no_model, timeout, invalid_request or too_large.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with asyncio.timeout_at(deadline), self._places:
                return await self._chat(request, overrides, force_regex, tool_choice_none, deadline)
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
                    answer = await self._post("/tokenize", outgoing.prompt)
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
        overrides: Mapping[str, Any],
        force_regex: str | None,
        tool_choice_none: bool,
        deadline: float,
    ) -> Sample:
        served = self.capabilities
        room = served.max_model_len
        shortened = False
        while True:
            text_only = self._text_only
            outgoing = compose(
                request,
                model=served.model,
                overrides=overrides,
                force_regex=force_regex,
                tool_choice_none=tool_choice_none,
                text_only=text_only,
            ).within(room)
            answer = await self._taken(outgoing, deadline)
            if answer.status == 200:
                return self._read(answer, outgoing, force_regex)
            refusal = read_refusal(answer.status, answer.raw)
            if self._learn(refusal, request, text_only):
                continue
            if not shortened and (fitting := refusal.room(outgoing.max_tokens)):
                room, shortened = fitting, True
            else:
                raise await self._as_error(refusal, outgoing)

    async def _taken(self, outgoing: Outgoing, deadline: float) -> _Answer:
        """The engine's answer, once it has one: while it is overloaded it is asked again, ever more rarely.

        The refusal itself where the next try would come after the deadline.
        """
        now = asyncio.get_running_loop().time
        pause = _FIRST_PAUSE_S
        while True:
            answer = await self._post("/v1/chat/completions", outgoing.body)
            if answer.status not in _OVERLOADED:
                return answer
            # Calls that were refused together must not come back together.
            wait = max(answer.retry_after_s or 0, pause) * random.uniform(1, 1.25)
            if now() + wait >= deadline:
                return answer
            if pause == _FIRST_PAUSE_S:
                logger.warning("polar: the engine at %s is overloaded (%d): calls wait", self.url, answer.status)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            await asyncio.sleep(wait)

    def _learn(self, refusal: Refusal, request: ChatRequest, text_only: bool) -> bool:
        """Whether this refusal of a request that was not sent as `text_only` tells that the model takes no images."""
        told = refusal.refuses_images and has_images(request) and not text_only
        self._text_only = self._text_only or told
        return told

    def _read(self, answer: _Answer, outgoing: Outgoing, force_regex: str | None) -> Sample:
        sample = read_sample(self._completion(answer), outgoing, self.capabilities.max_model_len)
        if force_regex is not None and not holds_to(force_regex, sample):
            # A script keeps an untrained model from choosing its own commands: whatever else came must not be run.
            mend = "start vLLM without --tool-strict-level"
            raise engine_error(self.url, "did not keep to the script's regex", mend=mend)
        return sample

    def _completion(self, answer: _Answer) -> Completion:
        if not answer.json:
            kind = answer.content_type or "no content type"
            mend = "is this vLLM, or a page before it?"
            raise engine_error(self.url, f"answered with {kind} instead of JSON", mend=mend)
        return read_completion(answer.raw, self.url)

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
                answer = await self._post("/tokenize", outgoing.prompt)
            if answer.status == 200:
                return self._counted(answer)
        return None

    def _counted(self, answer: _Answer) -> int:
        with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
            count = orjson.loads(answer.raw).get("count")
            if isinstance(count, int):
                return count
        raise engine_error(self.url, "gave no count of the prompt", mend="is this vLLM?")

    async def _probe(self) -> Capabilities:
        served = await self._served_model()
        version = await self._version()
        tokens = await self._one_token(served["id"])
        length = served.get("max_model_len")
        return Capabilities(
            url=self.url,
            model=served["id"],
            max_model_len=length if isinstance(length, int) else None,
            engine_version=version,
            logprobs_mode=self._logprobs_mode(tokens),
        )

    async def _served_model(self) -> Json:
        answer = await self._request("GET", "/v1/models")
        if answer.status in (401, 403):
            raise EngineUnfit(self.url, "it refuses polar's key: pass the one vLLM was started with (--api-key)")
        if answer.status != 200 or not answer.json:
            raise EngineUnreachable(
                self.url, f"GET /v1/models gave {answer.status} {answer.content_type}: is this vLLM?"
            )
        try:
            body = orjson.loads(answer.raw)
            models: dict[str, Json] = {model["id"]: model for model in body["data"]}
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise EngineUnreachable(self.url, "GET /v1/models gave no list of models: is this vLLM?") from error
        if not models:
            raise EngineUnfit(self.url, "it serves no model")
        if self._wanted_model is None:
            return next(iter(models.values()))
        if self._wanted_model not in models:
            raise EngineUnfit(self.url, f"it serves no model {self._wanted_model!r}, but {', '.join(sorted(models))}")
        return models[self._wanted_model]

    async def _version(self) -> str | None:
        answer = await self._request("GET", "/version")
        if answer.status != 200 or not answer.json:
            return None
        with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
            version = orjson.loads(answer.raw).get("version")
            return version if isinstance(version, str) else None
        return None

    async def _one_token(self, model: str) -> TokenData:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 1,
            "temperature": 1.0,
            "top_k": 1,
            "top_logprobs": 2,
            **TOKEN_DATA,
        }
        answer = await self._post("/v1/chat/completions", body)
        if answer.status != 200:
            raise EngineUnfit(
                self.url, f"it refuses a one-token chat: {read_refusal(answer.status, answer.raw).message}"
            )
        tokens = token_data(self._completion(answer))
        if tokens.invalid_reason:
            raise EngineUnfit(
                self.url, f"{tokens.invalid_reason}; polar needs a vLLM that knows return_token_ids (tried with 0.32)"
            )
        return tokens

    def _logprobs_mode(self, tokens: TokenData) -> str | None:
        """Told from a token sampled with top_k 1: after filters it is certain and the second best impossible."""
        if len(tokens.runners_up) < 2:
            return None
        if max(tokens.logprobs) > 0:
            raise EngineUnfit(
                self.url, "it gives logits, not log-probabilities: start vLLM with --logprobs-mode raw_logprobs"
            )
        return "processed_logprobs" if min(tokens.runners_up) < _CERTAIN else "raw_logprobs"

    async def _post(self, path: str, body: Mapping[str, Any]) -> _Answer:
        try:
            data = dumps(body)
        except (TypeError, ValueError) as error:
            # What JSON can say and UTF-8 cannot: half of a surrogate pair, as cutting a string in the middle leaves it.
            raise CallError("invalid_request", f"the request cannot be written as UTF-8 JSON: {error}") from error
        return await self._request("POST", path, data)

    async def _request(self, method: str, path: str, data: bytes | None = None) -> _Answer:
        if self._session is None:
            raise RuntimeError("Engine.open() has not been awaited")
        headers = {"Content-Type": "application/json"} if data is not None else {}
        try:
            # A redirect could lead off this machine, and would lose a POST's body on the way.
            async with self._session.request(
                method, self.url + path, data=data, headers=headers, allow_redirects=False
            ) as response:
                kind = response.content_type if "Content-Type" in response.headers else ""
                is_json = bool(re.search(r"[/+]json$", kind))
                pause = _seconds(response.headers.get("Retry-After"))
                return _Answer(response.status, is_json, kind, await response.read(), pause)
        except (aiohttp.ClientError, OSError) as error:
            raise engine_error(self.url + path, "gave no answer", str(error) or type(error).__name__) from error


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After header in its form of seconds; the other, a date, no engine sends."""
    return float(retry_after) if retry_after and re.fullmatch(r"\d{1,6}(\.\d+)?", retry_after.strip()) else None


def _without_credentials(url: str) -> tuple[str, aiohttp.BasicAuth | None]:
    """The URL without its user and password, and those. A URL that can't be read is left for the request to refuse."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, None
    if parts.username is None:
        return url, None
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return bare, aiohttp.BasicAuth(unquote(parts.username), unquote(parts.password or ""))
