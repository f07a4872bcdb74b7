"""A gateway whose harness only sleeps and calls the model. All else is real: proxy, capture, stages, reports."""

import asyncio
import logging
import os
import random
from functools import partial
from pathlib import Path

import aiohttp

from polar_mitm.rollout.gateway.node import Node, pool_of
from polar_mitm.rollout.gateway.settings import Settings
from polar_mitm.rollout.sample import Job, Sample
from polar_mitm.sandboxes.base import SandboxError
from polar_mitm.tasks.evaluators import Evaluation
from polar_mitm.tasks.task_set import Task

SLOWEST_S = 0.4
"""Of a stage."""
CALL_S = 30.0


def turns(session_id: str) -> int:
    """How many calls a session makes that is let run to its end."""
    return random.Random(f"turns of {session_id}").randint(1, 2)


class Simulated(Sample):
    """Its reward is 1 for even samples and 0 for odd ones. Whoever is begun is written into the ledger first."""

    def __init__(
        self, ledger: Path, calls: int | None, job: Job, task: Task, sample: int, attempt: int, session_id: str
    ) -> None:
        """`calls`: how many it makes; None is `turns` of its id."""
        super().__init__(job, task, sample, attempt, session_id)
        self.ledger = ledger
        self.calls = turns(self.session.id) if calls is None else calls
        self.dice = random.Random(session_id)
        self.number = sample

    async def prepare(self) -> None:
        await self._sleep()

    async def run(self, timeout_s: float | None = None) -> None:
        self._begin()
        url = f"http://127.0.0.1:{self.job.proxy.base_url_port}/s/{self.session.id}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {self.session.token}"}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_S)) as client:
            for turn in range(self.calls):
                await self._sleep()
                said = f"This is {self.session.id}. Say hello for the {turn + 1}. time."
                messages = [{"role": "user", "content": said}]
                body = {"model": "fake", "messages": messages, "max_tokens": 16}
                async with client.post(url, json=body, headers=headers) as answer:
                    if answer.status != 200:
                        raise SandboxError(f"a call was answered {answer.status}: {(await answer.text())[:200]}")

    async def grade(self) -> None:
        await self._sleep()
        self._evaluated(Evaluation.of("even", float(self.number % 2 == 0)))
        await self.close("completed", None, 0)

    def _begin(self) -> None:
        """One write at the end of a file is whole, also where several gateways write."""
        handle = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, f"{self.session.id}\n".encode())
        finally:
            os.close(handle)

    async def _sleep(self) -> None:
        await asyncio.sleep(self.dice.uniform(0, SLOWEST_S))


def serve(settings: Settings, ledger: Path, calls: int | None = None) -> None:
    """Run until the process is ended."""

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")

    async def main() -> None:
        async with pool_of(settings) as engines:
            await Node(settings, engines, make=partial(Simulated, ledger, calls)).serve()

    asyncio.run(main())
