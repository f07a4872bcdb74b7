"""Ways out of a sandbox, tried from inside each: all of them are refused. `docs/security.md` lists them."""

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from polar_mitm.harnesses.base import Intercept
from polar_mitm.proxy.sessions import Session
from polar_mitm.rollout.ways_in import open_ways
from polar_mitm.sandboxes import SANDBOXES
from tests.needs import need
from tests.proxy.stage import Stage, staged
from tests.sandboxes.conftest import Run, make_run

pytestmark = pytest.mark.live

TRIES = Path(__file__).with_name("tries.py")
SECURITY = Path(__file__).parents[2] / "docs" / "security.md"


@dataclass
class Outside:
    """What a prisoner would like to reach, and whether it was."""

    port: int
    udp_port: int
    abstract: str
    unix: Path
    reached: list[str] = field(default_factory=list)


@asynccontextmanager
async def outside(folder: Path) -> AsyncIterator[Outside]:
    """Listeners of the host's, on every address."""
    reached: list[str] = []
    (folder / "id_secret").write_text("secret")

    def serve(kind: str):  # type: ignore[no-untyped-def]  # a callback of asyncio's
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.append(kind)
            writer.write(b"hello")
            writer.close()

        return greet

    class Datagrams(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
            reached.append("udp")
            assert isinstance(self.transport, asyncio.DatagramTransport)
            self.transport.sendto(b"hello", address)

    abstract = f"polar-escape-{os.getpid()}-{folder.name}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + abstract)
        tcp = await asyncio.start_server(serve("tcp"), "0.0.0.0", 0)
        named = await asyncio.start_unix_server(serve("unix"), folder / "host.sock")
        hidden = await asyncio.start_unix_server(serve("abstract"), sock=listener)
        udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(Datagrams, ("0.0.0.0", 0))
        async with tcp, named, hidden:
            port, udp_port = tcp.sockets[0].getsockname()[1], udp.get_extra_info("sockname")[1]
            yield Outside(port, udp_port, abstract, folder / "host.sock", reached)
        udp.close()


def addresses() -> list[str]:
    """The host's own, outside loopback."""
    return [
        address.address
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]


async def tried(on: Stage, run: Run, intercept: Intercept, there: Outside) -> dict[str, str]:
    """Run all tries in the sandbox, as a session of the proxy with another session beside it."""
    own, other = on.open_session(), on.open_session()
    secrets = run.folder / "tests"
    secrets.mkdir()
    (secrets / "test.sh").write_text("echo the expected answer\n")
    about = {
        "tcp": {
            "a public address, port 443": ["1.1.1.1", 443],
            "a public address, port 22": ["1.1.1.1", 22],
            "a public IPv6 address": ["2606:4700:4700::1111", 443],
            "the host's loopback": ["127.0.0.1", there.port],
            "the engine": ["127.0.0.1", int(on.fake.url.rpartition(":")[2])],
            "the proxy's own port": ["127.0.0.1", on.proxy.port],
            **{f"the host at {address}": [address, there.port] for address in addresses()},
        },
        "udp": {
            "the host's loopback": ["127.0.0.1", there.udp_port],
            **{f"the host at {address}": [address, there.udp_port] for address in addresses()},
        },
        "abstract": there.abstract,
        "unix": str(there.unix),
        "files": {
            "the tests": str(secrets / "test.sh"),
            "another session's calls": str(other.log.folder.calls),
            "the proxy's certificate key": str(on.proxy.confdir / "mitmproxy-ca.pem"),
            "a secret of the host's user": str(there.unix.with_name("id_secret")),
            "the host's environment": f"/proc/{os.getpid()}/environ",
        },
        "sessions": str(on.out),
        "marker_of_others": "polar-escape-neighbour",
    }
    assert other.log.folder.record.exists()
    async with AsyncExitStack() as stack:
        spec = run.spec()
        await open_ways(
            stack, spec, intercept, session=own, sessions=on.border.sessions, proxy=on.proxy, layout=run.layout
        )
        if spec.sockets:
            about |= {"base": f"http://127.0.0.1:{run.layout.base_port}", "key": own.token, "paths": paths(on, other)}
        about["key"] = own.token
        spec.argv = [f"{sys.base_prefix}/bin/python3", "-I", str(TRIES), json.dumps(about)]
        spec.read_only = [Path(sys.base_prefix), TRIES.parent]
        ended = await run.sandbox.run(spec)
    assert ended.code == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout)
    return found


