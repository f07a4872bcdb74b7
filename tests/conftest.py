"""Fixtures that several rooms' tests share: the proxy with its engine, and a listener that nothing may reach."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import cast

import pytest
from mitmproxy import certs
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from polar_mitm.prompts import Tokens
from tests.live_engine import engine_url
from tests.proxy.stage import Stage, staged

__all__ = ["engine_url"]

type Staged = Callable[..., AbstractAsyncContextManager[Stage]]


AT_THE_ENGINE = ("tests/live/", "tests/conformance/", "tests/wire/test_oracle.py", "tests/harbor/test_harness.py")


class ByFile(LoadScopeScheduling):
    """A file is done by one process, and all that asks the real engine by one: some of it holds the engine still."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "the engine" if file.startswith(AT_THE_ENGINE) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One POLAR_HOME for all tests of the proxy: its certificate authority takes a second to make."""
    return tmp_path_factory.mktemp("polar-home")


@pytest.fixture
def proxy_home(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_HOME", str(shared_home))
    # Reading the same key took most of the time of a start: 50 ms, twice.
    monkeypatch.setattr(certs, "load_pem_private_key", read_key)
    return shared_home


read_key = cache(certs.load_pem_private_key)


@pytest.fixture(params=["chat", "exact"])
def tokens(request: pytest.FixtureRequest) -> Tokens:
    """Both ways in which prompts go to the engine: what a client sees must be the same."""
    return cast("Tokens", request.param)


@pytest.fixture
def stage(proxy_home: Path, tmp_path: Path, tokens: Tokens) -> Staged:
    """`async with stage(Reply(...), grace_s=0.3) as on:` gives a proxy with one open session."""
    return partial(staged, tmp_path / "out", tokens=tokens)


@dataclass
class Sentinel:
    """Stands for the internet, on loopback: a connection to it is a leak."""

    host: str
    port: int
    connections: int = 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@asynccontextmanager
async def watching(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Sentinel]:
    """Counts the connections it gets; the test that lets one through fails at the end, whatever it asserts itself."""

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        watched.connections += 1
        writer.close()

    server = await asyncio.start_server(count, host, port)
    watched = Sentinel(*server.sockets[0].getsockname()[:2])
    yield watched
    server.close()
    assert watched.connections == 0, "something was dialled"


@pytest.fixture
async def sentinel() -> AsyncIterator[Sentinel]:
    async with watching() as watched:
        yield watched
