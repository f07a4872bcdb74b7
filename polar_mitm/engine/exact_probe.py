"""Whether an engine takes prompts of token ids, and where its chat template ends a reply."""

import asyncio
from dataclasses import replace
from typing import Any, Final

from polar_mitm.chat import CallError, Json
from polar_mitm.engine.body import TOKEN_DATA, Outgoing
from polar_mitm.engine.exact import Refused, TokenIn, Unavailable
from polar_mitm.engine.exact_cut import Cuts, Follower, cut_after
from polar_mitm.engine.sample import token_data
from polar_mitm.engine.transport import Transport

_LIMIT_S: Final = 60.0

_ASKED: Final[Json] = {"role": "user", "content": "Say hello."}
_TOOL: Final[Json] = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


async def look(transport: Transport, model: str, window: int | None) -> TokenIn | str:
    """The engine's token routes; or why there are none, in words that go on from "the engine"."""
    if window is None:
        return "does not say how long its window is"
    routes = TokenIn(transport, model, window)
    deadline = asyncio.get_running_loop().time() + _LIMIT_S
    try:
        async with asyncio.timeout_at(deadline):
            if fault := await _fault(routes, deadline):
                return fault
            cuts = await _cuts(routes, deadline)
    except TimeoutError:
        return f"did not answer on its token routes within {_LIMIT_S:.0f} s"
    except Unavailable as error:
        mend = "; start vLLM with --enable-scale-out" if "scale-out" in str(error) else ""
        return f"has no token routes: {error}{mend}"
    except Refused as error:
        return f"refuses a request to its token routes: {error.refusal.message}"
    except CallError as error:
        return f"did not answer on its token routes: {error.detail}"
    if not cuts:
        return "has a chat template of which it cannot be told where a reply ends"
    return replace(routes, cuts=cuts)


async def _fault(routes: TokenIn, deadline: float) -> str | None:
    """What one sampled token lacks."""
    body = {"model": routes.model, "messages": [_ASKED], "max_tokens": 1, "temperature": 1.0, **TOKEN_DATA}
    prompt = await routes.render(body, deadline)
    # Some text, and not the one token: it may be the end of the reply, which is not parsed.
    await routes.parse(prompt, prompt, body, "length", deadline)
    sampled = await routes.sample(Outgoing(body, False, (), 1), None, deadline)
    data = token_data(sampled.completion)
    if data.invalid_reason or data.token_bytes is None:
        return f"gives no whole token data on its token routes: {data.invalid_reason or 'no bytes'}"
    return None


async def _cuts(routes: TokenIn, deadline: float) -> Cuts:
    """The token that ends a reply, for each message that may follow it; those that three small prompts make certain."""

    async def rendered(*messages: Json, **fields: Any) -> list[int]:
        return await routes.render({"model": routes.model, "messages": [_ASKED, *messages], **fields}, deadline)

    text, other_text = _said("one"), _said("two")
    user, other_user = _asked("red"), _asked("blue")
    cuts: dict[Follower, int] = {}
    pairs = ((text, user), (other_text, user), (text, other_user))
    first, second, other = [await rendered(*pair) for pair in pairs]
    if (cut := cut_after(first, second, other)) is not None:
        cuts["user"] = cut

    # No choice of tools: an engine without a parser of calls refuses any other.
    tools: Json = {"tools": [_TOOL], "tool_choice": "none"}
    call, other_call = _called("one"), _called("two")
    result, other_result = _result("red"), _result("blue")
    try:
        pairs = ((call, result), (other_call, result), (call, other_result))
        first, second, other = [await rendered(*pair, **tools) for pair in pairs]
        alone = await rendered(call, **tools, add_generation_prompt=False)
    except Refused:
        return cuts
    for candidate in (cuts.get("user"), *first[len(alone) : len(alone) + 1]):
        if candidate is not None and (cut := cut_after(first, second, other, candidate)) is not None:
            cuts["tool"] = cut
            break
    return cuts


def _asked(content: str) -> Json:
    return {"role": "user", "content": content}


def _said(content: str) -> Json:
    return {"role": "assistant", "content": content}


def _called(argument: str) -> Json:
    function = {"name": "run", "arguments": f'{{"command": "{argument}"}}'}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }


def _result(content: str) -> Json:
    return {"role": "tool", "tool_call_id": "call_0", "content": content}