def paths(on: Stage, other: Session) -> dict[str, tuple[str, str, str | None]]:
    """Requests that polar must not serve."""
    engine = on.fake.url.removeprefix("http://")
    return {
        "the engine by its address": ("/metrics", "GET", engine),
        "the engine's control of weights": ("/pause", "POST", engine),
        "the engine's tokens route": ("/inference/v1/generate", "POST", engine),
        "mitmproxy's own page": ("/", "GET", "mitm.it"),
        "mitmweb's flows": ("/flows", "GET", None),
        "mitmweb's options": ("/options", "GET", None),
        "a host of the internet": ("/", "GET", "example.org"),
        "another session's calls by path": (f"/s/{other.id}/calls.jsonl", "GET", None),
    }


@pytest.mark.parametrize(
    ("sandbox", "intercept"),
    [
        ("bwrap", "base-url"),
        ("bwrap", "hosts"),
        ("bwrap", "transparent"),
        ("container", "base-url"),
        ("container", "hosts"),
        ("container", "transparent"),
    ],
)
async def test_no_try_gets_out(sandbox: str, intercept: Intercept, proxy_home: Path, tmp_path: Path, ca: Path) -> None:
    need(SANDBOXES[sandbox].check())
    neighbour = psutil.Popen(["sh", "-c", "sleep 60; : polar-escape-neighbour"])
    try:
        async with staged(tmp_path / "out", names=True) as on, outside(tmp_path) as there:
            (tmp_path / "run").mkdir()
            found = await tried(on, make_run(sandbox, tmp_path / "run", ca), intercept, there)
    finally:
        for process in [*neighbour.children(recursive=True), neighbour]:
            process.kill()
        neighbour.wait()
    assert there.reached == []
    out = {name: came for name, came in found.items() if not came.startswith("refused: ")}
    if intercept == "transparent":
        # Every address is polar's there: the connection stands, and what is at its end speaks TLS or nothing.
        assert out.pop("tcp a public address, port 443", "OPEN: b''") == "OPEN: b''"
    assert out == {}
    listed = SECURITY.read_text()
    names = [re.sub(r"^(tcp|udp|read|proxy:) ", "", name).partition(" at ")[0] for name in found]
    missing = [name for name in names if name not in listed]
    assert missing == [], "docs/security.md does not list these"


async def test_a_key_of_another_session_opens_nothing_from_a_sandbox(
    proxy_home: Path, tmp_path: Path, ca: Path
) -> None:
    need(SANDBOXES["bwrap"].check())
    async with staged(tmp_path / "out") as on:
        own, other = on.open_session(), on.open_session()
        run = make_run("bwrap", tmp_path, ca)
        async with AsyncExitStack() as stack:
            spec = run.spec("/bin/sh", "-c", "")
            await open_ways(
                stack, spec, "base-url", session=own, sessions=on.border.sessions, proxy=on.proxy, layout=run.layout
            )
            body = '{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}'
            lines = [f"POST /s/{other.id}/v1/messages HTTP/1.1", "Host: x", f"x-api-key: {other.token}"]
            lines += [f"Content-Length: {len(body)}", "Connection: close", "", body]
            request = "\\r\\n".join(lines)
            spec.argv[2] = f"printf '{request}' | socat -t 5 - TCP:127.0.0.1:{run.layout.base_port}"
            await run.sandbox.run(spec)
        assert on.calls(other) == []
        assert [call.identity.session_id for call in on.calls(own)] == [own.id]
