"""Start a local vLLM with the flags polar needs, wait until it answers, and end it with all its children.

The server is a process group of its own on loopback; several polars share it through `registry`. What it runs in is
`install`'s, what it serves is `models`'.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from polar_mitm.engine.install import Environment, Kind, install
from polar_mitm.engine.models import MODELS, LocalModel, build
from polar_mitm.engine.registry import (
    Running,
    Use,
    answers,
    ask,
    find,
    forget,
    is_gone,
    is_same,
    lives,
    register,
    registered,
)
from polar_mitm.engine.steps import LOCK_POLL_S, Lock, Say, environment, last_lines, log_file
from polar_mitm.errors import NotReady
from polar_mitm.home import home

__all__ = ["EngineFailed", "LocalEngine", "Progress", "Running", "end", "find", "trainable"]

type Progress = Callable[[float, str], None]
"""Takes the seconds since the start and the phase: starting, loading the model, warming up, first answer."""

READY_S: Final = 600.0
"""Alone on 2 cores a vLLM is up in 40 to 70 s, nearly all of it Python imports; on a loaded machine it took 150 s."""
_POLL_S: Final = 0.25
_WATCH_S: Final = 0.5
_TERMINATE_S: Final = 20.0
"""vLLM ends within 6 s of SIGTERM when nothing hangs."""
_ORPHAN_S: Final = 5.0
"""vLLM's children outlive the server by a moment, in which they clean up."""
_KILLED_S: Final = 5.0
_ENDING_POLL_S: Final = 0.02
_PHASES: Final = (("KV cache size", "warming up"), ("Starting to load model", "loading the model"))
"""What vLLM logs at the start of a phase, the latest first."""
_BATCH_TOKENS: Final = 32_768
_CAUSES: Final = (
    (re.compile(r"Address already in use"), "its port was taken by another program"),
    (
        re.compile(r"out of memory|OutOfMemory|MemoryError|Cannot allocate memory|[Ii]nsufficient memory"),
        "not enough memory",
    ),
    (re.compile(r"No available memory for the cache blocks|KV cache is needed"), "not enough memory for the KV cache"),
    (
        re.compile(
            r"Repo id must be|Invalid repository ID|not a local folder|No such file|does not appear to have a file"
        ),
        "the model's files are missing or incomplete",
    ),
    (re.compile(r"unrecognized arguments|invalid choice"), "this vLLM does not know one of polar's flags"),
)
_ERROR_LINE: Final = re.compile(r"\b[\w.]*(?:Error|Exception)\b.*|\berror: .+")
_NOT_THE_CAUSE: Final = re.compile(r"See root cause above|Engine core initialization failed| (?:INFO|WARNING) ")


class EngineFailed(NotReady):
    """The local engine did not come up. The message says why, shows the log's last error lines and names the log."""

    def __init__(self, name: str, reason: str, log: Path | None = None) -> None:
        lines = [f"engine {name!r}: {reason}"]
        if log is not None:
            lines += [f"  {line}" for line in _error_lines(log)] + [f"The whole log: {log}"]
        super().__init__("\n".join(lines))
        self.reason = reason
        self.log = log


@dataclass(slots=True, frozen=True)
class Launch:
    """A server to be started: its command line, and the environment variables it needs beside the present ones."""

    command: Sequence[str]
    variables: Mapping[str, str]


