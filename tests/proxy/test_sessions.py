"""Who is calling: what names a session, and what becomes of a caller who names none."""

import base64
from typing import Any

import pytest

from polar_mitm.proxy.sessions import Sessions, UnknownSession, find_key, parse_basic, split_session_path
from tests.conftest import Staged
from tests.proxy.asks import ANTHROPIC, CHAT, GOOGLE, JSON_ASKS, RESPONSES, Ask, streamed
from tests.proxy.stage import Got, Stage, Wire

UNKNOWN = "polar: this API key belongs to no open session"
OPENAI_401 = {"error": {"message": UNKNOWN, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}}
SHAPES: dict[str, Any] = {
    "anthropic": {"type": "error", "error": {"type": "authentication_error", "message": UNKNOWN}},
    "openai-chat": OPENAI_401,
    "openai-responses": OPENAI_401,
    "google": {"error": {"code": 401, "message": UNKNOWN, "status": "UNAUTHENTICATED"}},
}


def unnamed(got: Got) -> Any:
    """The body without the request's name, which is that of the header."""
    body = got.json
    assert body.pop("request_id", None) == got.headers.get("request-id")
    return body


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "credentials"),
    [
        (basic("ses_1:secret"), ("ses_1", "secret")),
        (basic("ses_1:se:cret").replace("Basic", "bAsIc"), ("ses_1", "se:cret")),
        (basic("ses_1:") + " ", ("ses_1", "")),
        (basic("ses_1"), None),
        ("Bearer c2VzXzE6c2VjcmV0", None),
        ("Basic", None),
        ("Basic ***", None),
        ("Basic " + base64.b64encode(b"\xff:\xff").decode(), None),
    ],
)
def test_proxy_credentials_are_a_user_and_a_password_or_nothing(
    header: str, credentials: tuple[str, str] | None
) -> None:
    assert parse_basic(header) == credentials


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/s/ses_1/v1/messages", ("ses_1", "/v1/messages")),
        ("/s/ses_1/v1/messages?beta=true", ("ses_1", "/v1/messages?beta=true")),
        ("/s/ses_1", ("ses_1", "/")),
        ("/s/", ("", "/")),
        ("/v1/messages", (None, "/v1/messages")),
        ("/sx/ses_1/v1", (None, "/sx/ses_1/v1")),
    ],
)
def test_a_session_path_is_a_prefix_and_the_rest_is_the_clients_own(path: str, parts: tuple[str | None, str]) -> None:
    assert split_session_path(path) == parts


@pytest.mark.parametrize(
    ("headers", "query", "key"),
    [
        ({"x-api-key": "k"}, {}, "k"),
        ({"x-goog-api-key": "k"}, {"key": "other"}, "k"),
        ({"authorization": "Bearer k"}, {}, "k"),
        ({"authorization": "bearer  k"}, {}, "k"),
        ({"authorization": "k"}, {}, "k"),
        ({"x-api-key": "k", "authorization": "Bearer other"}, {}, "k"),
        ({"x-api-key": ""}, {"key": "k"}, "k"),
        ({}, {}, None),
    ],
)
def test_the_api_key_is_found_wherever_an_sdk_puts_it(
    headers: dict[str, str], query: dict[str, str], key: str | None
) -> None:
    assert find_key(headers, query) == key


def test_without_open_sessions_nobody_is_known() -> None:
    sessions = Sessions()
    assert sessions.find(None) is None
    with pytest.raises(UnknownSession):
        sessions.of_proxy_credentials(None)
    with pytest.raises(UnknownSession):
        sessions.of_key(None, None)


def nothing_recorded(on: Stage) -> bool:
    return all(on.calls(session) == [] for session in on.sessions) and not on.fake.requests


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_an_unknown_key_is_a_401_in_the_providers_shape_and_recorded_nowhere(ask: Ask, stage: Staged) -> None:
    async with stage() as on:
        on.open_session()
        for asked in (ask, streamed(ask)):
            url = f"http://127.0.0.1:{on.proxy.base_url_port}{asked.target}"
            for headers in (asked.with_key("no-such-key").headers, asked.headers):
                got = await on.request("POST", url, json=asked.body, headers=headers)
                assert (got.status, unnamed(got)) == (401, SHAPES[ask.provider])
                assert got.headers["content-type"] == "application/json"
        assert nothing_recorded(on)
        assert not any(session.log.folder.flows.exists() for session in on.sessions)


