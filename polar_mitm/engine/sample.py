"""What the engine sampled: vLLM's chat completion read into one `Sample`.

Lenient where training data is concerned: missing or unequal token data makes the sample invalid, and never fails the
call.
What a client is told of it belongs to `providers`, what is kept of it to `capture`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel, Field, StrictInt, TypeAdapter, ValidationError

from polar_mitm.chat import CallError, Json, NotCarried, ToolCall, Usage
from polar_mitm.engine.body import Outgoing
from polar_mitm.engine.capabilities import Capabilities
from polar_mitm.engine.refusals import engine_error
from polar_mitm.engine.tool_text import OPENING, pair, with_sampled_arguments
from polar_mitm.prompts import Broken, Tokens

_ENDED: Final = ("stop", "tool_calls")
_SPECIAL: Final = re.compile(r"<\|[^|<>]+\|>")


@dataclass(slots=True)
class Sample:
    """One answer of the engine. All token lists are of one length on a valid sample."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    prompt_ids: list[int]
    response_ids: list[int]
    """Sampled token ids, with the end-of-turn token or the stop string's tokens when those were sampled."""
    logprobs: list[float]
    """Natural log-probability of each sampled id; post-mask inside `forced`."""
    token_bytes: list[bytes] | None
    """UTF-8 of each token. A character of several tokens lies whole at its last one; those before it are empty."""
    finish_reason: str
    """The engine's own word; with a named tool choice vLLM says `stop` beside a tool call."""
    stop_reason: str | int | None
    usage: Usage
    policy_version: str | None
    forced: list[tuple[int, int]]
    """Half-open spans of response_ids that a grammar imposed."""
    sampling_sent: Json
    request_messages: list[Json]
    request_tools: list[Json]
    not_carried: tuple[NotCarried, ...]
    """What the engine's side could not carry; what the provider's side could not is on the request."""
    invalid_reason: str | None
    """Why the token data must not be trained on; None on a valid sample."""
    decode_matches_text: bool | None
    """Whether the sampled bytes hold the text, the reasoning and the calls; None where that cannot be told."""
    ended: bool = False
    """Whether the last sampled id ended the reply: not so where the limit or a stop string did."""
    tokens: Tokens = "chat"
    """How the prompt went to the engine."""
    built_ids: int = 0
    """How many ids of an earlier call the prompt begins with, by polar's making."""
    broken: Broken | None = None
    """Why it was not built from the earlier call that it continues."""
    why: str = ""
    """The same in a sentence."""
    weight_versions: list[tuple[int, int, str]] = field(default_factory=list)
    """Half-open spans of response_ids and the version of the weights that sampled them, where the engine says it."""
    unread: CallError | None = None
    """Why the engine did not parse what it had sampled: `text` is all of it, and no answer for a client."""
    engine: Capabilities | None = None
    """Of the engine that sampled it."""


class _Function(BaseModel):
    name: str
    arguments: str


class _Call(BaseModel):
    id: str
    function: _Function


class _Message(BaseModel):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    """What older vLLM releases and other servers call `reasoning`."""
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: object = None
    logprobs: object = None


class _PromptDetails(BaseModel):
    cached_tokens: int | None = None


