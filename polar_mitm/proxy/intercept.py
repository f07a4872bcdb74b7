"""The addon that turns model calls into engine calls, and everything else into a fast local answer."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Literal
from urllib.parse import parse_qsl
from weakref import WeakKeyDictionary

from mitmproxy import http
from mitmproxy.connection import Client
from mitmproxy.proxy.mode_specs import ReverseMode
from mitmproxy.tls import TlsData

from polar_mitm.capture.record import Call, Delivery
from polar_mitm.capture.session import new_call_id
from polar_mitm.chat import CallError, Json
from polar_mitm.json_text import dumps
from polar_mitm.providers import PROVIDERS, Provider, Request, Route, recognise, speaker
from polar_mitm.proxy.body import LARGEST_BODY, read_object
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.exchange import BROKE, Answer, Exchange, Repeat
from polar_mitm.proxy.flows import keep
from polar_mitm.proxy.lines import printable
from polar_mitm.proxy.loopback import TICKET_HEADER, Loopback, Waiting
from polar_mitm.proxy.retries import RETRY_HEADER, Sampled, key_of, linger_s, retry_count
from polar_mitm.proxy.sessions import KEY_HEADERS, Session, UnknownSession, find_key, split_session_path
from polar_mitm.proxy.side import side_answer, unsampled
from polar_mitm.proxy.view import annotate

logger = logging.getLogger(__name__)

HEALTH_HOST = "polar.local"
REDACTED = "redacted"
OTHER_SECRETS = (
    "apikey",
    "cookie",
    "referer",  # a page's address can hold its key
    "sec-websocket-protocol",  # how browsers send an API key
    "x-auth-token",
    "x-goog-iam-authorization-token",
)
"""Headers that may hold a secret and are read by nobody here."""
SECRET_FIELDS = ("key", "access_token", "api_key", "apikey", "token")
"""Fields of a query that hold one."""
type DeliveryStatus = Literal["delivered", "partial", "aborted"]
ENDED = "polar was ended before the answer"
CLIENT_LEFT = 499
"""The status shown in the flow of a call whose client left; nobody receives it."""


class Intercept:
    name = "polar-intercept"
    """mitmweb has an addon called intercept already."""

    def __init__(self, border: Border) -> None:
        self.border = border
        self.loopback: Loopback | None = None
        self.waiting: dict[str, Waiting] = {}
        self.by_connection: WeakKeyDictionary[Client, Session] = WeakKeyDictionary()
        self._closing: asyncio.Task[None] | None = None

    def done(self) -> None:
        while self.waiting:
            _, waiting = self.waiting.popitem()
            waiting.leave(for_good=True)
            waiting.exchange.give_up(ENDED)
            _write(waiting, call := _finish(waiting, "partial" if waiting.sent else "aborted"))
            keep(waiting.exchange.session, waiting.flow, self.border.session_bytes)  # no hook comes for it any more
            self.border.on_call(call, waiting.exchange.ask.model)
        if self.loopback:
            self._closing = asyncio.get_running_loop().create_task(self.loopback.close())

    async def http_connect(self, flow: http.HTTPFlow) -> None:
        """A proxy tunnel: its credentials name the session of every request inside."""
        await self.border.opened()
        credentials = flow.request.headers.pop("proxy-authorization", None)
        if self.border.sessions.of_address(flow.client_conn.peername[0]):
            return
        try:
            self.by_connection[flow.client_conn] = self.border.sessions.of_proxy_credentials(credentials)
        except UnknownSession as unknown:
            flow.response = http.Response.make(
                407, f"polar: {unknown}\n", {"Proxy-Authenticate": 'Basic realm="polar"', "Content-Type": "text/plain"}
            )

    async def requestheaders(self, flow: http.HTTPFlow) -> None:
        """Find the session, and take every secret off the flow before anything stores or shows it."""
        if not flow.live:
            return
        session_id, path = split_session_path(flow.request.path)
        key = find_key(flow.request.headers, flow.request.query)
        credentials = flow.request.headers.pop("proxy-authorization", None)
        flow.request.headers.pop(TICKET_HEADER, None)
        for name in (*KEY_HEADERS, *OTHER_SECRETS):
            if name in flow.request.headers:
                flow.request.headers[name] = REDACTED
        if secret := [name for name in SECRET_FIELDS if name in flow.request.query]:
            for name in secret:
                flow.request.query[name] = REDACTED
            session_id, path = split_session_path(flow.request.path)
        flow.request.path = path
        await self.border.opened()
        try:
            session = self._session(flow, credentials, session_id, key)
            self.border.by_flow[flow] = session
            flow.metadata["polar_session"] = session.id
        except UnknownSession:
            self.border.by_flow[flow] = None

    async def request(self, flow: http.HTTPFlow) -> None:
        if flow.error or not flow.live:
            return
        if flow.response and not flow.metadata.pop("blocklisted", False):
            return
        flow.response = None
        request = _request(flow)
        found = recognise(request)
        try:
            if found and found[1].action == "generate":
                await self._call(flow, request, *found)
            else:
                flow.response = await self._side(flow, request, *found) if found else _elsewhere(flow, request)
                if request.method == "HEAD":  # Claude Code's look whether the API is there; only the headers may follow
                    flow.response.raw_content = b""
        except CallError as error:
            logger.warning("polar: %s", printable(f"{request.method} {request.path}: {error.detail}"))
            flow.response = _failed(found[0] if found else speaker(request), error, self._request_id(flow))
        except Exception:  # the border: whatever broke, the client gets an answer in its own form
            logger.exception("polar: %s failed", printable(f"{request.method} {request.path}"))
            flow.response = self._broke(flow, found[0] if found else speaker(request))
        self._name_request(flow, found[0] if found else speaker(request))

    def _name_request(self, flow: http.HTTPFlow, provider: Provider) -> None:
        """Give the answer the id that its provider's SDK shows, unless it has it."""
        if flow.response and provider.REQUEST_ID_HEADER:
            flow.response.headers.setdefault(provider.REQUEST_ID_HEADER, self._request_id(flow))

    def _request_id(self, flow: http.HTTPFlow) -> str:
        """After the call's, where it is one."""
        waiting = self.waiting.get(flow.id)
        call_id = waiting.exchange.call.identity.call_id if waiting else new_call_id()
        return f"req_{call_id.removeprefix('call_')}"

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        waiting = self.waiting.get(flow.id)
        if waiting and waiting.scheme and flow.response:
            self._name_request(flow, waiting.exchange.provider)
            flow.response.stream = waiting.passing
            # The loopback closes its connection after each answer; the client may keep its own.
            flow.response.headers.pop("connection", None)

    async def response(self, flow: http.HTTPFlow) -> None:
        if (waiting := self.waiting.get(flow.id)) and flow.response:
            if not flow.client_conn.connected:
                await self._conclude(waiting, "partial" if waiting.sent else "aborted")
                return
            if not waiting.scheme:  # answered in the hook: the whole of it goes out next
                waiting.passed = len(flow.response.raw_content or b"")
            await self._conclude(waiting, "delivered")

    async def error(self, flow: http.HTTPFlow) -> None:
        if waiting := self.waiting.get(flow.id):
            waiting.leave()
            await self._conclude(waiting, "partial" if waiting.sent else "aborted")

    def client_disconnected(self, client: Client) -> None:
        """A hook that waits does not learn that its client left; this one does, and so the engine stops."""
        for waiting in self.waiting.values():
            if waiting.flow.client_conn is client:
                waiting.leave()

    def tls_failed_client(self, data: TlsData) -> None:
        name = data.conn.sni or "an unnamed host"
        logger.warning("polar: a client broke off TLS to %s: does it trust polar's CA certificate?", printable(name))

    def _session(
        self, flow: http.HTTPFlow, credentials: str | None, session_id: str | None, key: str | None
    ) -> Session:
        """Who sent this request: its address, its tunnel, its proxy credentials or its key. Raises UnknownSession."""
        sessions = self.border.sessions
        if bound := sessions.of_address(flow.client_conn.peername[0]):
            return bound
        if tunnel := self.by_connection.get(flow.client_conn):
            if sessions.find(tunnel.id) is not tunnel:
                raise UnknownSession("the session of this tunnel is over")
            return tunnel
        return sessions.of_proxy_credentials(credentials) if credentials else sessions.of_key(session_id, key)

    def _broke(self, flow: http.HTTPFlow, provider: Provider) -> http.Response:
        """The answer to a call on which polar itself failed; a call that was under way is recorded so."""
        error = CallError("internal", BROKE)
        if waiting := self.waiting.get(flow.id):
            waiting.leave(for_good=True)
            waiting.exchange.failed(error)
        return _failed(provider, error, self._request_id(flow))

    async def _side(self, flow: http.HTTPFlow, request: Request, provider: Provider, route: Route) -> http.Response:
        answer = await side_answer(self.border.by_flow.get(flow), provider, request, route, lambda: _body(flow)[1])
        flow.comment = f"{route.action}: no turn, not recorded"
        return _json(200, answer)

    async def _call(self, flow: http.HTTPFlow, request: Request, provider: Provider, route: Route) -> None:
        session = self.border.by_flow.get(flow)
        if session is None:
            raise CallError("unauthorized", "polar: this API key belongs to no open session")
        await self._have_room(session)
        content, body = _body(flow)
        ask = provider.parse(request, route, body)
        if ask.chat.sampling.max_tokens == 0:
            kind, answer = await unsampled(session, provider, ask)
            flow.response = http.Response.make(200, answer, {"content-type": kind})
            flow.comment = "no token asked for: no turn, not recorded"
            return
        retries = session.retries
        count, key = retry_count(request.headers), key_of(request, content)
        if count and (first := retries.find(key, asyncio.get_running_loop().time())):
            sign = f"{RETRY_HEADER} {count}, an equal body"
            repeat = Repeat(
                *(session, provider, request, ask),
                original_id=first.call_id,
                begun=first.begun,
                shared=first.shared,
                sign=sign,
            )
            await self._exchange(flow, repeat, repeat.start())
            return
        exchange = Exchange(session, provider, request, ask)
        task = exchange.start(linger_s=linger_s(request.headers))
        assert exchange.shared
        if count:
            exchange.call.origin.kind_reason += f"; {RETRY_HEADER} {count}, but no equal call left a sample"
        retries.add(key, Sampled(exchange.call.identity.call_id, exchange.begun, exchange.shared))
        await self._exchange(flow, exchange, task)

    async def _have_room(self, session: Session) -> None:
        """Raises CallError where the session's log is full: a few compressed bodies stand for gigabytes."""
        limit, calls = self.border.session_bytes, session.log.folder.calls
        if calls.exists() and calls.stat().st_size >= limit:
            reason = f"calls.jsonl has reached the session's limit of {limit} bytes: no further call is served"
            await asyncio.to_thread(session.log.limit, reason)
            raise CallError("too_large", f"polar: {reason}; begin another session, or start polar with a larger one")

    async def _exchange(self, flow: http.HTTPFlow, exchange: Exchange, task: asyncio.Task[Answer]) -> None:
        """Wait for the answer in the hook; a stream that outlives the grace goes on through the loopback."""
        waiting = self.waiting[flow.id] = Waiting(flow, exchange, task)
        task.add_done_callback(lambda _: annotate(flow, exchange.call, exchange.token_bytes))
        done, _ = await asyncio.wait([task], timeout=self.border.grace_s if exchange.ask.stream else None)
        if task.cancelled():
            flow.response = http.Response.make(CLIENT_LEFT, headers={"connection": "close"})
            await self._conclude(waiting, "aborted")
        elif done:
            flow.response = _response(task.result())
        else:
            await self._divert(waiting)

    async def _divert(self, waiting: Waiting) -> None:
        if self.loopback is None:
            self.loopback = Loopback(self.border)
        ticket, address = await self.loopback.admit(waiting)
        request = waiting.flow.request
        request.headers[TICKET_HEADER] = ticket
        # h1 needs a length, which an h2 or chunked client may have left out.
        request.headers.pop("transfer-encoding", None)
        request.headers["content-length"] = str(len(request.raw_content or b""))
        waiting.scheme, request.scheme = request.scheme, "http"
        self.border.diverted[waiting.flow.client_conn] = ((request.host, request.port), address)

    async def _conclude(self, waiting: Waiting, status: DeliveryStatus) -> None:
        """Close the call's record and store it, once."""
        await waiting.exchange.settled()
        if self.waiting.pop(waiting.flow.id, None):
            call = _finish(waiting, status)
            await asyncio.to_thread(_write, waiting, call)
            self.border.on_call(call, waiting.exchange.ask.model)


