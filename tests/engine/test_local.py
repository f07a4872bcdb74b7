import asyncio
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from polar_mitm.engine import local
from polar_mitm.engine.install import Environment
from polar_mitm.engine.local import EngineFailed, Launch, LocalEngine, end, find
from polar_mitm.engine.models import MODELS
from polar_mitm.engine.registry import register, registered
from polar_mitm.engine.steps import Say

SERVER = Path(__file__).with_name("fake_server.py")

pytestmark = pytest.mark.usefixtures("polar_home", "impatient")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake server's child never ends by itself: no need to wait for it."""
    monkeypatch.setattr(local, "_ORPHAN_S", 0.1)


def fake(mode: str, text: str = "") -> Callable[[str, int, Say], Launch]:
    return lambda _name, port, _say: Launch([sys.executable, str(SERVER), str(port), mode, text], {})


def child_of(log: str) -> int:
    found = re.search(r"child (\d+)", Path(log).read_text())
    assert found
    return int(found[1])


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_started_engine_is_found_by_others_and_ends_with_its_children() -> None:
    engine = LocalEngine(launch=fake("fine"))
    phases: list[str] = []
    running = await engine.start("tiny", progress=lambda _seconds, phase: phases.append(phase))
    try:
        assert (running.url, running.model, running.ready) == (f"http://127.0.0.1:{running.port}", "tiny", True)
        assert engine.owned
        assert find("tiny") == running
        assert phases[-1] == "first answer"
        child = child_of(running.log)
        assert not gone(child)
    finally:
        await engine.stop()
    assert gone(running.pid)
    assert gone(child)
    assert find("tiny") is None
    assert registered("tiny") is None
    await engine.stop()


@pytest.mark.parametrize("starter_leaves_first", [False, True])
async def test_a_shared_engine_is_ended_by_the_last_who_uses_it_whoever_started_it(starter_leaves_first: bool) -> None:
    first, second = LocalEngine(launch=fake("fine")), LocalEngine(launch=fake("crash", "never run"))
    running = await first.start("tiny")
    try:
        assert await second.start("tiny") == running
        assert (first.owned, second.owned) == (True, False)
        leaves, stays = (first, second) if starter_leaves_first else (second, first)
        await leaves.stop()
        assert find("tiny") == running
        await stays.stop()
        assert registered("tiny") is None
        assert gone(running.pid)
    finally:
        await asyncio.to_thread(end, "tiny")


async def test_whoever_says_so_ends_a_shared_engine_under_the_others() -> None:
    first, second = LocalEngine(launch=fake("fine")), LocalEngine(launch=fake("crash", "never run"))
    running = await first.start("tiny")
    await second.start("tiny")
    await first.stop(though_used=True)
    assert gone(running.pid)
    await second.stop()


async def test_two_that_start_at_once_get_the_same_engine() -> None:
    engines = [LocalEngine(launch=fake("fine")) for _ in range(2)]
    said: list[str] = []
    try:
        one, other = await asyncio.gather(*(engine.start("tiny", say=said.append) for engine in engines))
        assert one == other
        assert sorted(engine.owned for engine in engines) == [False, True]
        assert "waiting for another polar that is busy with starting the engine tiny" in said
    finally:
        for engine in engines:
            await engine.stop()


async def test_an_engine_is_ended_by_its_name_whoever_started_it() -> None:
    engine = LocalEngine(launch=fake("fine"))
    running = await engine.start("tiny")
    waiting = asyncio.create_task(engine.wait())
    assert await asyncio.to_thread(end, "tiny")
    with pytest.raises(EngineFailed):
        await asyncio.wait_for(waiting, 5)
    assert gone(running.pid)
    assert not end("tiny")


