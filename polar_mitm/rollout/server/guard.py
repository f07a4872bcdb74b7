"""What stands before every route: the token, the size of bodies, the count of requests.

A browser is asked for the token as a password (HTTP Basic); it then sends it by itself, also from other sites' pages.
So what changes something has to come from a page of this server.
"""

import base64
import binascii
import hmac
import json
from urllib.parse import urlsplit

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = frozenset({"/healthz"})


class TooLargeBody(HTTPException):
    """It is FastAPI's own kind of error: any other that comes while a body is read it answers with a 400."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, _too_large(limit))


class Guard:
    def __init__(self, app: ASGIApp, *, token: str, max_body: int, max_file: int, requests: Counter) -> None:
        self.app = app
        self.token = token.encode()
        self.max_body, self.max_file = max_body, max_file
        self.requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = 0

        async def watched(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = message["status"]
            await send(message)

        try:
            await self._pass(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "-")
            self.requests.labels(f"{scope['method']} {route}" if route != "-" else "-", str(started)).inc()

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["path"] not in OPEN and (trouble := self._unwelcome(scope, headers)):
            await _refuse(send, *trouble)
            return
        limit = self.max_file if scope["method"] == "PUT" else self.max_body
        declared = headers.get("content-length", "")
        if declared.isdigit() and len(declared) < 20 and int(declared) > limit:
            await _refuse(send, 413, "too_large", _too_large(limit))
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > limit:
                raise TooLargeBody(limit)
            return message

        await self.app(scope, counted, send)

    def _unwelcome(self, scope: Scope, headers: Headers) -> tuple[int, str, str] | None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        match kind.lower():
            case "bearer":
                secret = given.strip().encode("latin-1", "replace")
            case "basic":
                secret = _password(given)
                if not _own_page(scope, headers):
                    return 403, "forbidden", "a page of another site may change nothing here"
            case _:
                secret = b""
        if hmac.compare_digest(secret, self.token):
            return None
        what = "send `Authorization: Bearer <token>`" if not secret else "the token is not this server's"
        return 401, "unauthorized", what


def _password(given: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _own_page(scope: Scope, headers: Headers) -> bool:
    if scope["method"] in ("GET", "HEAD"):
        return True
    if (site := headers.get("sec-fetch-site")) is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def _too_large(limit: int) -> str:
    return f"the body has more than {limit} bytes: put large things into files, or raise the server's limit"


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    body = json.dumps({"error": {"code": code, "message": message, "field": None}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers += [(b"www-authenticate", b"Bearer"), (b"www-authenticate", b'Basic realm="polar", charset="UTF-8"')]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
