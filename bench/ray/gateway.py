"""A gateway with the options that an actor gives it, and a harness that only sleeps and calls the model."""

import argparse
import asyncio
import logging
from functools import partial
from pathlib import Path

from bench.chaos.simulated import Simulated
from polar_mitm.rollout.cluster.actor import TOKEN
from polar_mitm.rollout.gateway.node import Node, pool_of
from polar_mitm.rollout.gateway.settings import Settings, Workers
from polar_mitm.rollout.server.settings import secret

TURN_S = 8.0
"""Slowest, before each of a session's calls: long enough for many to run at once on two cores."""


class Slow(Simulated):
    async def run(self, timeout_s: float | None = None) -> None:
        await asyncio.sleep(self.dice.uniform(TURN_S / 2, TURN_S))
        await super().run(timeout_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--server-url", "--engine-url", "--name", "--host"):
        parser.add_argument(name, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--running", type=int, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    token = secret("token", None, TOKEN)
    assert token
    settings = Settings(
        server_url=given.server_url,
        token=token,
        engine_urls=[given.engine_url],
        state=given.state,
        name=given.name,
        host=given.host,
        workers=Workers(preparing=8, ready=8, running=given.running, grading=4, waiting=given.running // 2),
    )

    async def serve() -> None:
        async with pool_of(settings) as engine:
            await Node(settings, engine, make=partial(Slow, given.ledger)).serve()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