def _finish(waiting: Waiting, status: DeliveryStatus) -> Call:
    """The call's record, closed; and its flow as the client sent it again."""
    request = waiting.flow.request
    request.headers.pop(TICKET_HEADER, None)
    request.scheme = waiting.scheme or request.scheme
    return waiting.exchange.finish(Delivery(status=status, bytes_sent=waiting.sent))


def _write(waiting: Waiting, call: Call) -> None:
    """Write the record to the session's log, and as it stands there onto the flow."""
    if recorded := waiting.exchange.session.log.record(call):
        call.parent_call_id, call.checks = recorded.line.parent_call_id, recorded.line.checks
    annotate(waiting.flow, call, waiting.exchange.token_bytes, line=recorded.number if recorded else 0)


def _request(flow: http.HTTPFlow) -> Request:
    request = flow.request
    return Request(
        method=request.method,
        host=request.pretty_host,
        path=request.path.partition("?")[0],
        query=dict(parse_qsl(request.path.partition("?")[2], keep_blank_values=True)),
        headers=_headers(request.headers.fields),
    )


def _headers(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Names in lower case, values of one name joined. mitmproxy's own mapping looks through all fields for each name,
    which for thousands of them holds up every other call; and bytes that are no UTF-8 could not be written down."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name, value = raw_name.decode(errors="replace").lower(), raw_value.decode(errors="replace")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _body(flow: http.HTTPFlow) -> tuple[bytes, Json]:
    """The request's decoded body and the JSON object in it. Raises CallError naming what can't be read."""
    codings = flow.request.headers.get("content-encoding", "")
    return read_object(flow.request.raw_content or b"", codings, limit=LARGEST_BODY)


def _elsewhere(flow: http.HTTPFlow, request: Request) -> http.Response:
    """The answer to what is no model call: health, a refused websocket, or a 404 in the shape the client reads."""
    if request.host == HEALTH_HOST or request.path == "/healthz":
        return _json(200, {"status": "ok"})
    if "websocket" in request.headers.get("upgrade", "").lower():
        # 426 makes Codex fall back to HTTPS at once; any other refusal costs it seven tries.
        refusal = _json(426, {"error": {"message": "polar: use HTTPS, not a websocket"}})
        refusal.headers["connection"] = "close"
        return refusal
    base_url = isinstance(flow.client_conn.proxy_mode, ReverseMode)
    if base_url or any(request.host in provider.HOSTS for provider in PROVIDERS):
        error = CallError("not_found", f"polar serves no {request.method} {request.path}")
        return _failed(speaker(request), error, f"req_{new_call_id().removeprefix('call_')}")
    return _json(404, {"error": {"message": f"polar: {request.host} is no model API, and nothing leaves this machine"}})


def _failed(provider: Provider, error: CallError, request_id: str) -> http.Response:
    """The answer to a failed request, which names it in its header and, where the provider's does, in its body."""
    status, body = provider.error(error, request_id)
    response = _json(status, body)
    if provider.REQUEST_ID_HEADER:
        response.headers[provider.REQUEST_ID_HEADER] = request_id
    return response


def _response(answer: Answer) -> http.Response:
    return http.Response.make(answer.status, answer.body, {"content-type": answer.content_type})


def _json(status: int, body: Json) -> http.Response:
    return http.Response.make(status, dumps(body), {"content-type": "application/json"})
