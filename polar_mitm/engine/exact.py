"""Prompts of token ids: rendered and joined to what was sampled, generated from, and read by the engine's own parsers.

Three routes of vLLM (0.32, `--enable-scale-out`): `/v1/chat/completions/render` turns a chat request into token ids and
sampling parameters, `/inference/v1/generate` samples from token ids, `/v1/chat/completions/derender` parses what was
sampled as the chat route does. Where the ids are cut and joined is `exact_cut`'s, what the answers hold is
`exact_read`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError

from polar_mitm.chat import CallError, Json
from polar_mitm.engine.body import TOKEN_DATA, Outgoing
from polar_mitm.engine.exact_cut import (
    Continuation,
    Ends,
    NotBuilt,
    agreeing,
    continues,
    cut_of,
    follower,
    joined,
    other_words,
    tail_start,
)
from polar_mitm.engine.exact_read import Derendered, Generated, Spans, completion_from, shown_ids, with_rest
from polar_mitm.engine.refusals import EngineLost, Refusal, engine_error, engine_lost, read_refusal
from polar_mitm.engine.sample import Completion
from polar_mitm.engine.transport import Transport
from polar_mitm.json_text import loads
from polar_mitm.prompts import Broken

RENDER: Final = "/v1/chat/completions/render"
GENERATE: Final = "/inference/v1/generate"
DERENDER: Final = "/v1/chat/completions/derender"

_GENERATES: Final = frozenset({"max_tokens", "stop"})
"""What the generate route alone is told: a prompt's room depends on how it is built, and the routes that read a chat
request take few stop strings (4, vLLM's VLLM_MAX_STOP_STRINGS)."""
_BEGINNING: Final = 2
"""Ids that prompts of one conversation have in common at the least, whatever their template puts near the front: the
mark of their beginning and what follows it. Those of two tokenizers have one by chance."""
_NOT_OFFERED: Final = (401, 403, 404, 405, 501)


class Unavailable(Exception):
    """The engine does not do this: it refuses the route, or answers as no vLLM known does."""


class Refused(Exception):
    """The engine refuses this request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class _Rendered(BaseModel):
    token_ids: list[int] = Field(min_length=1)
    sampling_params: dict[str, Any]
    features: object = None


@dataclass(slots=True)
class Exact:
    """What came of a prompt of token ids."""

    completion: Completion
    prompt_ids: list[int]
    """As they were sent."""
    ended: bool
    """Whether the model ended its reply itself."""
    weight_versions: Spans
    built_ids: int = 0
    """How many ids of an earlier call the prompt begins with; 0: all of it was rendered."""
    broken: Broken | None = None
    why: str = ""
    unread: CallError | None = None
    """Why the engine did not parse what it sampled."""


@dataclass(slots=True)
class _Prompt:
    ids: list[int]
    built_ids: int = 0
    broken: Broken | None = None
    why: str = ""


@dataclass(slots=True, frozen=True)
class TokenIn:
    """The token routes of one engine."""

    transport: Transport
    model: str
    window: int
    ends: Ends = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    """The engine's names of the calls that it is sampling."""

    async def sample(self, outgoing: Outgoing, continuation: Continuation | None, deadline: float) -> Exact:
        """Have a reply sampled, after the ids of `continuation` where the prompt can be built from them.

        The conversation is rendered once, and a second time where it does not come back as it was sampled.
        Raises Unavailable, Refused and CallError.
        """
        asked = {key: value for key, value in outgoing.body.items() if key not in _GENERATES}
        answer = await self._post(RENDER, asked, deadline)
        rendered = _read(_Rendered, answer, RENDER)
        if rendered.features is not None:
            raise Unavailable(f"{RENDER} found more than text in the request")
        prompt = await self._prompt(asked, rendered.token_ids, continuation, deadline)
        try:
            generated = await self._generate(answer, rendered, prompt, outgoing, deadline)
        except Refused as refused:
            if not refused.refusal.of_the_request or prompt.ids == rendered.token_ids:
                raise
            prompt = _Prompt(rendered.token_ids, broken="engine", why=f"it refused the ids: {refused.refusal.message}")
            generated = await self._generate(answer, rendered, prompt, outgoing, deadline)
        if generated.choice.token_ids is None:
            raise Unavailable(f"{GENERATE} gave no token ids")
        completion, unread = await self._completion(generated, prompt, outgoing, deadline)
        return Exact(
            completion,
            prompt.ids,
            generated.ended,
            generated.weight_versions,
            prompt.built_ids,
            prompt.broken,
            prompt.why,
            unread,
        )

    async def render(self, body: Json, deadline: float) -> list[int]:
        """The prompt's ids. Raises Unavailable, Refused and CallError."""
        return _read(_Rendered, await self._post(RENDER, body, deadline), RENDER).token_ids

    async def parse(
        self, ids: list[int], prompt_ids: list[int], body: Json, finish: str | None, deadline: float
    ) -> Json:
        """The chat message that the engine's parsers read from these ids, sampled after that prompt for that request.

        Raises Unavailable, Refused and CallError.
        """
        choice = {"index": 0, "token_ids": ids, "finish_reason": finish}
        asked = {
            "model": self.model,
            "chat_request": {key: value for key, value in body.items() if key not in TOKEN_DATA and key != "stop"},
            "generate_response": {"choices": [choice], "prompt_token_ids": prompt_ids},
        }
        return _read(Derendered, await self._post(DERENDER, asked, deadline), DERENDER).choices[0].message

    async def _prompt(
        self, asked: Json, rendered: list[int], continuation: Continuation | None, deadline: float
    ) -> _Prompt:
        if continuation is None:
            return _Prompt(rendered)
        if continues(rendered, continuation):
            return _Prompt(rendered, len(continuation.ids))
        try:
            ids = await self._built(asked, rendered, continuation, deadline)
        except NotBuilt as not_built:
            return _Prompt(rendered, broken=not_built.broken, why=not_built.why)
        return _Prompt(ids, len(continuation.ids))

    async def _built(self, asked: Json, rendered: list[int], continuation: Continuation, deadline: float) -> list[int]:
        messages = asked["messages"]
        role = follower(messages, continuation.follows)
        end = self.ends.get(role)
        if end is None:
            raise NotBuilt("template", f"how the template ends a reply before a {role} message is not known")
        cut = cut_of(continuation, end)
        other = {**asked, "messages": other_words(messages, continuation.follows)}
        before = agreeing(rendered, continuation.ids[: continuation.prompt_len])
        if before < _BEGINNING:
            what = "it begins the same conversation with other tokens: was it restarted with another model?"
            raise NotBuilt("engine", what)
        start = tail_start(rendered, await self.render(other, deadline), cut, at_least=before)
        ids = joined(continuation, rendered, start, end)
        if len(ids) >= self.window:
            what = f"built from what was sampled, the prompt is {len(ids)} tokens long"
            raise NotBuilt("window", f"{what}, the model's window is {self.window} tokens")
        return ids

    async def _generate(
        self, answer: Json, rendered: _Rendered, prompt: _Prompt, outgoing: Outgoing, deadline: float
    ) -> Generated:
        room = max(1, self.window - len(prompt.ids))
        most = rendered.sampling_params.get("max_tokens")
        if outgoing.max_tokens is not None:
            most = min(outgoing.max_tokens, room)
        elif not isinstance(most, int) or most == self.window - len(rendered.token_ids):
            most = room
        else:
            most = min(most, room)
        stops = {"stop": outgoing.stops} if outgoing.stops else {}
        body = {
            **answer,
            "token_ids": prompt.ids,
            "token_offsets": None,
            "sampling_params": {**rendered.sampling_params, "max_tokens": most, **stops},
            # With its text the answer has the bytes of each token, and is cut before a stop string.
            "output_mode": "text",
            "return_token_ids": True,
            "stream": False,
        }
        name = f"generate-tokens-{answer.get('request_id')}"
        self.running.add(name)
        try:
            generated = await self._post(GENERATE, body, deadline)
        finally:
            self.running.discard(name)
        try:
            return Generated.model_validate(generated)
        except ValidationError as error:
            # Something was sampled: to have it sampled again by another route would pass that over.
            raise engine_error(self.transport.url, "did not answer with a completion", _first(error)) from error

    async def _completion(
        self, generated: Generated, prompt: _Prompt, outgoing: Outgoing, deadline: float
    ) -> tuple[Completion, CallError | None]:
        """The reply as the engine's parsers read it. Where they do not, its text, and the error: it was sampled."""
        choice, body = generated.choice, outgoing.body
        text: Json = {"content": choice.text}
        shown, rest = shown_ids(generated)
        try:
            message = text
            if shown:
                message = with_rest(await self.parse(shown, prompt.ids, body, choice.finish_reason, deadline), rest)
            return completion_from(generated, message, body.get("tool_choice")), None
        except (Unavailable, Refused, CallError, ValueError) as error:
            said = error.detail if isinstance(error, CallError) else str(error)
            failed = engine_lost if isinstance(error, EngineLost) else engine_error
            unread = failed(self.transport.url, "did not parse what it had sampled", said)
            return completion_from(generated, text, None), unread

    async def _post(self, path: str, body: Mapping[str, Any], deadline: float) -> Json:
        answer = await self.transport.patient_post(path, body, deadline)
        if answer.status != 200:
            refusal = read_refusal(answer.status, answer.raw)
            if answer.status in _NOT_OFFERED:
                raise Unavailable(f"{path} answered {answer.status}: {refusal.message}")
            raise Refused(refusal)
        try:
            value = loads(answer.raw)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            mend = "is this vLLM, or a page before it?"
            raise engine_error(self.transport.url, "did not answer with a JSON object", mend=mend)
        return value


def _read[Shape: BaseModel](shape: type[Shape], answer: Json, path: str) -> Shape:
    try:
        return shape.model_validate(answer)
    except ValidationError as error:
        raise Unavailable(f"{path} answered otherwise than a vLLM that polar knows: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(step) for step in first['loc'])}: {first['msg']}"
