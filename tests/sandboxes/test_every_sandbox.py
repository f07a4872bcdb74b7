"""What every sandbox promises: the environment, the streams, the exit code, and that nothing outlives the run."""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from polar_mitm.sandboxes import SANDBOXES, SandboxError
from tests.needs import need
from tests.sandboxes.conftest import Run, make_run

# A child in the background, one that left the group, and one that left as a daemon does: twice forked, own session.
# Each sleeps for a time of its own, by which it is found; the daemon says when all three are there.
FAMILY = """
sleep {0}.01 &
setsid sleep {0}.02 &
( setsid sh -c 'sleep {0}.03 & touch started' & )
until [ -e started ]; do sleep 0.01; done
"""


@pytest.fixture(params=[pytest.param("host"), pytest.param("bwrap", marks=pytest.mark.live)])
def run(request: pytest.FixtureRequest, tmp_path: Path, ca: Path) -> Run:
    need(SANDBOXES[request.param].check())
    return make_run(request.param, tmp_path, ca)


@pytest.fixture
def seconds() -> Iterator[int]:
    """A sleeping time that only this test uses. Whatever still sleeps for it at the end is killed."""
    number = 100_000 + time.monotonic_ns() % 800_000
    yield number
    for process in sleepers(number):
        process.kill()


def sleepers(seconds: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if line[:1] == ["sleep"] and line[1].startswith(f"{seconds}.") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


async def until_asleep(seconds: int) -> None:
    async with asyncio.timeout(10):
        while len(sleepers(seconds)) < 3:  # noqa: ASYNC110  (other processes set no event)
            await asyncio.sleep(0.02)


async def test_the_exit_code_and_both_streams_are_the_programs(run: Run) -> None:
    ended = await run("echo out; echo err >&2; exit 7")
    assert (ended.code, ended.timed_out) == (7, False)
    assert (run.stdout, run.stderr) == ("out\n", "err\n")


async def test_a_program_that_dies_by_a_signal_has_128_and_its_number(run: Run) -> None:
    ended = await run("kill -SEGV $$")
    assert ended.code == 128 + 11


async def test_nothing_is_inherited_but_what_the_spec_names(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_USER", "x")
    run.env = {"PATH": "/usr/bin:/bin", "GIVEN": "two words\nand a line"}
    await run("env -0")
    seen = dict(entry.split("=", 1) for entry in run.stdout.split("\0") if entry)
    # PWD and the like are the shell's own; the marker is how the host sandbox knows its processes.
    assert seen.keys() - {"PWD", "OLDPWD", "SHLVL", "_", "POLAR_SESSION_ID"} == {"PATH", "GIVEN"}
    assert seen["GIVEN"] == "two words\nand a line"


async def test_the_program_works_in_the_workspace_and_finds_home_and_ca_where_the_layout_says(run: Run) -> None:
    layout = run.layout
    (run.workspace / "given.txt").write_text("given\n")
    (run.home / "rc").write_text("rc\n")
    await run(f"pwd; cat given.txt {layout.home}/rc {layout.ca}; echo made > made.txt; echo too > {layout.home}/too")
    assert run.stdout == f"{layout.workspace}\ngiven\nrc\n{run.ca.read_text()}"
    assert (run.workspace / "made.txt").read_text() == "made\n"
    assert (run.home / "too").read_text() == "too\n"


async def test_the_bundle_holds_the_systems_roots_and_our_certificate(run: Run) -> None:
    await run(f"cat {run.layout.ca_bundle}")
    assert run.stdout.endswith(run.ca.read_text())
    assert run.stdout.count("BEGIN CERTIFICATE") > 1


async def test_an_argument_never_passes_through_a_shell(run: Run) -> None:
    words = "$(touch hacked) `touch hacked`; touch hacked \"' \n -- * ~"
    await run.sandbox.run(run.spec("/usr/bin/printf", "%s", words))
    assert run.stdout == words
    assert not (run.workspace / "hacked").exists()


async def test_a_megabyte_of_input_arrives_whole(run: Run) -> None:
    run.stdin = run.folder / "stdin"
    run.stdin.write_bytes(os.urandom(1024 * 1024))
    ended = await run("cat > copy")
    assert ended.code == 0
    assert (run.workspace / "copy").read_bytes() == run.stdin.read_bytes()


async def test_without_input_the_program_reads_an_end_at_once(run: Run) -> None:
    ended = await run("cat; echo end", timeout_s=10)
    assert (ended.code, run.stdout) == (0, "end\n")


async def test_a_timeout_kills_the_whole_tree_with_its_daemons(run: Run, seconds: int) -> None:
    started = time.monotonic()
    ended = await run(FAMILY.format(seconds) + "sleep 60", timeout_s=1)
    assert (ended.code, ended.timed_out) == (None, True)
    assert 1 <= ended.seconds <= time.monotonic() - started < 10
    assert (run.workspace / "started").exists()
    assert sleepers(seconds) == []


async def test_a_normal_end_leaves_no_daemon_behind(run: Run, seconds: int) -> None:
    ended = await run(FAMILY.format(seconds) + "exit 3")
    assert (ended.code, ended.timed_out) == (3, False)
    assert sleepers(seconds) == []


async def test_cancellation_kills_the_whole_tree_and_is_raised_again(run: Run, seconds: int) -> None:
    task = asyncio.create_task(run(FAMILY.format(seconds) + "sleep 60"))
    await until_asleep(seconds)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()  # a second Ctrl-C must not cut the clean-up short
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sleepers(seconds) == []


async def test_a_run_ends_only_its_own_processes(run: Run, seconds: int, tmp_path: Path, ca: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_run(run.sandbox.NAME, tmp_path / "other", ca)
    task = asyncio.create_task(other(FAMILY.format(seconds) + "sleep 60"))
    await until_asleep(seconds)
    await run("exit 0")
    assert len(sleepers(seconds)) == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_program_that_is_not_there_is_the_sandboxs_error_with_the_reason(run: Run) -> None:
    with pytest.raises(SandboxError, match=r"/nowhere/harness could not be run: .*No such file"):
        await run.sandbox.run(run.spec("/nowhere/harness"))


async def test_a_ca_file_with_a_private_key_in_it_is_refused(run: Run) -> None:
    run.ca.write_text(run.ca.read_text() + "-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(ValueError, match="holds a private key"):
        await run("exit 0")
