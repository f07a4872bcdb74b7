"""Whether an engine takes prompts of token ids, and where its chat template ends a reply."""

import asyncio
from dataclasses import replace
from typing import Any, Final

from polar_mitm.chat import CallError, Json
from polar_mitm.engine.body import TOKEN_DATA, Outgoing
from polar_mitm.engine.exact import Refused, TokenIn, Unavailable
from polar_mitm.engine.exact_cut import End, Ends, Follower, end_of, written_between
from polar_mitm.engine.sample import token_data
from polar_mitm.engine.transport import Transport

_LIMIT_S: Final = 60.0

_CALL: Final = "call00000"
"""Of the form that the strictest templates want: nine letters or digits."""
_ASKED: Final[Json] = {"role": "user", "content": "Say hello."}
_TOOL: Final[Json] = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


async def look(transport: Transport, model: str, window: int | None, running: set[str]) -> TokenIn | str:
    """The engine's token routes; or why there are none, in words that go on from "the engine".

    `running` is to hold the engine's names of the calls that it is sampling by them.
    """
    if window is None:
        return "does not say how long its window is"
    routes = TokenIn(transport, model, window, running=running)
    deadline = asyncio.get_running_loop().time() + _LIMIT_S
    try:
        async with asyncio.timeout_at(deadline):
            if fault := await _fault(routes, deadline):
                return fault
            ends = await _ends(routes, deadline)
    except TimeoutError:
        return f"did not answer on its token routes within {_LIMIT_S:.0f} s"
    except Unavailable as error:
        mend = "; start vLLM with --enable-scale-out" if "scale-out" in str(error) else ""
        return f"has no token routes: {error}{mend}"
    except Refused as error:
        return f"refuses a request to its token routes: {error.refusal.message}"
    except CallError as error:
        return f"did not answer on its token routes: {error.detail}"
    if not ends:
        return "has a chat template of which it cannot be told where a reply ends"
    return replace(routes, ends=ends)


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


async def _ends(routes: TokenIn, deadline: float) -> Ends:
    """How the template ends a reply, for each message that may follow it; those that three small prompts show."""

    async def rendered(*messages: Json, **fields: Any) -> list[int]:
        return await routes.render({"model": routes.model, "messages": [_ASKED, *messages], **fields}, deadline)

    ends: dict[Follower, End] = {}
    said = await rendered(_said("one"), _asked("red"))
    said_otherwise = await rendered(_said("two"), _asked("red"))
    asked_otherwise = await rendered(_said("one"), _asked("blue"))
    if end := end_of(written_between(said, said_otherwise, asked_otherwise)):
        ends["user"] = end

    # No choice of tools: an engine without a parser of calls refuses any other.
    tools: Json = {"tools": [_TOOL], "tool_choice": "none"}
    try:
        called = await rendered(_called("one"), _result("red"), **tools)
        called_otherwise = await rendered(_called("two"), _result("red"), **tools)
        answered_otherwise = await rendered(_called("one"), _result("blue"), **tools)
        alone = await rendered(_called("one"), **tools, add_generation_prompt=False)
    except Refused:
        return ends
    # After a call: what ends a reply without one, else what follows a last one.
    likely = [ends["user"].first] if "user" in ends else []
    between = written_between(called, called_otherwise, answered_otherwise)
    likely += called[len(alone) : len(alone) + 1]
    if end := end_of(between, *(token for token in likely if token is not None)):
        ends["tool"] = end
    return ends


def _asked(content: str) -> Json:
    return {"role": "user", "content": content}


def _said(content: str) -> Json:
    return {"role": "assistant", "content": content}


def _called(argument: str) -> Json:
    function = {"name": "run", "arguments": f'{{"command": "{argument}"}}'}
    call = {"id": _CALL, "type": "function", "function": function}
    # With a text: some templates show no calls, and leave it to the text to hold them.
    return {"role": "assistant", "content": argument, "tool_calls": [call]}


def _result(content: str) -> Json:
    return {"role": "tool", "tool_call_id": _CALL, "content": content}
