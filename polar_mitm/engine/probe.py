"""Finding out what an engine is and can do: its model, its window, and what one sampled token shows."""

import contextlib
from typing import Final

import orjson

from polar_mitm.chat import Json
from polar_mitm.engine.body import TOKEN_DATA
from polar_mitm.engine.capabilities import Capabilities, EngineUnfit, EngineUnreachable
from polar_mitm.engine.refusals import engine_error, read_refusal
from polar_mitm.engine.sample import Completion, TokenData, read_completion, token_data
from polar_mitm.engine.transport import Answer, Transport

_CERTAIN: Final = -1000.0
"""vLLM writes -9999 for a token with no probability left; no raw log-probability comes near."""


async def probe(transport: Transport, wanted_model: str | None) -> Capabilities:
    """`wanted_model` None takes the first one served. Raises EngineUnreachable, EngineUnfit and CallError."""
    url = transport.url
    served = await _served_model(transport, wanted_model)
    version = await _version(transport)
    tokens = await _one_token(transport, served["id"])
    length = served.get("max_model_len")
    return Capabilities(
        url=url,
        model=served["id"],
        max_model_len=length if isinstance(length, int) else None,
        engine_version=version,
        logprobs_mode=_logprobs_mode(tokens, url),
    )


def completion_of(answer: Answer, url: str) -> Completion:
    """CallError('engine') when this is no chat completion."""
    if not answer.json:
        kind = answer.content_type or "no content type"
        mend = "is this vLLM, or a page before it?"
        raise engine_error(url, f"answered with {kind} instead of JSON", mend=mend)
    return read_completion(answer.raw, url)


async def _served_model(transport: Transport, wanted: str | None) -> Json:
    url = transport.url
    answer = await transport.get("/v1/models")
    if answer.status in (401, 403):
        raise EngineUnfit(url, "it refuses polar's key: pass the one vLLM was started with (--api-key)")
    if answer.status != 200 or not answer.json:
        raise EngineUnreachable(url, f"GET /v1/models gave {answer.status} {answer.content_type}: is this vLLM?")
    try:
        body = orjson.loads(answer.raw)
        models: dict[str, Json] = {model["id"]: model for model in body["data"]}
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise EngineUnreachable(url, "GET /v1/models gave no list of models: is this vLLM?") from error
    if not models:
        raise EngineUnfit(url, "it serves no model")
    if wanted is None:
        return next(iter(models.values()))
    if wanted not in models:
        raise EngineUnfit(url, f"it serves no model {wanted!r}, but {', '.join(sorted(models))}")
    return models[wanted]


async def _version(transport: Transport) -> str | None:
    answer = await transport.get("/version")
    if answer.status != 200 or not answer.json:
        return None
    with contextlib.suppress(orjson.JSONDecodeError, AttributeError):
        version = orjson.loads(answer.raw).get("version")
        return version if isinstance(version, str) else None
    return None


async def _one_token(transport: Transport, model: str) -> TokenData:
    url = transport.url
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 1,
        "temperature": 1.0,
        "top_k": 1,
        "top_logprobs": 2,
        **TOKEN_DATA,
    }
    answer = await transport.post("/v1/chat/completions", body)
    if answer.status != 200:
        refusal = read_refusal(answer.status, answer.raw).message
        if answer.status >= 500:  # it has died, or is about to: another one may take its place
            raise EngineUnreachable(url, f"it failed on a one-token chat: {refusal}")
        raise EngineUnfit(url, f"it refuses a one-token chat: {refusal}")
    tokens = token_data(completion_of(answer, url))
    if tokens.invalid_reason:
        raise EngineUnfit(
            url, f"{tokens.invalid_reason}; polar needs a vLLM that knows return_token_ids (tried with 0.32)"
        )
    return tokens


def _logprobs_mode(tokens: TokenData, url: str) -> str | None:
    """Told from a token sampled with top_k 1: after filters it is certain and the second best impossible."""
    if len(tokens.runners_up) < 2:
        return None
    if max(tokens.logprobs) > 0:
        raise EngineUnfit(url, "it gives logits, not log-probabilities: start vLLM with --logprobs-mode raw_logprobs")
    return "processed_logprobs" if min(tokens.runners_up) < _CERTAIN else "raw_logprobs"