class LocalEngine:
    """A local engine: the one that runs already, else a new one. The last polar that uses it ends it."""

    def __init__(
        self, *, ready_timeout_s: float = READY_S, launch: Callable[[str, int, Say], Launch] | None = None
    ) -> None:
        """`launch` says what to run for a name and a port; None is vLLM with a model of polar's."""
        self._ready_timeout_s = ready_timeout_s
        self._launch = launch or _vllm
        self._process: subprocess.Popen[bytes] | None = None
        self._running: Running | None = None
        self._use: Use | None = None

    @property
    def owned(self) -> bool:
        """Whether this object started the engine."""
        return self._process is not None

    async def start(
        self,
        name: str,
        *,
        port: int = 0,
        say: Say = lambda _line: None,
        progress: Progress = lambda _seconds, _phase: None,
    ) -> Running:
        """The engine of this name, ready. A new one listens on `port` (0: any free one); one that runs keeps its own.

        Installs and builds what is missing; `say` is then called from another thread.
        Raises EngineFailed, and InstallFailed from the installation. A cancelled start leaves nothing running.
        """
        async with _alone(name, say):
            running = await asyncio.to_thread(_already_running, name, say)
            running = running or await self._start_new(name, port, say, progress)
            self._running, self._use = running, Use(name)
            return running

    async def stop(self, *, though_used: bool = False) -> None:
        """Leave the engine. The last to use it, or who says so, ends it with its children. Safe to call twice."""
        running, use = self._running, self._use
        if running is None or use is None:
            return
        self._use = None
        with contextlib.closing(use):
            async with _alone(running.name, lambda _line: None):
                if use.is_the_last() or though_used:
                    await self._end(running)

    async def _end(self, running: Running) -> None:
        await asyncio.to_thread(_end_group, running)
        if self._process is not None:
            self._process.wait()
            self._process = None
        forget(running)

    async def wait(self) -> None:
        """Block until the engine ends. EngineFailed when one that was started here ended by itself."""
        while self._running is not None and lives(self._running):  # noqa: ASYNC110  (it may be another polar's child)
            await asyncio.sleep(_WATCH_S)
        if self._process is not None and self._running is not None:
            log = Path(self._running.log)
            raise EngineFailed(self._running.name, _cause(log, self._process.wait()), log)

    async def _start_new(self, name: str, port: int, say: Say, progress: Progress) -> Running:
        chosen = _free_port(name, port)
        launch = await asyncio.to_thread(self._launch, name, chosen, say)
        began = time.monotonic()
        self._process, self._running = _spawn(name, launch, chosen)
        try:
            await self._until_ready(self._running, began, progress)
        except BaseException:
            await self._end(self._running)
            raise
        ready = replace(self._running, ready=True)
        register(ready)
        say(f"the engine {name} answers at {ready.url} after {time.monotonic() - began:.0f} s")
        return ready

    async def _until_ready(self, running: Running, began: float, progress: Progress) -> None:
        """Until it has answered one request: the first one takes up to half a minute, and should not be a user's."""
        deadline = began + self._ready_timeout_s
        log = Path(running.log)
        while not await asyncio.to_thread(answers, running.url, 1.0):
            self._check(running, deadline)
            progress(time.monotonic() - began, _phase(log))
            await asyncio.sleep(_POLL_S)
        first = asyncio.create_task(asyncio.to_thread(ask, running.url, running.model, self._ready_timeout_s))
        while not first.done():
            self._check(running, deadline)
            progress(time.monotonic() - began, "first answer")
            await asyncio.wait([first], timeout=_POLL_S)
        try:
            first.result()
        except OSError as error:
            self._check(running, deadline)
            reason = f"it is up but did not answer a first request: {error}"
            raise EngineFailed(running.name, reason, log) from error

    def _check(self, running: Running, deadline: float) -> None:
        log = Path(running.log)
        code = None if self._process is None else self._process.poll()
        if code is not None:
            raise EngineFailed(running.name, _cause(log, code), log)
        if time.monotonic() > deadline:
            raise EngineFailed(running.name, f"not ready within {self._ready_timeout_s:.0f} s ({_phase(log)})", log)


@contextlib.asynccontextmanager
async def _alone(name: str, say: Say) -> AsyncIterator[None]:
    """One polar at a time starts, joins or leaves the engine of a name."""
    with contextlib.closing(Lock(home() / "engines" / f"{name}.lock", say, f"starting the engine {name}")) as lock:
        while not lock.acquired():  # noqa: ASYNC110  (another process holds it: there is no event to wait for)
            await asyncio.sleep(LOCK_POLL_S)
        yield


def _already_running(name: str, say: Say) -> Running | None:
    if found := find(name):
        return found
    leftover = registered(name)
    if leftover is None:
        return None
    if leftover.ready:
        mend = "end it and try again"
        raise EngineFailed(name, f"it runs (pid {leftover.pid}) but does not answer at {leftover.url}: {mend}")
    # Whoever starts an engine holds the lock until it is ready: the polar that started this one is dead.
    say(f"ending an engine {name} that another polar left half started")
    _end_group(leftover)
    forget(leftover)
    return None


def _spawn(name: str, launch: Launch, port: int) -> tuple[subprocess.Popen[bytes], Running]:
    log = log_file(f"vllm-{name}")
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                launch.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(launch.variables),
                # A group of its own: Ctrl-C on polar must not reach it before polar has closed its calls.
                start_new_session=True,
            )
        except OSError as error:
            raise EngineFailed(name, f"{launch.command[0]} cannot be run: {error.strerror}") from error
    running = Running(
        name=name,
        url=f"http://127.0.0.1:{port}",
        model=name,
        port=port,
        pid=process.pid,
        started=psutil.Process(process.pid).create_time(),
        log=str(log),
        ready=False,
    )
    register(running)
    return process, running


def end(name: str) -> bool:
    """End the registered engine of this name, whoever started it; False when there is none."""
    running = registered(name)
    if running is None:
        return False
    _end_group(running)
    forget(running)
    return True


def _vllm(name: str, port: int, say: Say) -> Launch:
    if name not in MODELS:
        raise EngineFailed(name, f"no such local model; there are {', '.join(MODELS)}")
    made = install(say)
    folder = build(name, say)
    say(f"starting vLLM with {name} ({MODELS[name].what})")
    return Launch(_command(made, MODELS[name], folder, port), _variables(made.kind, MODELS[name]))


