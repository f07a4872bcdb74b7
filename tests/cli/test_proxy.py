"""`polar proxy` as a person runs it: what it prints, on a pipe and on a terminal."""

import asyncio
import sys
from pathlib import Path

import pytest
from rich.console import Console

from polar_mitm.cli import proxy as command
from tests.capture.samples import make_call
from tests.fakes.vllm import FakeVllm
from tests.proxy.asks import ANTHROPIC
from tests.proxy.stage import LIMIT_S, client

POLAR = Path(sys.executable).with_name("polar")
START_S = 60.0
"""A start on a loaded machine took over 20 s."""


async def test_it_prints_one_plain_line_a_call(proxy_home: Path, tmp_path: Path) -> None:
    ports = ("--port", "0", "--base-url-port", "0")
    async with FakeVllm() as fake, client() as http:
        process = await asyncio.create_subprocess_exec(
            *(POLAR, "proxy", *ports, "--engine-url", fake.url, "--out", str(tmp_path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            assert process.stdout
            printed: list[str] = []
            async with asyncio.timeout(START_S):
                while not any(line.startswith("base URL") for line in printed):
                    printed.append((await process.stdout.readline()).decode())
            base = printed[-1].split()[-1]
            sent = ANTHROPIC.with_key("sk-secret-of-mine")
            body = {**sent.body, "model": "claude\x1b[31m-9"}
            async with http.post(base + sent.target, json=body, headers=sent.headers) as got:
                assert got.status == 200
            async with asyncio.timeout(LIMIT_S):
                while " anthropic  " not in printed[-1]:
                    printed.append((await process.stdout.readline()).decode())
        finally:
            process.terminate()
            await process.wait()
    line = printed[-1].rstrip("\n")
    assert line.isprintable()
    time, provider, model, kind, tokens, finish, seconds = line.split("  ")
    assert len(time) == 8
    assert (provider, model, kind, finish) == ("anthropic", "claude\ufffd[31m-9", "turn", "stop")
    assert tokens == "29→7"
    assert seconds.endswith(" s")
    assert "sk-secret-of-mine" not in "".join(printed)


def test_a_terminal_gets_colours_and_a_pipe_none(monkeypatch: pytest.MonkeyPatch) -> None:
    call = make_call("call_1", response_ids=None)
    shown = {}
    for terminal in (True, False):
        console = Console(force_terminal=terminal, color_system="standard" if terminal else None, width=40)
        monkeypatch.setattr(command, "out", console)
        with console.capture() as captured:
            command.show_call(call, "m")
        shown[terminal] = captured.get()
    assert "\x1b[" in shown[True]
    assert shown[False].isprintable() or shown[False].count("\n") == 1
