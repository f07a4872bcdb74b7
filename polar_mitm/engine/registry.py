"""Which local engines run on this machine: one JSON file each in `home()/engines/`, so that all polars share them.

A file alone proves nothing. An engine counts as running when the process is still the one that was written down and its
server answers. Starting and ending engines is `local`'s business.
"""

import fcntl
import json
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from polar_mitm.home import home

_HEALTH_S: Final = 5.0
_SAME_START_S: Final = 1.0
"""The kernel counts a process's start from boot; an adjusted clock moves what psutil makes of it by fractions of it."""
_NO_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Loopback must not go through a proxy that the environment names."""


@dataclass(slots=True, frozen=True)
class Running:
    """A local engine's process. `url` is without `/v1`."""

    name: str
    url: str
    model: str
    port: int
    pid: int
    """Also the id of its process group."""
    started: float
    """Unix seconds, as the operating system says; with the pid it identifies the process."""
    log: str
    ready: bool
    """False until it has answered a first request."""


class Use:
    """That this process uses the engine of a name: until it is closed, or the process ends, however it ends."""

    def __init__(self, name: str) -> None:
        file = _file(name).with_suffix(".users")
        file.parent.mkdir(parents=True, exist_ok=True)
        self._handle = file.open("ab")
        fcntl.flock(self._handle.fileno(), fcntl.LOCK_SH)

    def is_the_last(self) -> bool:
        """Whether nobody else uses it. Whoever asks must close it next, whatever the answer."""
        try:
            fcntl.flock(self._handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._handle.close()


def find(name: str) -> Running | None:
    """The running engine of this name that is ready and answers."""
    running = registered(name)
    return running if running and running.ready and answers(running.url) else None


def registered(name: str) -> Running | None:
    """The engine of this name whose process lives, ready or not."""
    try:
        running = Running(**json.loads(_file(name).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return running if lives(running) else None


def register(running: Running) -> None:
    file = _file(running.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_suffix(".new")
    written.write_text(json.dumps(asdict(running), indent=1), encoding="utf-8")
    written.replace(file)


def forget(running: Running) -> None:
    """Remove the engine's file, unless it already speaks of another process."""
    file = _file(running.name)
    if file.exists() and f'"pid": {running.pid},' in file.read_text(encoding="utf-8"):
        file.unlink(missing_ok=True)


def lives(running: Running) -> bool:
    try:
        process = psutil.Process(running.pid)
        return is_same(process, running) and not is_gone(process)
    except psutil.NoSuchProcess:
        return False


def is_same(process: psutil.Process, running: Running) -> bool:
    """Whether the process with the engine's pid is the engine."""
    return abs(process.create_time() - running.started) < _SAME_START_S


def is_gone(process: psutil.Process) -> bool:
    """Whether the process has ended, even if its parent has not taken note."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def answers(url: str, timeout_s: float = _HEALTH_S) -> bool:
    """Whether GET /health gives 200."""
    try:
        with _NO_PROXY.open(f"{url}/health", timeout=timeout_s) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def ask(url: str, model: str, timeout_s: float) -> None:
    """One small call, which also loads the grammar engine: its first use takes 5 s. OSError when it is refused."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say ok."}],
        "max_tokens": 4,
        "structured_outputs": {"regex": "ok"},
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with _NO_PROXY.open(request, timeout=timeout_s) as response:
        response.read()


def _file(name: str) -> Path:
    return home() / "engines" / f"{name}.json"
