"""The way of one call: parsed request -> engine -> call record -> the provider's answer.

`Exchange` is the only such path; answering in the hook and streaming through the loopback both await it. It knows no
mitmproxy: who called and how bytes travel is `intercept`'s and `loopback`'s.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from polar_mitm.capture.record import (
    Call,
    Checks,
    Delivery,
    Failure,
    Kind,
    Tried,
)
from polar_mitm.capture.session import new_call_id
from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatReply,
    FinishReason,
    Usage,
)
from polar_mitm.engine.client import Sample
from polar_mitm.engine.pool import OtherPolicy, Trail
from polar_mitm.engine.scripted import literal_regex, tool_call_regex
from polar_mitm.json_text import dumps
from polar_mitm.providers import Ask, Begun, Provider, Request
from polar_mitm.proxy.chains import Reading
from polar_mitm.proxy.kinds import Opening, classify
from polar_mitm.proxy.one_call import passed_on, repair
from polar_mitm.proxy.recording import draft, fill, minted
from polar_mitm.proxy.scripting import calls_made, next_step
from polar_mitm.proxy.sessions import Session
from polar_mitm.proxy.shared import Shared

logger = logging.getLogger(__name__)

BROKE = "polar failed on this call; its log says why"


@dataclass(slots=True, frozen=True)
class Answer:
    """What goes to the client: `body` with status and type while nothing was sent, `late` when a stream is open."""

    status: int
    content_type: str
    body: bytes
    late: Callable[[int], bytes] = lambda opened: b""
    """After so many keep-alives."""
    failure: Failure | None = None
    """What the record says of it, when it is an error."""


class Exchange:
    """One model call. `call` is its record, complete but for the delivery once the answer is there or given up."""

    def __init__(self, session: Session, provider: Provider, request: Request, ask: Ask) -> None:
        self.session = session
        self.provider = provider
        self.request = request
        self.ask = ask
        self.call = draft(session, provider, request, ask)
        self.reading: Reading | None = None
        """Its history, once the call is under way."""
        self.scripted = False
        """Whether the engine was made to sample a tool call of the session's script."""
        self.token_bytes: list[bytes] | None = None
        """UTF-8 of the sampled tokens, as the engine told it: for a person who looks at the flow."""
        self._trail = Trail()
        self.shared: Shared[Answer] | None = None
        """Its answer in the making, which retries of it get as well."""
        identity = self.call.identity
        self.begun = Begun(identity.call_id.removeprefix("call_"), int(identity.started_at))

    def start(self, *, linger_s: float = 0.0) -> asyncio.Task[Answer]:
        """Begin. The task is this client's wait for the answer: who cancels it says that the client has left, and who
        cancels it again, that no other will come in its place; else one has `linger_s` for it."""
        origin = self.call.origin
        origin.kind, origin.kind_reason = self._classified()
        name = self.call.identity.call_id
        self.shared = Shared(self._run(), name, linger_s=linger_s, over=self.session.over)
        return asyncio.get_running_loop().create_task(self.shared.result())

    async def settled(self) -> None:
        """Until the answer is there or given up: a client that left may leave a retry behind that waits for it."""
        if self.shared and self.shared.followed:
            await self.shared.ended()

    def _classified(self) -> tuple[Kind, str]:
        kind, reason = classify(self.request, self.ask, self.session.main)
        # Where anyone may call, another opening is as likely another harness as a side request. And what offers no
        # tools may be a side request that gave no sign of it: taken for the first turn, it would turn all signs round.
        first = kind == "turn" and self.session.main is None and self.ask.chat.tools
        if first and self.session.identity.get("harness"):
            self.session.main = Opening.of(self.ask.chat)
        return kind, reason

    async def _run(self) -> Answer:
        """Sample the reply and give it the provider's form. A failure becomes the provider's error, no exception."""
        try:
            if reached := self.session.meter.begin(self.ask.chat):
                return await self._over(reached)
            try:
                async with self.session.meter.place:
                    sample = await self._sample()
            except OtherPolicy as gone:
                return await self._over(str(gone))
            finally:
                await self._record_trail()
            self.session.meter.response_tokens += len(sample.response_ids)
            self.token_bytes = sample.token_bytes
            fill(self.call, sample, self.session, self.reading)
            if sample.unread:
                raise sample.unread
            if self.scripted and not sample.tool_calls and sample.finish_reason != "length":
                mend = "start vLLM with --enable-auto-tool-choice --tool-call-parser hermes"
                raise CallError("engine", f"the engine did not read the scripted tool call: {mend}")
            if sample.finish_reason == "abort":
                # Somebody else ended the request in the engine; half an answer must not pass for a whole one.
                raise CallError("engine", "the engine gave up this request")
            made = calls_made(self.ask.chat) + bool(sample.tool_calls)
            self.session.progress.done(self.call.origin.kind, made)
            reply = self._reply(sample)
            self._remember(sample, repaired=bool(self.provider.repairs(self.ask, reply)))
            return self._answer(reply)
        except CallError as error:
            return self.failed(error)
        except Exception:  # the border: whatever broke, a client whose stream is open learns of it in its own form too
            logger.exception("polar: call %s failed", self.call.identity.call_id)
            return self.failed(CallError("internal", BROKE))

    def failed(self, error: CallError) -> Answer:
        """The provider's form of an error, which goes onto the record as well."""
        status, body = self.provider.error(error, self.begun.request_id)
        self.call.error = Failure(what=error.detail, kind=error.kind, fault=error.fault, status=status)
        if self.call.response:
            self.call.response.stop_reason = None
        late = partial(self.provider.stream_error, self.ask, error, self.begun)
        return Answer(status, "application/json", dumps(body), late, self.call.error.model_copy())

    def give_up(self, why: str) -> None:
        """Polar ends before the answer is there, and nobody can be told."""
        if not self.call.response and not self.call.error:
            self.call.error = Failure(what=why, kind="internal", fault="polar")

    def finish(self, delivery: Delivery) -> Call:
        """Close the record. A call that nobody waited for is the client's own end of it."""
        self.call.identity.finished_at = time.time()
        self.call.delivery = delivery
        if delivery.status == "aborted" and not self.call.error and not self.call.response:
            self.call.error = Failure(what="the client left before the answer", kind="client_left", fault="client")
        return self.call

    async def _sample(self) -> Sample:
        session = self.session
        self.reading = reading = session.chains.read(self.ask.chat)
        chat = reading.chat
        sample = partial(
            session.engine.chat, chat, overrides=session.sampling, tokens=session.tokens, trail=self._trail
        )
        if session.tokens == "exact":
            sample = partial(sample, continuation=reading.continuation())
        if session.script is None:
            return await sample()
        if step := next_step(session.script, session.progress, self.call.origin.kind, chat):
            self.scripted = True
            return await sample(force_regex=tool_call_regex(step.tool, dict(step.arguments)))
        if session.summary and self.call.origin.kind == "compaction":
            return await sample(force_regex=literal_regex(session.summary), tool_choice_none=True)
        return await sample(tool_choice_none=True)

    async def _record_trail(self) -> None:
        """What was sampled in vain is a call of its own on the record, so that its tokens are accounted for."""
        self.call.tried = [Tried(url=tried.url, why=tried.why) for tried in self._trail.tried]
        for sample in self._trail.broken_off:
            call = self.call.model_copy(deep=True)
            call.identity.call_id, call.identity.finished_at, call.tried = new_call_id(), time.time(), []
            self.session.meter.response_tokens += len(sample.response_ids)
            fill(call, sample, self.session, self.reading)
            why = f"no answer: the request was sampled anew as {self.call.identity.call_id}"
            call.error = Failure(what=why, kind="engine", fault="engine")
            await asyncio.to_thread(self.session.log.record, call)

    def _remember(self, sample: Sample, repaired: bool) -> None:
        """So that the request which continues this call is known to."""
        assert self.reading
        calls = minted(self.call, sample)
        passed = passed_on(self.ask.chat, calls)
        self.session.chains.add(
            self.reading,
            self.call.identity.call_id,
            Assistant(sample.text, sample.reasoning, calls),
            sample,
            with_ids=self.session.tokens == "exact",
            repaired=repaired,
            passed=passed if passed < len(calls) else None,
        )

    def _reply(self, sample: Sample) -> ChatReply:
        """What the client gets; what was changed in it is put on the record."""
        calls = minted(self.call, sample)
        passed = passed_on(self.ask.chat, calls)
        reply = ChatReply(
            id=self.begun.id,
            created=self.begun.created,
            text=sample.text,
            reasoning=sample.reasoning,
            tool_calls=calls[:passed],
            finish_reason=_finish_reason(sample),
            usage=sample.usage,
            stop_sequence=sample.stop_reason if isinstance(sample.stop_reason, str) else None,
        )
        assert self.call.response
        self.call.response.stop_reason = self.provider.stop_reason(self.provider.render(self.ask, reply))
        self.call.response.repairs = [*self.provider.repairs(self.ask, reply), *repair(calls, passed)]
        return reply

    async def _over(self, reached: str) -> Answer:
        """The end of a session that has reached a limit: words of polar's in the place of the model's."""
        self.call.error = Failure(what=reached, kind="limit", fault="polar", status=200)
        self.call.checks = Checks(valid=False, invalid_reason=reached)
        await asyncio.to_thread(self.session.log.limit, reached)
        text = f"The work ends here: {reached}."
        return self._answer(ChatReply(self.begun.id, self.begun.created, text, "", (), "stop", Usage(0, 0)))

    def _answer(self, reply: ChatReply) -> Answer:
        if self.ask.stream:
            kind = self.provider.stream_type(self.ask)
            late = partial(_streamed, self.provider, self.ask, reply)  # not the exchange, which holds this answer
            return Answer(200, kind, late(0), late)
        return Answer(200, "application/json", dumps(self.provider.render(self.ask, reply)))