async def test_a_server_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_TERMINATE_S", 0.3)
    engine = LocalEngine(launch=fake("stubborn"))
    running = await engine.start("tiny")
    child = child_of(running.log)
    await engine.stop()
    assert gone(running.pid)
    assert gone(child)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("OSError: [Errno 98] error while attempting to bind on address: Address already in use", "its port was taken"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "not enough memory"),
        ("(EngineCore pid=7) ValueError: Repo id must be in the form 'repo_name': '/x/y'", "model's files are missing"),
        ("error: unrecognized arguments: --enable-scale-out", "does not know one of polar's flags"),
        (
            "(EngineCore pid=7) KeyError: 'no_such_layer'\n"
            "(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.",
            "KeyError: 'no_such_layer'",
        ),
        ("(A pid=1) WARNING 11-30 [u.py:2] OSError: too many files\nValueError: bad", "ValueError: bad"),
        ("nothing that looks like an error", "nothing that looks like an error"),
    ],
)
async def test_an_engine_that_ends_at_start_fails_with_the_reason_in_its_log(log: str, reason: str) -> None:
    engine = LocalEngine(launch=fake("crash", log))
    with pytest.raises(EngineFailed) as caught:
        await engine.start("tiny")
    assert reason in caught.value.reason
    assert reason in str(caught.value)
    assert caught.value.log is not None
    assert str(caught.value.log) in str(caught.value)
    assert gone(child_of(str(caught.value.log)))
    assert registered("tiny") is None


async def test_an_engine_that_is_not_ready_in_time_fails_and_is_ended() -> None:
    engine = LocalEngine(launch=fake("slow"), ready_timeout_s=0.5)
    with pytest.raises(EngineFailed, match=r"not ready within 0 s \(loading the model\)") as caught:
        await engine.start("tiny")
    assert gone(child_of(str(caught.value.log)))


async def test_a_cancelled_start_leaves_nothing_running() -> None:
    engine = LocalEngine(launch=fake("slow"))
    loading = asyncio.Event()
    start = asyncio.create_task(
        engine.start("tiny", progress=lambda _s, phase: loading.set() if phase == "loading the model" else None)
    )
    await asyncio.wait_for(loading.wait(), 10)
    half_started = registered("tiny")
    assert half_started
    assert not half_started.ready
    assert find("tiny") is None
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert gone(half_started.pid)
    assert gone(child_of(half_started.log))


async def test_what_a_dead_polar_left_half_started_is_ended_first() -> None:
    dead = LocalEngine(launch=fake("fine"))
    orphan = await dead.start("tiny")
    register(replace(orphan, ready=False))
    engine = LocalEngine(launch=fake("fine"))
    running = await engine.start("tiny")
    try:
        assert gone(orphan.pid)
        assert running.pid != orphan.pid
    finally:
        await engine.stop()
        await dead.stop()


async def test_an_engine_that_hangs_is_not_taken_from_whoever_uses_it() -> None:
    starter = LocalEngine(launch=fake("fine"))
    running = await starter.start("tiny")
    try:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            register(replace(running, url=f"http://127.0.0.1:{silent.getsockname()[1]}"))
            with pytest.raises(EngineFailed, match="does not answer"):
                await LocalEngine(launch=fake("fine")).start("tiny")
        assert not gone(running.pid)
    finally:
        await starter.stop()


async def test_a_port_in_use_is_said_before_anything_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngineFailed, match=f"port {port} cannot be used: Address already in use"):
            await LocalEngine(launch=fake("fine")).start("tiny", port=port)


async def test_a_program_that_cannot_be_run_is_named() -> None:
    engine = LocalEngine(launch=lambda _name, _port, _say: Launch(["/no/such/python"], {}))
    with pytest.raises(EngineFailed, match="/no/such/python cannot be run: No such file or directory"):
        await engine.start("tiny")


async def test_an_unknown_model_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(EngineFailed, match="'huge': no such local model; there are smollm2, tiny"):
        await LocalEngine().start("huge")


@pytest.mark.parametrize(("flags", "dtype"), [("avx2 avx512_bf16", "bfloat16"), ("avx2 avx512f", "float32")])
def test_a_processor_without_bfloat16_serves_in_float32(
    flags: str, dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _path, encoding: flags)
    command = local._command(Environment("cpu", tmp_path), MODELS["smollm2"], tmp_path, 8123)
    assert command[command.index("--dtype") + 1] == dtype


def test_vllm_is_started_on_loopback_and_without_a_grammar_over_tool_calls(tmp_path: Path) -> None:
    made = Environment("cpu", tmp_path)
    command = local._command(made, MODELS["smollm2"], tmp_path / "smollm2", 8123)
    assert command[:3] == [str(tmp_path / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--max-model-len") + 1] == "8192"
    assert "--tool-strict-level" not in command
    assert "--enforce-eager" in command
    variables = local._variables("cpu", MODELS["tiny"])
    assert (variables["VLLM_SERVER_DEV_MODE"], variables["VLLM_HOST_IP"]) == ("0", "127.0.0.1")
    assert variables["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in local._variables("cuda", MODELS["tiny"])