async def test_google_keys_in_the_query_name_the_session_too(stage: Staged) -> None:
    async with stage() as on:
        url = f"http://127.0.0.1:{on.proxy.base_url_port}{GOOGLE.target}"
        refused = await on.request("POST", f"{url}?key=no-such-key", json=GOOGLE.body)
        assert (refused.status, refused.json) == (401, SHAPES["google"])
        assert nothing_recorded(on)
        got = await on.request("POST", f"{url}?key={on.session.token}", json=GOOGLE.body)
        assert got.status == 200
        assert len(on.calls()) == 1


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_a_session_path_with_another_sessions_key_is_a_401(ask: Ask, stage: Staged) -> None:
    async with stage() as on:
        mine, other = on.session, on.open_session()
        for session, key in ((mine, other.token), (other, mine.token), (mine, mine.id), (mine, "")):
            got = await on.post(ask, session=session, key=key)
            assert got.status == 401
            assert "has this API key" not in got.body.decode()  # one answer for all: no hint which half was right
        assert nothing_recorded(on)


async def test_a_key_alone_finds_its_session_among_several(stage: Staged) -> None:
    async with stage() as on:
        wanted = on.open_session()
        on.open_session()
        url = f"http://127.0.0.1:{on.proxy.base_url_port}{CHAT.target}"
        got = await on.request("POST", url, json=CHAT.body, headers=CHAT.with_key(wanted.token).headers)
        assert got.status == 200
        assert [len(on.calls(session)) for session in on.sessions] == [0, 1, 0]


async def test_a_session_that_was_closed_is_unknown_on_every_way_in(stage: Staged) -> None:
    async with stage() as on:
        assert (await on.post(ANTHROPIC)).status == 200
        assert (await on.post_through(ANTHROPIC)).status == 200
        on.border.sessions.remove(on.session)
        assert (await on.post(ANTHROPIC)).status == 401
        # The tunnel from before is still open, and leads nowhere now.
        assert (await on.post_through(ANTHROPIC)).status == 401
        assert len(on.calls()) == 2


@pytest.mark.parametrize("header", [None, basic("ses_1:wrong"), basic("ses_1"), "Bearer token"])
async def test_a_tunnel_without_a_sessions_credentials_is_a_407(header: str | None, stage: Staged) -> None:
    async with stage() as on, Wire(on.proxy.port) as wire:
        credentials = f"Proxy-Authorization: {header}\r\n" if header else ""
        await wire.send(
            f"CONNECT api.anthropic.com:443 HTTP/1.1\r\nHost: api.anthropic.com:443\r\n{credentials}\r\n".encode()
        )
        status, headers, body = await wire.response()
        assert (status, headers["proxy-authenticate"]) == (407, 'Basic realm="polar"')
        assert body == b"polar: these proxy credentials belong to no open session\n"
        assert nothing_recorded(on)


async def test_a_session_id_with_another_sessions_token_opens_no_tunnel(stage: Staged) -> None:
    async with stage() as on, Wire(on.proxy.port) as wire:
        credentials = basic(f"{on.session.id}:{on.open_session().token}")
        await wire.send(
            b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n"
            b"Proxy-Authorization: " + credentials.encode() + b"\r\n\r\n"
        )
        assert (await wire.response())[0] == 407


async def test_a_client_that_answers_the_407_on_the_same_connection_is_let_in(stage: Staged) -> None:
    async with stage() as on, Wire(on.proxy.port) as wire:
        connect = b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n"
        await wire.send(connect + b"\r\n")
        assert (await wire.response())[0] == 407
        credentials = basic(f"{on.session.id}:{on.session.token}").encode()
        await wire.send(connect + b"Proxy-Authorization: " + credentials + b"\r\n\r\n")
        assert (await wire.response())[0] == 200


async def test_plain_http_through_the_proxy_port_is_known_by_its_credentials(stage: Staged) -> None:
    async with stage() as on:
        for ask in (ANTHROPIC, RESPONSES):
            url = f"http://{ask.host}{ask.target}"
            got = await on.request("POST", url, json=ask.body, headers=ask.headers, proxy=on.proxy_url())
            assert got.status == 200, got.body
            refused = await on.request("POST", url, json=ask.body, headers=ask.headers, proxy=on.proxy_url(token="x"))
            assert (refused.status, unnamed(refused)) == (401, SHAPES[ask.provider])
        assert len(on.calls()) == 2


async def test_every_request_of_a_tunnel_belongs_to_the_session_that_opened_it(stage: Staged) -> None:
    async with stage() as on:
        first, second = on.session, on.open_session()
        for _ in range(2):  # the second round reuses the tunnels
            assert (await on.post_through(ANTHROPIC.with_key("sk-any"), session=first)).status == 200
            assert (await on.post_through(CHAT.with_key("sk-any"), session=second)).status == 200
        assert [call.origin.provider for call in on.calls(first)] == ["anthropic"] * 2
        assert [call.origin.provider for call in on.calls(second)] == ["openai-chat"] * 2
