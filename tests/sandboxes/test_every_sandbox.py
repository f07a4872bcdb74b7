"""What every sandbox promises: the environment, the streams, the exit code, and that nothing outlives the run."""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from polar_mitm.sandboxes import SANDBOXES, SandboxError
from polar_mitm.sandboxes.limits import Cgroup, Limits
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


@pytest.fixture(
    params=[
        pytest.param("host"),
        pytest.param("bwrap", marks=pytest.mark.live),
        pytest.param("container", marks=pytest.mark.live),
    ]
)
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
    # PWD and the like are the shell's or the container's own; the marker is how the host sandbox knows its processes.
    own = {"PWD", "OLDPWD", "SHLVL", "_", "POLAR_SESSION_ID", "HOSTNAME", "HOME", "TERM", "container"}
    assert seen.keys() - own == {"PATH", "GIVEN"}
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


async def test_time_that_is_given_back_is_not_the_programs(run: Run) -> None:
    spec = run.spec("/bin/sh", "-c", "sleep 1; echo end", timeout_s=0.3)
    spec.given_back_s = lambda: 60.0
    ended = await run.sandbox.run(spec)
    assert (ended.code, ended.timed_out, run.stdout) == (0, False, "end\n")


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
    image = f" in the image {run.image}: name one that has it" if run.image else ""
    with pytest.raises(SandboxError, match=rf"/nowhere/harness could not be run: .*No such file.*{image}"):
        await run.sandbox.run(run.spec("/nowhere/harness"))


async def test_a_ca_file_with_a_private_key_in_it_is_refused(run: Run) -> None:
    run.ca.write_text(run.ca.read_text() + "-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(ValueError, match="holds a private key"):
        await run("exit 0")


async def test_a_run_that_needs_more_memory_than_its_limit_is_ended_and_says_so(run: Run) -> None:
    need_cgroups()
    run.limits = Limits(memory_mb=64)
    ended = await run("tail /dev/zero", timeout_s=60)
    assert ended.code in (None, 128 + 9)
    assert ended.over_limit is not None
    assert "64 MiB" in ended.over_limit
    assert cgroups(run) == []


async def test_a_fork_bomb_gets_no_further_than_its_limit(run: Run) -> None:
    need_cgroups()
    run.limits = Limits(processes=30)
    await run("for i in $(seq 100); do sleep 20 & done; wait", timeout_s=5)
    assert re.search(r"[Cc]annot fork|Resource temporarily unavailable", run.stderr)
    assert cgroups(run) == []


async def test_a_disk_that_is_full_by_its_limit_ends_the_run(run: Run) -> None:
    run.limits = Limits(disk_mb=5)
    ended = await run("head -c 20000000 /dev/zero > big; sleep 60", timeout_s=50)
    assert (ended.code, ended.timed_out) == (None, False)
    assert ended.over_limit is not None
    assert "the limit is 5 MiB" in ended.over_limit


async def test_cpu_time_is_shared_out(run: Run) -> None:
    need_cgroups()
    run.limits = Limits(cpus=0.2)
    await run("timeout 3 sh -c 'while :; do :; done'; cat /proc/self/stat > /dev/null; times")
    user = run.stdout.splitlines()[1].split()[0]
    minutes, seconds = user.rstrip("s").split("m")
    assert int(minutes) * 60 + float(seconds) < 1.5, "a fifth of three seconds, and some"


def need_cgroups() -> None:
    try:
        Cgroup.make("probe", Limits(memory_mb=64)).remove()
    except OSError as error:
        need([str(error)])


def cgroups(run: Run) -> list[Path]:
    """Control groups that polar made for the run and that are still there."""
    return list(Path("/sys/fs/cgroup").glob(f"**/polar-{run.marker}*"))
