"""The walls of the container sandbox, tried from inside, and what it keeps for the evaluation."""

from pathlib import Path, PurePosixPath

import pytest

from polar_mitm.proxy.names import NameServer
from polar_mitm.sandboxes import SANDBOXES, SandboxError, UnixBridge
from polar_mitm.sandboxes.base import Own, Redirect
from polar_mitm.sandboxes.images import build, extract, has_image, run_arguments, said, workdir
from tests.needs import need
from tests.sandboxes.conftest import Run, make_run
from tests.sandboxes.test_bwrap import echo_server

pytestmark = pytest.mark.live


@pytest.fixture
def run(tmp_path: Path, ca: Path) -> Run:
    need(SANDBOXES["container"].check())
    return make_run("container", tmp_path, ca)


def images(run: Run) -> list[str]:
    return said("images", "--quiet", f"localhost/polar-kept:{run.marker}").stdout.split()


async def test_there_is_no_interface_but_loopback_and_no_route(run: Run) -> None:
    await run("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; tail -n +2 /proc/net/route")
    assert run.stdout == "lo\n"


async def test_a_socket_is_bridged_to_its_port_before_the_program_starts(run: Run) -> None:
    async with echo_server() as (port, got), UnixBridge(port) as bridge:
        run.sockets = {29080: bridge.path}
        ended = await run("printf ping | /polar/socat/run -t 5 - TCP:127.0.0.1:29080")
    assert ended.code == 0, run.stderr
    assert run.stdout == "hello from outside\nping"
    assert b"ping" in got


async def test_the_hosts_files_and_processes_are_out_of_sight(run: Run) -> None:
    secret = run.folder / "secret"
    secret.write_text("x")
    await run(f"cat {secret} 2>&1; ls -d /proc/[0-9]* | wc -l; mount | grep -c ' / '")
    first, count, _ = run.stdout.splitlines()
    assert "No such file" in first
    assert int(count) < 8


async def test_no_kernel_setting_can_be_written(run: Run) -> None:
    ended = await run("echo x > /proc/sys/kernel/core_pattern")
    assert ended.code != 0
    assert "Read-only file system" in run.stderr


async def test_secrets_of_the_environment_are_not_on_the_engines_command_line(run: Run) -> None:
    run.env["TOKEN"] = "very-secret-token"
    await run('cat /proc/1/cmdline; test -n "$TOKEN" && echo there')
    assert "very-secret-token" not in run.stdout
    assert run.stdout.endswith("there\n")


async def test_what_the_program_left_is_kept_as_an_image_until_it_is_swept(run: Run, tmp_path: Path, ca: Path) -> None:
    run.keep = True
    ended = await run("echo left > /etc/left; sleep 100 & exit 0")
    assert ended.image is not None
    (tmp_path / "second").mkdir()
    second = make_run("container", tmp_path / "second", ca)
    second.image = ended.image
    await second("cat /etc/left; ls -d /proc/[0-9]* | wc -l")
    assert second.stdout.splitlines()[0] == "left"
    run.sandbox.sweep(run.marker)
    assert images(run) == []


async def test_an_image_that_is_not_there_is_the_sandboxs_error(run: Run) -> None:
    run.image = "localhost/no-such-image:1"
    with pytest.raises(SandboxError, match="cannot start a container of localhost/no-such-image:1"):
        await run("exit 0")
    run.image = None
    with pytest.raises(SandboxError, match="needs an image"):
        await run("exit 0")


async def test_an_image_of_a_dockerfile_its_workdir_and_what_is_in_it(run: Run) -> None:
    context = run.folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {run.image}\nWORKDIR /app\nCOPY given.txt .\nENV OF_IMAGE=1\n")
    (context / "given.txt").write_text("given\n")
    tag = f"localhost/polar-test:{run.folder.name}".lower()
    build(context, context / "Dockerfile", tag)
    try:
        assert has_image(tag)
        assert workdir(tag) == PurePosixPath("/app")
        run.workspace.rmdir()
        assert extract(tag, PurePosixPath("/app"), run.workspace)
        assert not extract(tag, PurePosixPath("/nowhere"), run.folder / "nothing")
        run.image, run.workdir = tag, PurePosixPath("/app")
        await run("pwd; cat given.txt; echo $OF_IMAGE; echo made > made.txt")
        assert run.stdout == "/app\ngiven\n1\n"
        assert (run.workspace / "made.txt").read_text() == "made\n"
    finally:
        said("rmi", "--force", tag)


def test_a_dockerfile_that_fails_is_told_in_the_builders_words(tmp_path: Path, run: Run) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {run.image}\nRUN echo this goes wrong >&2; exit 3\n")
    with pytest.raises(SandboxError, match="could not be built: "):
        build(tmp_path, tmp_path / "Dockerfile", "localhost/polar-test:fails")


def test_the_engine_is_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLAR_CONTAINER_ENGINE", "no-such-engine")
    assert SANDBOXES["container"].check() == ["$POLAR_CONTAINER_ENGINE names no-such-engine, which is not installed"]
    fake = tmp_path / "engine"
    fake.write_text("#!/bin/sh\necho 'cannot start: no cgroups' >&2\nexit 126\n")
    fake.chmod(0o755)
    monkeypatch.setenv("POLAR_CONTAINER_ENGINE", str(fake))
    with pytest.raises(SandboxError, match="engine cannot start a container of some/image here: cannot start: no cgr"):
        run_arguments("some/image")
    monkeypatch.setenv("POLAR_CONTAINER_ARGS", "--runtime 'my run'")
    assert run_arguments("other/image") == ("--runtime", "my run")


async def test_every_name_and_address_leads_to_the_socket_for_a_user_who_is_not_root(run: Run) -> None:
    async with echo_server() as (port, got), UnixBridge(port) as bridge, NameServer(run.marker) as names:
        run.redirect = Redirect(None, bridge.path, bridge.path, names.path)
        run.own = Own(user="1000:1000")
        run.env["HOME"] = "/tmp/home"
        await run(
            "printf a | /polar/socat/run -t 5 - TCP:any.name.example:443;"
            " printf b | /polar/socat/run -t 5 - TCP:203.0.113.9:80;"
            " /polar/socat/run -T 2 - TCP:203.0.113.9:22 </dev/null 2>&1; grep CapEff /proc/self/status"
        )
    assert run.stdout.startswith("hello from outside\nahello from outside\nb"), run.stderr
    assert got[-2:] == [b"a", b"b"]
    assert "203.0.113.9:22" in run.stdout and "Connection refused" in run.stdout
    assert run.stdout.endswith(f"CapEff:\t{0:016x}\n")


async def test_an_engine_that_makes_no_way_is_quoted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async with UnixBridge(9) as bridge, NameServer(run.marker) as names:
        run.redirect = Redirect(None, bridge.path, bridge.path, names.path)
        monkeypatch.setattr("polar_mitm.sandboxes.container_ways.IP", "socat")
        with pytest.raises(SandboxError, match="could not lead every address to polar: "):
            await run("exit 0")