def _streamed(provider: Provider, ask: Ask, reply: ChatReply, opened: int) -> bytes:
    return b"".join(provider.stream(ask, reply, opened=opened))


class Repeat(Exchange):
    """A retry of a call that was sampled, or is just being sampled: it gets that call's answer, byte for byte."""

    def __init__(
        self,
        session: Session,
        provider: Provider,
        request: Request,
        ask: Ask,
        *,
        original_id: str,
        begun: Begun,
        shared: Shared[Answer],
        sign: str,
    ) -> None:
        """`original_id`, `begun` and `shared` are that call's; `sign` says how the request is known to be a retry."""
        super().__init__(session, provider, request, ask)
        self.shared = shared
        self.begun = begun
        origin = self.call.origin
        origin.kind, origin.kind_reason = "retry", f"repeats {original_id}: {sign}"
        self.call.checks = Checks(valid=False, invalid_reason=f"answered from {original_id}")

    def start(self, *, linger_s: float = 0.0) -> asyncio.Task[Answer]:
        return asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> Answer:
        assert self.shared
        answer = await self.shared.result()
        if answer.failure:
            self.call.error = answer.failure.model_copy()
        return answer


def _finish_reason(sample: Sample) -> FinishReason:
    """The engine's word, mended where vLLM says `stop` with calls (a named function) or `tool_calls` without any."""
    match sample.finish_reason:
        case "stop" | "tool_calls":
            return "tool_calls" if sample.tool_calls else "stop"
        case "length" | "content_filter":
            return sample.finish_reason
        case _:
            return "stop"
