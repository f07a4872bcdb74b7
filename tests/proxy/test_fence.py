"""Nothing is dialled: not by any form of request, not under any option, not when the addon is gone."""

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from mitmproxy.addons.blocklist import BlockList
from mitmproxy.addons.next_layer import NextLayer
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Client
from mitmproxy.exceptions import OptionsError
from mitmproxy.test import taddons

from polar_mitm.proxy.border import Border
from polar_mitm.proxy.fence import BLOCK_ALL, LOCKED, Fence, lock
from polar_mitm.proxy.master import ProxyFailed
from tests.conftest import Sentinel, Staged, watching
from tests.ports import free_port
from tests.proxy.asks import CHAT
from tests.proxy.stage import LIMIT_S, Stage, Wire, basic


async def swallow(wire: Wire) -> bytes:
    """What comes back to what was said. mitmproxy leaves some such connections open."""
    heard = bytearray()
    with suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            while piece := await wire.reader.read(65536):
                heard += piece
    return bytes(heard)


def connect(on: Stage, sentinel: Sentinel) -> bytes:
    return f"CONNECT {sentinel.address} HTTP/1.1\r\nProxy-Authorization: {basic(on.session)}\r\n\r\n".encode()


async def test_no_form_of_request_reaches_another_address(stage: Staged, sentinel: Sentinel) -> None:
    async with stage() as on:
        trust: dict[str, Any] = {"proxy": on.proxy_url(), "ssl": on.trust}
        for method in ("GET", "POST", "PUT", "OPTIONS", "DELETE"):
            for scheme in ("http", "https"):
                got = await on.request(method, f"{scheme}://{sentinel.address}/x", **trust)
                assert got.status == 404
        # A model call to that address is served here.
        assert (await on.request("POST", f"http://{sentinel.address}/v1/chat/completions", json=CHAT.body, **trust)).ok
        refused = [
            f"GET http://{sentinel.address}/ HTTP/1.1\r\nHost: {sentinel.address}\r\n\r\n",
            f"GET / HTTP/1.1\r\nHost: {sentinel.address}\r\n\r\n",
            f"POST http://{sentinel.address}/ HTTP/1.1\r\nHost: {sentinel.address}\r\nExpect: 100-continue\r\n"
            "Content-Length: 2\r\n\r\n{}",
            f"GET http://{sentinel.address}/ HTTP/1.1\r\nHost: {sentinel.address}\r\nUpgrade: h2c\r\n"
            "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
            f"GET http://{sentinel.address}/ HTTP/1.1\r\nHost: {sentinel.address}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            f"CONNECT {sentinel.address} HTTP/1.1\r\n\r\n",
        ]
        for port in (on.proxy.port, on.proxy.base_url_port):
            for request in refused:
                async with Wire(port) as wire:
                    await wire.send(request.encode())
                    answer = await swallow(wire)
                    assert not answer.startswith(b"HTTP/1.1 2"), answer


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x03 not tls, not http\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"EHLO example.com\r\n",
        b"\x16\x03\x01\x00\x05 broken tls",
        b"\n\n\n",
        b"",
    ],
    ids=["binary", "ssh", "smtp", "broken-tls", "newlines", "nothing"],
)
async def test_bytes_in_a_tunnel_that_are_neither_tls_nor_http_go_nowhere(
    data: bytes, stage: Staged, sentinel: Sentinel
) -> None:
    async with stage() as on, Wire(on.proxy.port) as wire:
        await wire.send(connect(on, sentinel))
        assert (await wire.response())[0] == 200
        await wire.send(data)
        answer = await swallow(wire)
        assert not answer.startswith(b"HTTP/1.1 2"), answer


async def test_socks_is_not_spoken(stage: Staged, sentinel: Sentinel) -> None:
    address = socket.inet_aton(sentinel.host) + struct.pack("!H", sentinel.port)
    async with stage() as on:
        for hello in (
            b"\x05\x01\x00" + b"\x05\x01\x00\x01" + address,
            b"\x04\x01" + address[4:] + address[:4] + b"\x00",
        ):
            async with Wire(on.proxy.port) as wire:
                await wire.send(hello + b"GET / HTTP/1.1\r\n\r\n")
                answer = await swallow(wire)
                assert answer == b"" or answer.startswith(b"HTTP/1.1 400"), answer


