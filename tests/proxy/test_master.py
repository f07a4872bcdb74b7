"""The embedded mitmproxy: several at once, how it starts and fails to, and that nothing is left when it ends."""

import asyncio
import logging
import socket
import stat
import sys
from pathlib import Path

import aiohttp
import pytest
from mitmproxy.io import FlowWriter
from mitmproxy.test import tflow

from polar_mitm.proxy.addons import core
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.master import EmbeddedProxy, FlowReader, ProxyFailed
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.ports import free_port
from tests.proxy.asks import ANTHROPIC, CHAT, streamed
from tests.proxy.stage import LIMIT_S, Wire, client, until


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_two_proxies_in_one_process_serve_their_own_sessions(stage: Staged) -> None:
    async with stage(Reply("from the first")) as first, stage(Reply("from the second")) as second:
        for on, words in ((first, b"from the first"), (second, b"from the second"), (first, b"from the first")):
            assert words in (await on.post(CHAT)).body
            assert words in (await on.post_through(ANTHROPIC)).body
            slow = streamed(ANTHROPIC)
            on.border.grace_s = 0
            assert words in (await on.post(slow)).body
        for here, there in ((first, second), (second, first)):
            url = f"http://127.0.0.1:{here.proxy.base_url_port}{CHAT.target}"
            headers = CHAT.with_key(there.session.token).headers
            assert (await here.request("POST", url, json=CHAT.body, headers=headers)).status == 401
        assert (len(first.calls()), len(second.calls())) == (6, 3)


async def test_a_proxy_serves_on_while_another_one_comes_and_goes(stage: Staged) -> None:
    async with stage() as on:
        async with stage(Reply("the other")) as other:
            assert (await other.post(CHAT)).ok
        assert (await on.post(CHAT)).ok
        with pytest.raises(ProxyFailed):
            async with stage(rawtcp=True):
                pass
        assert (await on.post_through(streamed(ANTHROPIC))).ok
        assert len(on.calls()) == 2


async def test_an_ended_proxy_leaves_no_port_and_no_connection_open(stage: Staged) -> None:
    async with stage(Reply(delay_s=30)) as on:
        ports = (on.proxy.port, on.proxy.base_url_port)
        assert all(map(listens, ports))
        async with Wire(on.proxy.base_url_port) as idle, Wire(on.proxy.port) as tunnel:
            await tunnel.tunnel("api.openai.com", on.session, on.trust)
            waiting = asyncio.create_task(on.post(CHAT))
            await until(lambda: on.fake.running == 1)
            await asyncio.wait_for(on.proxy.stop(), 3)
            assert not any(map(listens, ports))
            assert await idle.rest() == b""
            assert await tunnel.rest() == b""
            await asyncio.wait([waiting])
            waiting.exception()  # cut off, or answered 499: the call's record is what counts
        (call,) = on.calls()
        assert call.error
        assert (call.delivery.status, call.error.fault, call.error.what) == (
            "aborted",
            "polar",
            "polar was ended before the answer",
        )
        # A hook may be writing its flow yet.
        await until(lambda: not proxy_tasks(), seconds=2)


def proxy_tasks() -> set[str]:
    names = {task.get_name() for task in asyncio.all_tasks()}
    return {name for name in names if "mitmproxy" in name or "client" in name or "handle_hook" in name}


async def test_the_handlers_of_an_ended_proxy_are_off_the_root_logger(stage: Staged) -> None:
    before = logging.getLogger().handlers[:]
    async with stage():
        pass
    with pytest.raises(ProxyFailed):
        async with stage(rawtcp=True):
            pass
    assert logging.getLogger().handlers == before


@pytest.mark.parametrize("which", ["port", "base_url_port"])
async def test_a_port_in_use_is_named_and_the_other_one_is_let_go(which: str, stage: Staged) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port, other = taken.getsockname()[1], free_port()
        ports = {"port": other, "base_url_port": other, which: port}
        with pytest.raises(ProxyFailed, match=f"failed to listen on 127.0.0.1:{port}"):
            async with stage(**ports):
                pass
        assert not listens(other)


async def test_the_ports_are_those_asked_for_on_loopback_only(stage: Staged) -> None:
    port, base_url_port = free_port(), free_port()
    async with stage(port=port, base_url_port=base_url_port) as on:
        assert (on.proxy.port, on.proxy.base_url_port) == (port, base_url_port)
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.2", port)) != 0
        assert on.proxy.ca.read_text().startswith("-----BEGIN CERTIFICATE-----")
        assert stat.S_IMODE((on.proxy.ca.parent / "mitmproxy-ca.pem").stat().st_mode) == 0o600


async def test_wait_ends_when_mitmproxy_does(stage: Staged) -> None:
    async with stage() as on:
        waiting = asyncio.create_task(on.proxy.wait())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await on.proxy.stop()
        await asyncio.wait_for(waiting, 1)


async def test_it_may_be_stopped_twice(stage: Staged) -> None:
    async with stage() as on:
        await on.proxy.stop()
        await on.proxy.stop()


async def test_the_same_proxy_inside_mitmweb_shows_its_flows(proxy_home: Path) -> None:
    async with EmbeddedProxy(core(Border()), web_port=free_port()) as proxy, client() as http:
        async with http.get(f"http://127.0.0.1:{proxy.base_url_port}/healthz") as got:
            assert got.status == 200
        assert await shown(http, proxy.web_url) == ["/healthz"]
        assert proxy.web_port and listens(proxy.web_port)
    assert not listens(proxy.web_port)


async def test_mitmweb_opens_a_file_of_flows_and_listens_for_nothing_else(proxy_home: Path, tmp_path: Path) -> None:
    path = tmp_path / "flows.mitm"
    with path.open("wb") as file:
        FlowWriter(file).add(tflow.tflow())
    async with FlowReader(path, free_port()) as reader, client() as http:
        async with asyncio.timeout(LIMIT_S):
            while not (paths := await shown(http, reader.web_url)):  # noqa: ASYNC110  the file is read in the background
                await asyncio.sleep(0.05)
        assert paths == ["/path"]


async def test_a_port_of_mitmweb_in_use_is_named(proxy_home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ProxyFailed, match=f"Web server failed to listen on 127.0.0.1:{port}"):
            async with EmbeddedProxy(core(Border()), web_port=port):
                pass


BRIEF = """\
import asyncio
from polar_mitm.proxy.addons import core
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.master import EmbeddedProxy

async def brief():
    async with EmbeddedProxy(core(Border()), names=True):
        pass

asyncio.run(brief())
"""


async def test_a_process_whose_proxy_served_names_ends_well(proxy_home: Path) -> None:
    """Without a wait for mitmproxy's threads more than half of them end in a segmentation fault."""
    started = [await asyncio.create_subprocess_exec(sys.executable, "-c", BRIEF) for _ in range(3)]
    assert [await process.wait() for process in started] == [0] * 3


async def shown(http: aiohttp.ClientSession, web_url: str) -> list[str]:
    """The paths of the flows on mitmweb's page."""
    page, _, token = web_url.partition("/?token=")
    async with http.get(f"{page}/flows", headers={"Authorization": f"Bearer {token}"}) as got:
        assert got.status == 200
        return [flow["request"]["path"] for flow in await got.json()]
