"""Sends callbacks, at least once each, signed as Standard Webhooks says: `webhook-id`, `webhook-timestamp`,
`webhook-signature: v1,<base64 of HMAC-SHA256 over "id.timestamp.body">`. A slow receiver holds up nobody else."""

import asyncio
import base64
import hashlib
import hmac
import logging
import random
import time
from collections import Counter as Counts
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
from prometheus_client import Counter
from sqlalchemy import Row

from polar_mitm.rollout.server.board import Board
from polar_mitm.rollout.store.clock import Clock
from polar_mitm.rollout.store.outbox import sent
from polar_mitm.rollout.store.reads import Reads
from polar_mitm.rollout.store.writer import StoreFailed, Writer

logger = logging.getLogger(__name__)

TIMEOUT = aiohttp.ClientTimeout(total=15, connect=5)
AT_ONCE = 64
AT_ONCE_EACH = 4
"""To one receiver."""
TRIES = 15
FIRST_S, LONGEST_S = 1.0, 600.0
"""The time to the next try doubles from the one to the other: 15 tries are spread over an hour and a half."""


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    signed = hmac.new(secret.encode(), f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(signed).decode()


def delay(tries: int) -> float:
    """Seconds to wait after so many tries."""
    return min(FIRST_S * 2.0 ** (tries - 1), LONGEST_S) * random.uniform(0.8, 1.2)


@dataclass(slots=True)
class Postman:
    board: Board
    writer: Writer
    reads: Reads
    clock: Clock
    secret: str
    outcomes: Counter
    tries: int = TRIES
    delay: Callable[[int], float] = delay
    _under_way: dict[str, str] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=TIMEOUT) as client:
            try:
                while True:
                    self.board.callbacks.clear()
                    await self._wait(await self._round(client))
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self.board.callbacks.wait(), seconds)
        except TimeoutError:
            return

    async def _round(self, client: aiohttp.ClientSession) -> float | None:
        """Start what is due. Seconds until there may be more; None: when there is something new."""
        busy = Counts(self._under_way.values())
        full = [origin for origin, count in busy.items() if count >= AT_ONCE_EACH]
        # Asked before the rows are read: one that is delivered meanwhile would still be read as pending.
        held = set(self._under_way)
        try:
            rows = await self.reads.due_callbacks(self.clock.now(), origins=full, limit=2 * AT_ONCE)
            next_at = await self.reads.next_callback_at()
        except Exception as error:  # the border of this worker: it goes on whatever the database says
            logger.warning("callbacks wait for the database: %s", error)
            return 2.0
        for row in rows:
            if len(self._under_way) >= AT_ONCE:
                return None
            if row.id in held or busy[row.origin] >= AT_ONCE_EACH:
                continue
            busy[row.origin] += 1
            self._under_way[row.id] = row.origin
            task = asyncio.create_task(self._send(client, row))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if next_at is None:
            return None
        return max(0.05, next_at - self.clock.now()) if not self._under_way else 0.5

    async def _send(self, client: aiohttp.ClientSession, row: Row[Any]) -> None:
        try:
            error = await self._post(client, row)
            tries = row.attempts + 1
            next_at = None if error is None or tries >= self.tries else self.clock.now() + self.delay(tries)
            outcome = "delivered" if error is None else "dead" if next_at is None else "again"
            self.outcomes.labels(outcome).inc()
            await self.writer.write(partial(sent, id=row.id, error=error, next_at=next_at))
        except StoreFailed as error:
            logger.warning("callback %s may be sent once more: %s", row.id, error)
        finally:
            self._under_way.pop(row.id, None)
            self.board.callbacks.set()

    async def _post(self, client: aiohttp.ClientSession, row: Row[Any]) -> str | None:
        """Why it was not delivered; None when it was."""
        body = row.body.encode()
        timestamp = int(time.time())  # the receiver holds it against its own clock
        headers = {
            "Content-Type": "application/json",
            "webhook-id": row.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self.secret, row.id, timestamp, body),
        }
        try:
            async with client.post(row.url, data=body, headers=headers, allow_redirects=False) as reply:
                return None if 200 <= reply.status < 300 else f"it answered {reply.status}"
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"[:500]
