"""Whether sessions that are over stay in memory: a proxy in this process, one session after the other.

Once as Python's collector works by itself, once with a collection after each session: what stays then is what is held.
"""

import argparse
import asyncio
import gc
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil

from bench.report import machine, markdown, show, write_section
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, streamed
from tests.proxy.stage import Stage, staged

CALLS = 5
"""Of a session."""
PROMPT = "word " * 8000
COLUMNS = ("sessions that are over", "MiB", "MiB, collected after each")
TEXT = """\
`make bench-memory`, on {machine}: resident memory of a process with the proxy and a stand-in engine, sessions of
{calls} streamed calls of 40 kB one after the other, first as Python's collector works by itself, then with a collection
after each session: what stays then is held. What a session was is garbage once it is over, and none of it is held.


{table}"""


async def measure(sessions: int, every: int, out: Path, *, collected: bool) -> list[int]:
    """Resident bytes before the first session and after each `every` of them."""
    me, seen = psutil.Process(), []
    async with staged(out, *[Reply("one")] * (CALLS * (sessions + 1))) as on:
        for number in range(sessions + 1):
            await _session(on, number)
            if collected:
                gc.collect()
            if number % every == 0:
                seen.append(me.memory_info().rss)
    return seen


async def _session(on: Stage, number: int) -> None:
    session = on.open_session()
    for call in range(CALLS):
        got = await on.post(streamed(ANTHROPIC).saying(f"{PROMPT}{number} {call}"), session=session)
        if got.status != 200:
            raise RuntimeError(f"call {call} of session {number} was answered {got.status}")
    on.border.sessions.remove(session)
    session.log.close("completed")
    on.sessions.remove(session)
    on.fake.requests.clear()


def _apart(sessions: int, every: int, collected: bool) -> list[int]:
    """`measure` in a new process."""
    with tempfile.TemporaryDirectory() as home, ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_measured, sessions, every, Path(home), collected).result()


def _measured(sessions: int, every: int, home: Path, collected: bool) -> list[int]:
    os.environ["POLAR_HOME"] = str(home)
    return asyncio.run(measure(sessions, every, home / "out", collected=collected))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory")
    parser.add_argument("--sessions", type=int, default=300)
    given = parser.parse_args()
    every = max(1, given.sessions // 6)
    seen = [_apart(given.sessions, every, collected) for collected in (False, True)]
    rows = [
        (f"{number * every:,}", f"{free / (1 << 20):.1f}", f"{collected / (1 << 20):.1f}")
        for number, (free, collected) in enumerate(zip(*seen, strict=True))
    ]
    show("memory", COLUMNS, rows)
    write_section("Memory", TEXT.format(machine=machine(), calls=CALLS, table=markdown(COLUMNS, rows)))


if __name__ == "__main__":
    main()
