"""The walls of the bwrap sandbox, tried from inside."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from polar_mitm.proxy.names import NameServer
from polar_mitm.sandboxes import SANDBOXES, UnixBridge
from polar_mitm.sandboxes.base import Redirect
from polar_mitm.sandboxes.bwrap import Bwrap
from tests.needs import need
from tests.sandboxes.conftest import Run, make_run

pytestmark = pytest.mark.live


@pytest.fixture
def run(tmp_path: Path, ca: Path) -> Run:
    need(SANDBOXES["bwrap"].check())
    return make_run("bwrap", tmp_path, ca)


@asynccontextmanager
async def echo_server() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A loopback server of the host's; it greets, echoes, and keeps what it got from each connection."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello from outside\n")
        data = await reader.read()
        got.append(data)
        writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], got


def test_the_layout_is_the_same_whatever_the_host_has() -> None:
    one = Bwrap().layout(workspace=Path("/a"), home=Path("/b"), ca=Path("/c"), proxy_port=1, base_port=2)
    two = Bwrap().layout(workspace=Path("/d"), home=Path("/e"), ca=Path("/f"), proxy_port=3, base_port=4)
    assert one == two
    assert (str(one.workspace), str(one.home)) == ("/workspace", "/home/agent")


async def test_there_is_no_interface_but_loopback_and_no_route(run: Run) -> None:
    await run("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; tail -n +2 /proc/net/route")
    assert run.stdout == "lo\n"


async def test_a_listener_on_the_hosts_loopback_is_not_reachable(run: Run) -> None:
    async with echo_server() as (port, got):
        ended = await run(f"socat -T 2 - TCP:127.0.0.1:{port} </dev/null")
        assert ended.code != 0
        assert "Connection refused" in run.stderr
        assert got == []


async def test_a_socket_is_bridged_to_its_port_before_the_program_starts(run: Run) -> None:
    async with echo_server() as (port, got), UnixBridge(port) as bridge:
        run.sockets = {29080: bridge.path}
        ended = await run("printf ping | socat -t 5 - TCP:127.0.0.1:29080")
    assert ended.code == 0, run.stderr
    assert run.stdout == "hello from outside\nping"
    assert got == [b"ping"]


async def test_with_a_bridge_too_no_argument_passes_through_a_shell(run: Run) -> None:
    words = ["$(touch hacked)", "`touch hacked`", "; touch hacked", "--", "a 'b' \"c\"", "-n", ""]
    async with echo_server() as (port, _), UnixBridge(port) as bridge:
        run.sockets = {29080: bridge.path, 29081: bridge.path}
        await run.sandbox.run(run.spec("/usr/bin/printf", "<%s>", *words))
    assert run.stdout == "".join(f"<{word}>" for word in words)
    assert not (run.workspace / "hacked").exists()


async def test_the_bridges_are_no_children_of_the_program(run: Run) -> None:
    async with echo_server() as (port, _), UnixBridge(port) as bridge:
        run.sockets = {29080: bridge.path}
        await run('read -r children < /proc/$$/task/$$/children; echo "children:$children"; cat /proc/*/comm')
    first, *names = run.stdout.splitlines()
    assert "socat" in names
    assert first == "children:"


async def test_the_hosts_files_are_out_of_sight(run: Run) -> None:
    secret = run.folder / "secret"
    secret.write_text("x")
    ended = await run(
        f"ls -A /root /srv /mnt /opt {secret.parent} /etc/shadow /sys 2>&1 | grep -v 'No such file'; ls -A /tmp"
    )
    assert (ended.code, run.stdout) == (0, "")


async def test_passwd_names_no_user_of_the_host(run: Run) -> None:
    await run("cat /etc/passwd; id -un; cat /etc/resolv.conf; hostname")
    assert run.stdout == "agent:x:1000:1000::/home/agent:/bin/sh\nagent\npolar\n"


@pytest.mark.parametrize(
    "place", ["/", "/usr", "/etc", "/etc/passwd", "/etc/ssl/certs", "/proc/sys/kernel/core_pattern"]
)
async def test_the_system_is_read_only(run: Run, place: str) -> None:
    script = f"if [ -d {place} ]; then touch {place}/new; else echo x >> {place}; fi"
    ended = await run(script)
    assert ended.code != 0
    assert "Read-only file system" in run.stderr


async def test_no_kernel_setting_can_be_written_even_by_root(run: Run) -> None:
    await run("find /proc/sys /proc/irq /proc/bus /proc/fs /proc/acpi -type f -writable 2>/dev/null | head -3")
    assert run.stdout == ""


async def test_the_program_has_no_capability_and_is_nobody_special(run: Run) -> None:
    await run("grep -E '^Cap(Prm|Eff|Inh|Amb)' /proc/self/status; id -u")
    *capabilities, uid = run.stdout.splitlines()
    assert [line.split()[1] for line in capabilities] == ["0" * 16] * 4
    assert uid == "1000"


async def test_processes_of_the_host_are_out_of_sight(run: Run) -> None:
    await run(f"ls -d /proc/{os.getpid()} 2>&1; ls -d /proc/[0-9]* | wc -l")
    assert "No such file" in run.stdout
    assert int(run.stdout.split()[-1]) < 8


async def test_secrets_of_the_environment_are_not_on_any_command_line(run: Run) -> None:
    run.env = {"PATH": "/usr/bin:/bin", "TOKEN": "very-secret-token"}
    await run("cat /proc/*/cmdline | tr '\\0' ' '")
    assert "very-secret-token" not in run.stdout
    task = asyncio.create_task(run("sleep 60"))
    await asyncio.sleep(0.3)
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert any(str(run.workspace) in line for line in lines), "bwrap's own command line was not seen"
    assert not any("very-secret-token" in line for line in lines)


async def test_a_read_only_folder_is_seen_at_its_own_path_and_cannot_be_written(run: Run) -> None:
    install = run.folder / "install"
    install.mkdir()
    (install / "tool").write_text("tool\n")
    run.read_only = [install]
    ended = await run(f"cat {install}/tool; touch {install}/new")
    assert run.stdout == "tool\n"
    assert ended.code != 0
    assert not (install / "new").exists()


async def test_the_programs_own_127_is_told_from_a_sandbox_that_failed(run: Run) -> None:
    ended = await run("no-such-command")
    assert ended.code == 127


def test_check_says_which_package_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    problems = Bwrap().check()
    assert [problem.split(":")[0] for problem in problems] == ["bubblewrap is not installed", "socat is not installed"]
    assert "apt-get install bubblewrap" in problems[0]


def test_check_gives_bwraps_own_words_when_it_cannot_make_namespaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, script in (("bwrap", "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"), ("socat", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = Bwrap().check()
    assert "bwrap: No permissions to create new namespace" in problem
    assert "kernel.unprivileged_userns_clone" in problem


async def test_names_lead_to_the_socket_and_no_others_resolve(run: Run) -> None:
    async with echo_server() as (port, got), UnixBridge(port) as bridge:
        run.redirect = Redirect(("api.model.example",), bridge.path, bridge.path)
        await run("printf a | socat -t 5 - TCP:api.model.example:443; printf b | socat -t 5 - TCP:api.model.example:80")
        assert run.stdout == "hello from outside\nahello from outside\nb"
        assert got == [b"a", b"b"]
        ended = await run("socat -T 2 - TCP:elsewhere.example:443 </dev/null")
    assert ended.code != 0


async def test_every_name_and_address_leads_to_the_socket_by_its_port_alone(run: Run) -> None:
    async with echo_server() as (port, got), UnixBridge(port) as bridge, NameServer("ses_test") as names:
        run.redirect = Redirect(None, bridge.path, bridge.path, names.path)
        await run("printf a | socat -t 5 - TCP:any.name.example:443; printf b | socat -t 5 - TCP:203.0.113.9:80")
        assert run.stdout == "hello from outside\nahello from outside\nb"
        assert got == [b"a", b"b"]
        ended = await run("socat -T 2 - TCP:203.0.113.9:22 </dev/null")
    assert ended.code != 0
    assert "Connection refused" in run.stderr


@pytest.mark.parametrize("names", [("api.model.example",), None])
async def test_what_a_redirect_is_made_with_is_gone_before_the_program_begins(
    run: Run, names: tuple[str, ...] | None
) -> None:
    async with echo_server() as (port, _), UnixBridge(port) as bridge, NameServer("ses_test") as server:
        run.redirect = Redirect(names, bridge.path, bridge.path, None if names else server.path)
        await run(
            "grep -E '^Cap(Prm|Eff|Inh|Amb)' /proc/self/status; id -u; echo made > made.txt; ls -n made.txt;"
            " ip link add dummy0 type dummy 2>&1; ip route add local 10.0.0.0/8 dev lo 2>&1;"
            " ip route del local 0.0.0.0/0 dev lo 2>&1"
        )
    lines = run.stdout.splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["0" * 16] * 4
    assert lines[4] == "1000"
    assert lines[5].split()[2:4] == ["1000", "1000"]
    assert all("Operation not permitted" in line for line in lines[6:])
