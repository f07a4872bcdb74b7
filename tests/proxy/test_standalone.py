"""The addons under a real mitmdump, as its own process: what it serves, what it refuses to start with, how it ends.

The same addons in this process are tested too, where a process would show nothing more.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.session import SessionFolder
from polar_mitm.proxy.addons import standalone
from polar_mitm.proxy.master import EmbeddedProxy, ProxyFailed
from tests.conftest import Sentinel
from tests.fakes.vllm import RENDER, FakeVllm, Reply
from tests.ports import free_port, wait_for_port
from tests.proxy.asks import ANTHROPIC, CHAT, JSON_ASKS, Ask, streamed
from tests.proxy.stage import Wire, client, until

ADDON = Path(__file__).parents[2] / "addons" / "polar.py"
MITMDUMP = Path(sys.executable).with_name("mitmdump")
START_S = 60.0
"""A start on a loaded machine took over 20 s."""


@dataclass
class Dump:
    process: asyncio.subprocess.Process
    port: int
    out: Path
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def sessions(self) -> list[SessionFolder]:
        return [SessionFolder(path) for path in sorted(self.out.glob("ses_*"))]

    async def ended(self) -> int:
        async with asyncio.timeout(START_S):
            return await self.process.wait()

    async def says(self, words: str) -> None:
        await until(lambda: words in self.text, seconds=START_S)


@pytest.fixture
def folder(proxy_home: Path, tmp_path: Path) -> Path:
    (tmp_path / "ca").symlink_to(proxy_home / "ca")
    (proxy_home / "ca").mkdir(exist_ok=True)
    return tmp_path


@asynccontextmanager
async def mitmdump(folder: Path, *arguments: str, script: Path = ADDON) -> AsyncIterator[Dump]:
    """`mitmdump -s` on a free port; killed at the end if it still runs."""
    port, out, log = free_port(), folder / "out", folder / "log"
    command = [*("-s", str(script)), *arguments]
    for option in (f"confdir={folder / 'ca'}", f"listen_port={port}", f"polar_out={out}"):
        command += ["--set", option]
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(MITMDUMP, *command, stdout=file, stderr=file)
    try:
        yield Dump(process, port, out, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def engine(url: str) -> tuple[str, str]:
    return "--set", f"polar_engine_url={url}"


async def test_mitmdump_serves_one_session_for_anyone_and_closes_it_when_it_ends(folder: Path) -> None:
    async with FakeVllm() as fake, mitmdump(folder, *engine(fake.url)) as dump, client() as http:
        await dump.says("calls go to")
        for ask in JSON_ASKS:
            url = f"http://{ask.host}{ask.target}"
            headers = ask.with_key("sk-whatever").headers
            async with http.post(url, json=ask.body, headers=headers, proxy=f"http://127.0.0.1:{dump.port}") as got:
                assert got.status == 200, await got.text()
        (session,) = dump.sessions
        assert session.load().status == "open"
        assert str(session.calls) in dump.text
        dump.process.send_signal(signal.SIGINT)
        assert await dump.ended() == 0
        record = session.load()
        assert (record.status, record.calls) == ("completed", 4)
        assert record.engine and (record.engine.url, record.engine.model) == (fake.url, "fake")
        assert [call.origin.provider for call in read_calls(session.calls)] == [ask.provider for ask in JSON_ASKS]
        assert session.flows.stat().st_size > 0
        for call in read_calls(session.calls):
            (line,) = (line for line in dump.text.splitlines() if f" {call.origin.provider}  " in line)
            assert call.identity.session_id in line and "  turn  " in line and "  stop  " in line


async def test_a_reload_that_breaks_the_addon_leaves_the_fence_and_one_that_mends_it_serves_again(
    folder: Path, sentinel: Sentinel
) -> None:
    script = folder / "polar.py"
    script.write_text(ADDON.read_text())
    async with FakeVllm() as fake, mitmdump(folder, *engine(fake.url), script=script) as dump, client() as http:
        proxy = f"http://127.0.0.1:{dump.port}"

        async def status(url: str) -> int:
            ask = CHAT.with_key("sk")
            async with http.post(url + ask.target, json=ask.body, headers=ask.headers, proxy=proxy, ssl=False) as got:
                return got.status

        await dump.says("calls go to")
        assert await status(f"http://{sentinel.address}") == 200

        script.write_text("this is no Python\n")
        await dump.says("SyntaxError")
        for scheme in ("http", "https"):
            assert await status(f"{scheme}://{sentinel.address}") == 403
        async with Wire(dump.port) as wire:
            await wire.send(f"CONNECT {sentinel.address} HTTP/1.1\r\n\r\n\x00\x01 not tls, not http\r\n\r\n".encode())
            wire.writer.write_eof()
            await asyncio.sleep(0.2)

        script.write_text(ADDON.read_text() + "\n")
        await until(lambda: dump.text.count("calls go to") == 2, seconds=START_S)
        assert await status("http://api.openai.com") == 200
        first, second = dump.sessions
        assert first.load().status == "completed"
        assert second.load().status == "open"


REFUSED: list[tuple[list[str], int, str]] = [
    (["--set", "polar_grace=soon"], 1, "polar_grace: 'soon' is not a number of seconds of at least 0"),
    (["--set", "ignore_hosts=example.com"], 1, "polar: option ignore_hosts must stay []"),
    (["--mode", "upstream:http://127.0.0.1:9"], 1, "polar: mode upstream:http://127.0.0.1:9 can let traffic"),
    (["--set", "polar_typo=1"], 3, "polar: unknown option polar_typo"),
    (["--set", "polar_out=a", "--set", "polar_out=b"], 1, "polar: Received multiple values for polar_out"),
    ([], 3, "polar: engine at http://127.0.0.1:9: "),
]


async def test_mitmdump_does_not_run_on_a_bad_option_or_without_an_engine(folder: Path) -> None:
    two_at_a_time = asyncio.Semaphore(2)

    async def refused(number: int) -> tuple[int, str, list[SessionFolder]]:
        here = folder / str(number)
        here.mkdir()
        (here / "ca").symlink_to(folder / "ca")
        async with two_at_a_time, mitmdump(here, *engine("http://127.0.0.1:9"), *REFUSED[number][0]) as dump:
            return await dump.ended(), dump.text, dump.sessions

    for (_, code, says), got in zip(REFUSED, await asyncio.gather(*map(refused, range(len(REFUSED)))), strict=True):
        assert (got[0], got[2]) == (code, []), got[1]
        assert says in got[1]


async def test_mitmdump_does_not_run_when_the_addon_cannot_be_imported(folder: Path) -> None:
    script = folder / "polar.py"
    script.write_text(ADDON.read_text().replace("polar_mitm.proxy.addons", "polar_mitm.proxy.addonz"))
    async with mitmdump(folder, script=script) as dump:
        assert await dump.ended() == 1
        assert "No module named 'polar_mitm.proxy.addonz'" in dump.text


async def test_mitmdump_does_not_run_on_an_engine_that_gives_no_token_ids(folder: Path) -> None:
    async with FakeVllm(probe=Reply(token_ids=False)) as fake, mitmdump(folder, *engine(fake.url)) as dump:
        assert await dump.ended() == 3
        assert f"engine at {fake.url}: the engine gave no prompt token ids" in dump.text
        assert "return_token_ids" in dump.text
        assert dump.sessions == []


async def test_an_eager_connection_strategy_is_overridden_before_anything_can_be_dialled(
    folder: Path, sentinel: Sentinel
) -> None:
    eager = ("--set", "connection_strategy=eager")
    async with FakeVllm() as fake, mitmdump(folder, *engine(fake.url), *eager) as dump:
        await dump.says("calls go to")
        async with Wire(dump.port) as wire:
            await wire.send(f"CONNECT {sentinel.address} HTTP/1.1\r\n\r\n".encode())
            assert (await wire.response())[0] == 200


# In this process


async def test_a_call_that_comes_while_the_engine_is_being_asked_waits_for_the_session(folder: Path) -> None:
    answered, port = asyncio.Event(), free_port()
    async with FakeVllm(probe=Reply(hold=answered)) as fake, client() as http:
        options: dict[str, Any] = {"polar_engine_url": fake.url, "polar_out": str(folder / "out")}
        proxy = EmbeddedProxy(standalone(), base_url_port=port, **options)
        starting = asyncio.create_task(proxy.__aenter__())

        async def call(ask: Ask) -> int:
            async with http.post(f"http://127.0.0.1:{port}{ask.target}", json=ask.body, headers=ask.headers) as got:
                return got.status

        await asyncio.to_thread(wait_for_port, port, seconds=START_S)
        calls = [asyncio.create_task(call(ask)) for ask in (ANTHROPIC, streamed(CHAT))]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in (starting, *calls))
        answered.set()
        assert await asyncio.gather(*calls) == [200, 200]
        await starting
        (path,) = (folder / "out").glob("ses_*")
        await proxy.stop()
        assert len(list(read_calls(SessionFolder(path).calls))) == 2
        assert SessionFolder(path).load().status == "completed"


@pytest.mark.parametrize(
    ("wanted", "lacks", "used"),
    [("", (), "exact"), ("chat", (), "chat"), ("exact", (), "exact"), ("", [RENDER], "chat")],
)
async def test_prompts_go_to_the_engine_as_the_option_says_or_as_it_can(
    wanted: str, lacks: Sequence[str], used: str, folder: Path
) -> None:
    async with FakeVllm(lacks=lacks) as fake, client() as http:
        options: dict[str, Any] = {"polar_engine_url": fake.url, "polar_out": str(folder / "out")}
        async with EmbeddedProxy(standalone(), **options, polar_tokens=wanted) as proxy:
            url = f"http://127.0.0.1:{proxy.base_url_port}{CHAT.target}"
            async with http.post(url, json=CHAT.body, headers=CHAT.headers) as got:
                assert got.status == 200
        (path,) = (folder / "out").glob("ses_*")
    session, (call,) = SessionFolder(path).load(), read_calls(SessionFolder(path).calls)
    assert (session.tokens, call.engine and call.engine.tokens) == (used, used)
    assert (session.tokens_reason is None) == (not lacks)


async def test_several_engines_share_the_conversations(folder: Path) -> None:
    async with FakeVllm() as one, FakeVllm() as other, client() as http:
        options: dict[str, Any] = {"polar_engine_url": f"{one.url}, {other.url}", "polar_out": str(folder / "out")}
        async with EmbeddedProxy(standalone(), **options) as proxy:
            url = f"http://127.0.0.1:{proxy.base_url_port}{CHAT.target}"

            async def ask(text: str) -> None:
                async with http.post(url, json=CHAT.saying(text).body, headers=CHAT.headers) as got:
                    assert got.status == 200

            one.script = other.script = [Reply(delay_s=0.2)]
            await asyncio.gather(*(ask(text) for text in "abcd"))
            assert (len(one.requests), len(other.requests)) == (2, 2)
            await one.stop()
            await asyncio.gather(*(ask(text) for text in "abcd"))


async def test_a_start_that_is_cancelled_leaves_nothing_behind(folder: Path) -> None:
    port = free_port()
    async with FakeVllm(probe=Reply(hold=asyncio.Event())) as fake:
        options: dict[str, Any] = {"polar_engine_url": fake.url, "polar_out": str(folder / "out")}
        starting = asyncio.create_task(EmbeddedProxy(standalone(), base_url_port=port, **options).__aenter__())
        await asyncio.to_thread(wait_for_port, port, seconds=START_S)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(starting, 5)
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", port)
        assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("polar_grace", "-1", "polar_grace: '-1' is not a number of seconds of at least 0"),
        ("polar_grace", "nan", "polar_grace: 'nan' is not"),
        ("polar_keepalive", "0", "polar_keepalive: '0' is not a number of seconds of at least 0.1"),
        ("polar_keepalive", "inf", "polar_keepalive: 'inf' is not"),
        ("polar_session_mb", "0", "polar_session_mb: '0' is not a number of megabytes of at least 1"),
        ("polar_engine_url", "localhost:8000", "polar_engine_url: 'localhost:8000' is no http"),
        ("polar_engine_url", "http://a,ftp://b", "polar_engine_url: 'ftp://b' is no http"),
        ("polar_tokens", "ids", "polar_tokens: 'ids' is neither exact nor chat"),
        ("polar_grace", 5, "Expected <class 'str'> for polar_grace"),
        ("polar_gracee", "5", "Unknown options: polar_gracee"),
    ],
)
async def test_a_bad_option_is_refused_by_name(name: str, value: Any, says: str, folder: Path) -> None:
    with pytest.raises(ProxyFailed) as failed:
        async with EmbeddedProxy(standalone(), **{name: value}):
            pass
    assert says in str(failed.value)
