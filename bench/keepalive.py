"""Hold one streamed call of each provider open for long, as a busy engine does, and measure the longest silence.

python -m bench.keepalive [seconds, 60 when left out]

What 20 minutes or more gave is written into docs/benchmarks.md.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

import aiohttp

from bench.report import machine, markdown, write_section
from tests.fakes.vllm import Reply
from tests.proxy.asks import STREAM_ASKS, Ask
from tests.proxy.stage import Stage, staged

ALLOWED_S = 11.0
"""Ten seconds is what is promised; the rest is for a busy machine."""
PROMISED_S = 1200.0
"""How long a stream must live without an answer."""


async def longest_silence(on: Stage, ask: Ask, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    sent = ask.with_key(on.session.token)
    patient = aiohttp.ClientTimeout(total=None)
    url = on.base_url() + sent.target
    async with on.http.post(url, json=sent.body, headers=sent.headers, timeout=patient) as response:
        last = loop.time()
        longest, body = 0.0, b""
        while piece := await response.content.readany():
            longest, last = max(longest, loop.time() - last), loop.time()
            body += piece
    assert body.endswith(b"\n\n") or body.endswith(b"]"), body[-80:]
    assert ask.keepalives(body) >= seconds / ALLOWED_S - 1
    return longest


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with staged(Path(folder), Reply(delay_s=seconds)) as on:
            silences = await asyncio.gather(*(longest_silence(on, ask, seconds) for ask in STREAM_ASKS))
    for ask, silence in zip(STREAM_ASKS, silences, strict=True):
        print(f"{ask.provider:18} {seconds:.0f} s open, longest silence {silence:.2f} s")
    assert max(silences) < ALLOWED_S
    if seconds >= PROMISED_S:
        publish(seconds, dict(zip(map(str, STREAM_ASKS), silences, strict=True)))


def publish(seconds: float, silences: dict[str, float]) -> None:
    """Write the section of docs/benchmarks.md. `silences` are seconds, by provider."""
    rows = [(name, f"{seconds:,.0f}", f"{silence:.2f}") for name, silence in silences.items()]
    text = (
        f"`python -m bench.keepalive {seconds:.0f}`, on {machine()}: a streamed call of each\n"
        "provider, all at once, held open so long by an engine that does not answer, and the longest time in which a\n"
        "client heard nothing. It may be 10 s and what a busy machine adds.\n\n"
    )
    write_section("Keep-alives", text + markdown(("provider", "seconds open", "longest silence, s"), rows))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
