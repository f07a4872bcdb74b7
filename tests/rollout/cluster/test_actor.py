"""The keeper of a gateway's process, without Ray: programs of a few lines stand in for the gateway."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from polar_mitm.rollout.cluster import actor
from polar_mitm.rollout.cluster.actor import GatewayActor
from polar_mitm.rollout.cluster.placing import PROGRAM, Placing, Secret

PATIENCE_S = 60.0
URL = "http://127.0.0.1:1"
TELLS = "import os, sys; print(os.getpid(), os.environ['POLAR_ROLLOUT_TOKEN'], *sys.argv[1:], flush=True)"
STAYS = f"{TELLS}; import time; time.sleep(600)"


@contextmanager
def kept(folder: Path, program: str | tuple[str, ...], *arguments: str) -> Iterator[GatewayActor]:
    program = (sys.executable, "-c", program) if isinstance(program, str) else program
    placing = Placing(arguments=arguments, state=folder, program=program)
    keeper = GatewayActor("gw-1", URL, Secret("hidden-hidden-hidden"), placing, node="10.0.0.7")
    try:
        yield keeper
    finally:
        keeper.stop()


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def said(folder: Path) -> list[list[str]]:
    log = folder / "gw-1" / "log"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "PAUSES_S", (0.05,))


def test_the_process_has_its_name_its_node_and_the_token_in_its_environment_only(tmp_path: Path) -> None:
    with kept(tmp_path, STAYS, "--engine-url", "http://{node}:8000") as keeper:
        eventually(lambda: bool(said(tmp_path)))
        [[pid, token, *arguments]] = said(tmp_path)
        assert token == "hidden-hidden-hidden"
        assert arguments == [
            *("--server-url", URL, "--name", "gw-1", "--host", "10.0.0.7"),
            *("--state", str(tmp_path / "gw-1" / "state"), "--engine-url", "http://10.0.0.7:8000"),
        ]
        assert "hidden" not in " ".join(psutil.Process(int(pid)).cmdline())
        assert keeper.health() == {"node": "10.0.0.7", "running": True, "starts": 1, "trouble": None}
    eventually(lambda: not psutil.pid_exists(int(pid)))
    assert not keeper.health()["running"]


def test_a_process_that_ends_is_begun_again(tmp_path: Path) -> None:
    with kept(tmp_path, STAYS) as keeper:
        eventually(lambda: len(said(tmp_path)) == 1)
        os.kill(int(said(tmp_path)[0][0]), signal.SIGKILL)
        eventually(lambda: len(said(tmp_path)) == 2)
        assert keeper.health()["starts"] == 2
        assert (keeper.health()["trouble"] or "").startswith("exit code -9")


def test_bad_usage_is_not_tried_again_and_says_why(tmp_path: Path) -> None:
    with kept(tmp_path, PROGRAM, "--engine-url", "nonsense") as keeper:
        eventually(lambda: keeper.health()["trouble"] is not None)
        trouble = keeper.health()["trouble"] or ""
        assert "exit code 2" in trouble and "--engine-url 'nonsense': expected a URL" in trouble
        assert (keeper.health()["running"], keeper.health()["starts"]) == (False, 1)


def test_a_gateway_ends_with_the_process_that_keeps_it(tmp_path: Path) -> None:
    keep = f"""
import sys, time
from pathlib import Path
from polar_mitm.rollout.cluster.actor import GatewayActor
from polar_mitm.rollout.cluster.placing import Placing, Secret
placing = Placing(state=Path({str(tmp_path)!r}), program=(sys.executable, "-c", {STAYS!r}))
keeper = GatewayActor("gw-1", {URL!r}, Secret("hidden-hidden-hidden"), placing, node="10.0.0.7")
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", keep]) as process:
        try:
            eventually(lambda: bool(said(tmp_path)))
            pid = int(said(tmp_path)[0][0])
        finally:
            process.kill()
    eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