def trainable(name: str, port: int, say: Say) -> Launch:
    """The same in development mode, in which its weights can be changed, by whoever reaches it."""
    launch = _vllm(name, port, say)
    return replace(launch, variables={**launch.variables, "VLLM_SERVER_DEV_MODE": "1"})


def _command(made: Environment, model: LocalModel, folder: Path, port: int) -> list[str]:
    command = [
        str(made.python),
        "-m",
        # Not `vllm serve`: the command of the CPU build asks for the metadata of a package named vllm, and is not one.
        "vllm.entrypoints.openai.api_server",
        *("--model", str(folder), "--served-model-name", model.name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", _dtype(made.kind, model), "--max-model-len", str(model.window)),
        # No --tool-strict-level: a higher one puts a grammar over every tool call and lets a model leave a script.
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--structured-outputs-config", json.dumps({"backend": "xgrammar", "disable_any_whitespace": True})),
        # Opens the token-in routes, which continue a conversation from sampled ids.
        "--enable-scale-out",
        "--enable-prompt-tokens-details",
        "--disable-uvicorn-access-log",
    ]
    if made.kind == "cpu":
        # Compiling costs minutes on a CPU, and triton is not installed.
        command += ["--enforce-eager", "--max-num-batched-tokens", str(min(model.window, _BATCH_TOKENS))]
    return command


def _dtype(kind: Kind, model: LocalModel) -> str:
    """The model's own, but for bfloat16 on a processor that does not compute in it: smollm2 then took 35 s to read a
    prompt of 1410 tokens, in float32 9 s; answers came at 15 and 12 tokens a second."""
    if kind == "cpu" and model.dtype == "bfloat16" and not _computes_bfloat16():
        return "float32"
    return model.dtype


def _computes_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _variables(kind: Kind, model: LocalModel) -> dict[str, str]:
    variables = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # Development mode opens routes that anyone on the machine could pause the engine or change its weights with.
        "VLLM_SERVER_DEV_MODE": "0",
        # Its processes talk to each other over loopback, not over the machine's address.
        "VLLM_HOST_IP": "127.0.0.1",
    }
    if kind == "cpu":
        # On 2 cores 1 thread is faster than 2 (measured: 111 against 80 tokens a second with smollm2): threads spin
        # against the server's other processes.
        cores = psutil.cpu_count(logical=False) or 1
        variables["OMP_NUM_THREADS"] = "1" if model.name == "tiny" else str(max(1, cores // 2))
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        variables["VLLM_CPU_KVCACHE_SPACE"] = str(model.kv_cache_gib)
    return variables


def _free_port(name: str, wanted: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As vLLM binds it: a port whose last connection has just closed is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise EngineFailed(name, f"port {wanted} cannot be used: {error.strerror}") from error
        return int(probe.getsockname()[1])


def _end_group(running: Running) -> None:
    """SIGTERM to the server, which ends its children and then itself; SIGKILL to all of its group that is left."""
    members = _group(running)
    servers = [process for process in members if process.pid == running.pid]
    for server in servers:
        with contextlib.suppress(psutil.NoSuchProcess):
            server.terminate()
    _wait_gone(servers, _TERMINATE_S)
    _wait_gone(members, _ORPHAN_S)
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_gone(members, _KILLED_S)


def _group(running: Running) -> list[psutil.Process]:
    """The engine's server and all its children, also those that outlived it; none when its pid is another's by now."""
    members: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if process.pid == running.pid and not is_same(process, running):
                return []
            if os.getpgid(process.pid) == running.pid:
                members.append(process)
    return members


def _wait_gone(processes: Sequence[psutil.Process], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not all(map(is_gone, processes)) and time.monotonic() < deadline:
        time.sleep(_ENDING_POLL_S)


def _phase(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return next((phase for sign, phase in _PHASES if sign in text), "starting")


def _cause(log: Path, code: int) -> str:
    """Why the server ended, from its log: a known cause, else its last error."""
    if code == -signal.SIGKILL:
        return "it was killed, most likely for want of memory"
    errors = _error_lines(log, 40)
    known = next((cause for sign, cause in _CAUSES if sign.search("\n".join(errors))), None)
    return known or (errors[-1] if errors else f"it ended with exit code {code}")


def _error_lines(log: Path, count: int = 4) -> list[str]:
    lines = last_lines(log, 400)
    errors = [found[0] for line in lines if not _NOT_THE_CAUSE.search(line) and (found := _ERROR_LINE.search(line))]
    # The same error is logged by each process it passes through.
    return (list(dict.fromkeys(errors)) or lines)[-count:]
