"""Answers that are no turn: how long a prompt is, which models there are, what a login waits to hear.

None of them is recorded, and none waits for a turn of its session: an editor asks for fifty counts in a second.
"""

import time
from collections.abc import Callable

from polar_mitm.capture.session import new_call_id
from polar_mitm.chat import CallError, ChatReply, Json, Usage
from polar_mitm.engine.refusals import overflow
from polar_mitm.json_text import dumps
from polar_mitm.providers import Ask, Provider, Request, Route
from polar_mitm.providers.base import ModelCard
from polar_mitm.proxy.sessions import Session


async def side_answer(
    session: Session | None, provider: Provider, request: Request, route: Route, read: Callable[[], Json]
) -> Json:
    """The JSON body of the answer. `read` gives the request's body. Raises CallError."""
    if route.action == "fixed":
        return provider.fixed(request)
    if session is None:
        raise CallError("unauthorized", "polar: this API key belongs to no open session")
    if route.action == "count":
        ask = provider.parse(request, route, read())
        return provider.count(ask, await session.engine.count(ask.chat, overrides=session.sampling))
    served = session.engine.capabilities
    return provider.models(route, [ModelCard(served.model, served.max_model_len)])


async def unsampled(session: Session, provider: Provider, ask: Ask) -> tuple[str, bytes]:
    """Content type and body of the answer to a request for no token at all: how long its prompt is, and no word.

    Anthropic's clients send one to have a prompt cached. Raises CallError.
    """
    limit = session.engine.capabilities.max_model_len
    tokens = await session.engine.count(ask.chat, overrides=session.sampling)
    if limit is not None and tokens > limit:
        raise overflow(tokens, limit)
    call_id = new_call_id().removeprefix("call_")
    reply = ChatReply(call_id, int(time.time()), "", "", (), "length", Usage(tokens, 0))
    if ask.stream:
        return provider.stream_type(ask), b"".join(provider.stream(ask, reply))
    return "application/json", dumps(provider.render(ask, reply))
