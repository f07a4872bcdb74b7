"""Answers that are no turn: how long a prompt is, which models there are, what a login waits to hear.

None of them is recorded, and none waits for a turn of its session: an editor asks for fifty counts in a second.
"""

from collections.abc import Callable

from polar_mitm.chat import CallError, Json
from polar_mitm.providers import Provider, Request, Route
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