class _CompletionDetails(BaseModel):
    reasoning_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class Completion(BaseModel):
    """The parts of vLLM's chat completion that polar reads. Token data is looked at later, leniently."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None
    prompt_token_ids: object = None


class _Entry(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list["_Entry"] = []


class _Logprobs(BaseModel):
    content: list[_Entry]


_IDS: Final = TypeAdapter(list[StrictInt])


@dataclass(slots=True, frozen=True)
class TokenData:
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    token_bytes: list[bytes] | None
    runners_up: list[float]
    """Log-probabilities of all candidates listed for the first token; empty unless `top_logprobs` was asked."""
    invalid_reason: str | None


def read_completion(raw: bytes, url: str) -> Completion:
    """CallError('engine') when this is no chat completion."""
    try:
        return Completion.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"]) or "body"
        raise engine_error(url, "did not answer with a chat completion", f"{place}: {first['msg']}") from error


def read_sample(completion: Completion, outgoing: Outgoing, max_model_len: int | None) -> Sample:
    choice = completion.choices[0]
    tokens = token_data(completion)
    text = choice.message.content or ""
    reasoning = choice.message.reasoning or choice.message.reasoning_content or ""
    reported = [ToolCall(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
    sampled_text = None if tokens.token_bytes is None else b"".join(tokens.token_bytes).decode(errors="replace")
    usage = _usage(completion.usage, tokens)
    return Sample(
        text=text,
        reasoning=reasoning,
        tool_calls=with_sampled_arguments(reported, sampled_text or ""),
        prompt_ids=tokens.prompt_ids,
        response_ids=tokens.response_ids,
        logprobs=tokens.logprobs,
        token_bytes=tokens.token_bytes,
        finish_reason=choice.finish_reason or "",
        stop_reason=choice.stop_reason,
        usage=usage,
        # vLLM's chat route names no version of the weights (0.32); its token-in route does.
        policy_version=None,
        forced=[(0, len(tokens.response_ids))] if outgoing.forced and tokens.response_ids else [],
        sampling_sent=outgoing.sampling,
        request_messages=outgoing.body["messages"],
        request_tools=outgoing.body.get("tools", []),
        not_carried=(
            *outgoing.not_carried,
            *_clamped(outgoing.asked_max_tokens, usage, max_model_len),
            *_stopped_in_thought(choice, text, reasoning),
        ),
        invalid_reason=tokens.invalid_reason,
        decode_matches_text=decode_matches(sampled_text, text, reasoning, reported),
        ended=choice.finish_reason in _ENDED and not isinstance(choice.stop_reason, str) and bool(tokens.response_ids),
    )


def token_data(completion: Completion) -> TokenData:
    """Ids and log-probabilities as they came, and what is wrong with them, if anything."""
    choice = completion.choices[0]
    prompt_ids = _ids(completion.prompt_token_ids)
    response_ids = _ids(choice.token_ids)
    entries = _entries(choice.logprobs)
    return TokenData(
        prompt_ids=prompt_ids or [],
        response_ids=response_ids or [],
        logprobs=[entry.logprob for entry in entries or []],
        token_bytes=_bytes(entries or []),
        runners_up=[candidate.logprob for candidate in entries[0].top_logprobs] if entries else [],
        invalid_reason=_fault(prompt_ids, response_ids, entries),
    )


def decode_matches(sampled: str | None, text: str, reasoning: str, calls: Sequence[ToolCall]) -> bool | None:
    """Whether the sampled text holds what the engine reports; `calls` with the arguments as the engine reports them.

    None without the sampled text, and for calls of a model that does not write them in hermes form.
    """
    if sampled is None:
        return None
    # Special tokens amid the answer are sampled, but vLLM leaves them out of the text.
    plain = _SPECIAL.sub("", sampled)
    if any(part not in sampled and part not in plain for part in (text, reasoning)):
        return False
    if not calls:
        return True
    if OPENING not in sampled:
        return None
    return None not in pair(calls, sampled)


def holds_to(regex: str, sample: Sample) -> bool:
    """Whether an answer that a regex should have forced is what the regex says, or a part of it cut short by the limit.

    The end-of-turn token is no part of the forced text.
    """
    texts = [sample.text]
    if sample.token_bytes is not None:
        texts = [b"".join(part).decode(errors="replace") for part in (sample.token_bytes, sample.token_bytes[:-1])]
    if any(re.fullmatch(regex, text) for text in texts):
        return True
    return sample.finish_reason in ("length", "abort") and not sample.tool_calls


def pieces_of(logprobs: object) -> list[str] | None:
    """The text of each token of a choice; None where it has none. A character of several tokens is its last one's."""
    pieces = _bytes(_entries(logprobs) or [])
    return None if pieces is None else [piece.decode(errors="replace") for piece in pieces]


def _ids(value: object) -> list[int] | None:
    try:
        return _IDS.validate_python(value)
    except ValidationError:
        return None


def _entries(value: object) -> list[_Entry] | None:
    try:
        return _Logprobs.model_validate(value).content
    except ValidationError:
        return None


def _bytes(entries: list[_Entry]) -> list[bytes] | None:
    known = [bytes(entry.bytes) for entry in entries if entry.bytes is not None]
    return known if known and len(known) == len(entries) else None


def _fault(prompt_ids: list[int] | None, response_ids: list[int] | None, entries: list[_Entry] | None) -> str | None:
    if not prompt_ids:
        return "the engine gave no prompt token ids"
    if response_ids is None:
        return "the engine gave no response token ids"
    if entries is None:
        return "the engine gave no log-probabilities"
    if len(entries) != len(response_ids):
        return f"{len(response_ids)} response ids but {len(entries)} log-probabilities"
    for place, (token_id, entry) in enumerate(zip(response_ids, entries, strict=True)):
        named = entry.token.removeprefix("token_id:")
        if named != entry.token and named != str(token_id):
            return f"response id {place} is {token_id}, but its log-probability is that of {named}"
    return None


def _usage(usage: _Usage | None, tokens: TokenData) -> Usage:
    if usage is None:
        return Usage(len(tokens.prompt_ids), len(tokens.response_ids))
    cached = usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens
    reasoning = usage.completion_tokens_details and usage.completion_tokens_details.reasoning_tokens
    return Usage(usage.prompt_tokens, usage.completion_tokens, cached or 0, reasoning or 0)


def _stopped_in_thought(choice: _Choice, text: str, reasoning: str) -> tuple[NotCarried, ...]:
    """A stop string is meant for the answer, but vLLM looks for it in the thinking too."""
    if not isinstance(choice.stop_reason, str) or text or not reasoning or choice.message.tool_calls:
        return ()
    return (NotCarried("stop", f"{choice.stop_reason!r} ended the thinking, before there was an answer"),)


def _clamped(asked: int | None, usage: Usage, max_model_len: int | None) -> tuple[NotCarried, ...]:
    if asked is None or max_model_len is None:
        return ()
    # An engine that counts otherwise has at least had the room for what it sampled.
    room = max(max_model_len - usage.prompt_tokens, usage.completion_tokens)
    if asked <= room:
        return ()
    why = f"the window is {max_model_len} tokens and the prompt takes {usage.prompt_tokens}"
    return (NotCarried("max_tokens", f"clamped from {asked} to {room}: {why}"),)