async def test_a_dns_query_in_a_tunnel_is_not_resolved(stage: Staged) -> None:
    """mitmproxy takes a tunnel to port 53 or 5353 for DNS, and would dial it."""
    query = b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01"
    async with watching("127.0.0.2", 5353) as dns, stage() as on, Wire(on.proxy.port) as wire:
        await wire.send(connect(on, dns))
        assert (await wire.response())[0] == 200
        await wire.send(struct.pack("!H", len(query)) + query)
        answer = await asyncio.wait_for(wire.reader.readexactly(14), LIMIT_S)
        flags, _, answers = struct.unpack("!HHH", answer[4:10])
        assert (flags & 0xF, answers) == (2, 0), answer  # SERVFAIL, made here


UNSAFE: list[tuple[str, Any]] = [
    ("connection_strategy", "eager"),
    ("http2", True),
    ("rawtcp", True),
    ("ignore_hosts", ["example.com"]),
    ("allow_hosts", ["example.com"]),
    ("tcp_hosts", ["example.com"]),
    ("stream_large_bodies", "1m"),
    ("connect_addr", "0.0.0.0"),
    ("emudhra", True),
    ("block_list", []),
    ("mode", ["upstream:http://127.0.0.1:9@1"]),
    ("mode", ["dns@1"]),
    ("mode", ["reverse:tcp://127.0.0.1:9@1"]),
    ("mode", ["reverse:udp://127.0.0.1:9@1"]),
]


@pytest.mark.parametrize(("name", "value"), UNSAFE, ids=[f"{name}={value}" for name, value in UNSAFE])
async def test_an_option_that_would_open_the_fence_is_refused(name: str, value: Any, stage: Staged) -> None:
    with pytest.raises(ProxyFailed, match=name.replace("block_list", "block_list must keep")):
        async with stage(port=free_port(), base_url_port=free_port(), **{name: value}):
            pass


@contextmanager
def mitmproxy(*addons: Any) -> Iterator[taddons.context]:
    """Options and these addons, without a proxy."""
    with taddons.context(Proxyserver(), BlockList(), NextLayer(), *addons) as tctx:
        yield tctx


async def test_modes_that_only_listen_are_allowed() -> None:
    with mitmproxy(Fence(Border())) as tctx:
        for mode in ("regular", "regular@8080", "socks5", "reverse:https://polar.invalid@8081"):
            tctx.options.update(mode=[mode])
            assert tctx.options.mode == [mode]


async def test_the_lock_puts_every_safe_value_in_force_and_names_what_it_overrode() -> None:
    with mitmproxy() as tctx:
        tctx.options.update(ignore_hosts=["example.com"], rawtcp=True)
        assert lock(tctx.options) == ["ignore_hosts"]  # true is mitmproxy's own default of rawtcp, nobody's choice
        for name, value in LOCKED.items():
            if name in tctx.options:
                assert getattr(tctx.options, name) == value
        assert tctx.options.block_list == [BLOCK_ALL]
        assert tctx.options.listen_host == "127.0.0.1"
        assert lock(tctx.options) == []


async def test_an_unsafe_choice_from_before_the_addon_is_overridden_at_once_and_then_refused() -> None:
    fence = Fence(Border())
    with mitmproxy() as tctx:
        tctx.options.update(allow_hosts=["example.com"])
        tctx.master.addons.add(fence)
        assert tctx.options.allow_hosts == []
        with pytest.raises(OptionsError, match="polar: option allow_hosts must stay"):
            fence.configure(set())


def test_the_kernel_takes_a_socket_bound_to_loopback_nowhere_else() -> None:
    """The fact behind the option connect_addr."""
    with socket.socket() as bound:
        bound.settimeout(2)
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match=r"Invalid argument|Network is unreachable"):
            bound.connect(("192.0.2.1", 80))  # a block of addresses that is given to no one


@pytest.mark.parametrize(
    ("listen_host", "peer", "refused"),
    [
        ("127.0.0.1", "127.0.0.1", False),
        ("127.0.0.1", "::1", False),
        ("localhost", "::ffff:127.0.0.1", False),
        ("127.0.0.1", "192.168.1.7", True),
        ("127.0.0.1", "::ffff:192.168.1.7", True),
        ("0.0.0.0", "192.168.1.7", False),
        ("192.168.1.2", "192.168.1.7", False),
    ],
)
async def test_a_client_of_another_machine_is_let_in_only_where_someone_said_so(
    listen_host: str, peer: str, refused: bool
) -> None:
    fence = Fence(Border())
    with mitmproxy(fence) as tctx:
        tctx.options.update(listen_host=listen_host)
        client = Client(peername=(peer, 50000), sockname=("", 8080), timestamp_start=0)
        fence.client_connected(client)
        assert bool(client.error) is refused
