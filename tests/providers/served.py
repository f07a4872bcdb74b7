"""A real HTTP server on loopback that answers through one provider module, for official SDKs to talk to."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from polar_mitm.chat import CallError, ChatReply
from polar_mitm.providers.base import Ask, ModelCard, Provider, Request
from tests.providers.early import early


@dataclass
class Server:
    url: str = ""
    asks: list[Ask] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    cards: list[ModelCard] = field(default_factory=lambda: [ModelCard("tiny", 4096), ModelCard("org/big", None)])
    """What a `models` request is told of."""
    tokens: int = 42
    """What a `count` request is told."""


type Answer = ChatReply | CallError | Callable[[Ask], ChatReply]


@asynccontextmanager
async def served(provider: Provider, *answers: Answer) -> AsyncIterator[Server]:
    """Answers the n-th request with the n-th answer. Streams start with keep-alives and are cut at every byte."""
    server, queue = Server(), list(answers)

    async def handle(request: web.Request) -> web.StreamResponse:
        asked = Request(
            request.method,
            request.host,
            request.rel_url.raw_path,
            dict(request.query),
            {name.lower(): value for name, value in request.headers.items()},
        )
        server.paths.append(request.path_qs)
        route = provider.recognise(asked)
        assert route is not None, f"{request.method} {request.path} is not recognised"
        if route.action == "models":
            return web.json_response(provider.models(route, server.cards))
        if route.action == "fixed":
            return web.json_response(provider.fixed(asked))
        try:
            ask = provider.parse(asked, route, await request.json())
        except CallError as error:
            return _failed(provider, error)
        server.asks.append(ask)
        if route.action == "count":
            return web.json_response(provider.count(ask, server.tokens))
        answer = queue.pop(0)
        if callable(answer):
            answer = answer(ask)
        if not ask.stream:
            if isinstance(answer, CallError):
                return _failed(provider, answer)
            return web.json_response(provider.render(ask, answer))
        response = web.StreamResponse(headers={"content-type": provider.stream_type(ask)})
        await response.prepare(request)
        for byte in early(provider, ask, answer, 3):
            await response.write(bytes([byte]))
        await response.write_eof()
        return response

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


def _failed(provider: Provider, error: CallError) -> web.Response:
    status, body = provider.error(error)
    return web.json_response(body, status=status)


def replaced(value: Any, at: int, new: Any) -> Any:
    """The JSON value with its node number `at` (counted depth first) replaced; unchanged when it has fewer nodes."""
    counter = iter(range(10**9))

    def walk(node: Any) -> Any:
        if next(counter) == at:
            return new
        if isinstance(node, dict):
            return {key: walk(inner) for key, inner in node.items()}
        if isinstance(node, list):
            return [walk(inner) for inner in node]
        return node

    return walk(value)


def size(value: Any) -> int:
    """How many nodes a JSON value has."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(size(node) for node in inner)
