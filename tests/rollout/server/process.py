"""The rollout server as a process that can be killed."""

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.ports import free_port
from tests.rollout.server.conftest import PATIENCE_S, SECRET, TOKEN, eventually

STARTS_S = 120.0
"""To import everything takes three seconds of an idle processor."""


@dataclass
class Process:
    """`await start()`, `await kill()`, and again; the port stays the same."""

    state: Path
    database: str
    heartbeat_s: float = 1.0
    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S)

    async def start(self) -> None:
        secrets = {
            "POLAR_ROLLOUT_TOKEN": TOKEN,
            "POLAR_CALLBACK_SECRET": SECRET,
            "POLAR_ROLLOUT_DATABASE": self.database,
        }
        self.state.mkdir(exist_ok=True)
        arguments = ["--state", self.state, "--port", self.port, "--heartbeat", self.heartbeat_s]
        with (self.state / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", "from polar_mitm.cli import app; app()", "rollout", "serve"),
                *map(str, arguments),
                env=os.environ | secrets,
                stdout=log,
                stderr=log,
            )
        await eventually(self._answers, seconds=STARTS_S)

    async def _answers(self) -> bool:
        assert self.process
        assert self.process.returncode is None, (self.state / "log").read_text()
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            with contextlib.suppress(httpx.TransportError):
                return (await client.get(f"{self.url}/healthz")).status_code == 200
        return False

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> int:
        assert self.process
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)
