"""The `bwrap` sandbox: the program runs in namespaces of its own, made by bubblewrap.

It sees a read-only system, a private HOME, its workspace and the harness install; it has no route to any network, the
host's loopback included. What it may reach comes as unix sockets, each bridged by `socat` to a port of its loopback.
It filters no system call.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath

from polar_mitm.sandboxes.base import (
    Exit,
    Layout,
    Redirect,
    RunSpec,
    SandboxError,
    ended,
    limited,
    refuse_own,
    to_the_end,
)
from polar_mitm.sandboxes.limits import Cgroup
from polar_mitm.sandboxes.scratch import prefix
from polar_mitm.sandboxes.trust import system_bundle, write_bundle

WORKSPACE = PurePosixPath("/workspace")
HOME = PurePosixPath("/home/agent")
CA = PurePosixPath("/run/polar/ca.pem")
SOCKETS = PurePosixPath("/run/polar")
CA_BUNDLE = PurePosixPath("/etc/ssl/certs/ca-certificates.crt")

# Inside, the ports are the same in every run, so that what the model may see of them never differs between samples.
# Above the ports that a task's own servers like to use, below the ephemeral range (32768).
PROXY_PORT = 29080
BASE_PORT = 29081

KILLED = 128 + signal.SIGKILL

# Uid and gid inside, also for root: a harness that finds itself uid 0 refuses or asks for more flags.
UID = 1000

# Programs look for the roots in one of these, by distribution.
_BUNDLE_PLACES = (CA_BUNDLE, "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")

_ETC = (
    "alternatives",
    "crypto-policies",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "pki/tls/openssl.cnf",
    "protocols",
    "services",
    "ssl/openssl.cnf",
    "terminfo",
)

# Kernel settings that outer root may write through procfs whatever its capabilities: bubblewrap 0.8 leaves /proc/sys
# writable there, and a harness run by root could change core_pattern of the whole machine.
_PROC_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/fs", "/proc/acpi", "/proc/scsi")

# Starts a socat for each port before "--", waits until each listens (state 0A in /proc/net/tcp, 07 for UDP), then
# becomes the program. The subshell makes the bridges children of pid 1: the program finds none that it never started.
# For a redirect the ports are those of names and of the whole world: every IPv4 address is made this machine's own, the
# resolver too. That takes a root with capabilities; the program begins in a user namespace below, as the same nobody as
# ever and with none.
_BRIDGE = """
ports= address=127.0.0.1 drop=
case "$1" in
  hosts) drop=yes; shift ;;
  transparent) drop=yes address=0.0.0.0; shift; ip route add local 0.0.0.0/0 dev lo || exit 125 ;;
esac
while [ "$1" != -- ]; do
  case "$1" in
    53) socket="UDP-RECVFROM:53,bind=127.0.0.1,fork,reuseaddr" ;;
    *) socket="TCP-LISTEN:$1,bind=$address,fork,reuseaddr" ;;
  esac
  (socat "$socket" "UNIX-CONNECT:/run/polar/$1.sock" </dev/null >/dev/null &)
  ports="$ports $1"
  shift
done
shift
for port in $ports; do
  line=$(printf ':%04X 00000000:0000 0[7A] ' "$port")
  tries=0
  until cat /proc/net/tcp /proc/net/udp | grep -q "$line"; do
    tries=$((tries + 1))
    if [ "$tries" -gt 500 ]; then echo "polar: the bridge on port $port did not open within 10 s" >&2; exit 125; fi
    sleep 0.02
  done
done
if [ -n "$drop" ]; then exec unshare --user --map-user=1000 --map-group=1000 -- "$@"; fi
exec "$@"
"""

_INSTALL = "apt-get install {0} (Debian, Ubuntu), dnf install {0} (Fedora), apk add {0} (Alpine)"


class Bwrap:
    NAME = "bwrap"
    REDIRECTS = frozenset({"hosts", "transparent"})

    def check(self) -> list[str]:
        if sys.platform != "linux":
            return ["the bwrap sandbox needs Linux: use --sandbox host"]
        missing = [
            f"{package} is not installed: {_INSTALL.format(package)}"
            for program, package in (("bwrap", "bubblewrap"), ("socat", "socat"))
            if shutil.which(program) is None
        ]
        return missing or _try_namespaces()

    def layout(
        self,
        *,
        workspace: Path,
        home: Path,
        ca: Path | None,
        proxy_port: int,
        base_port: int,
        workdir: PurePosixPath | None = None,
    ) -> Layout:
        """The same in every run of a task, whatever the host's paths and ports are."""
        return Layout(
            workspace=workdir or WORKSPACE,
            home=HOME,
            ca=CA if ca else None,
            ca_bundle=CA_BUNDLE if ca else None,
            proxy_port=PROXY_PORT,
            base_port=BASE_PORT,
        )

    async def run(self, spec: RunSpec) -> Exit:
        refuse_own(spec)
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=prefix(spec.marker)) as etc:
            async with limited(spec) as group:
                process, status = await _start(spec, Path(etc), group)
                try:
                    try:
                        timed_out, over = await ended(process, spec, group)
                    finally:
                        await to_the_end(_end(process, status))
                    seconds = time.monotonic() - started
                    report = _report(status)
                    if timed_out or (over and report.get("exit-code", KILLED) == KILLED):
                        return Exit(None, timed_out, seconds, over)
                    if "exit-code" not in report:
                        raise SandboxError(f"{spec.argv[0]} could not be run: {_tail(spec.stderr)}")
                    return Exit(report["exit-code"], False, seconds, over)
                finally:
                    os.close(status)

    def sweep(self, marker: str) -> None:
        """Nothing: bubblewrap's processes die with the polar that started them."""


async def _start(spec: RunSpec, etc: Path, group: Cgroup) -> tuple[asyncio.subprocess.Process, int]:
    """The running bwrap, and the descriptor of a file in which it reports (see `_report`)."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError(f"bubblewrap is not installed: {_INSTALL.format('bubblewrap')}")
    status = os.open(etc / "status", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    arguments = [
        *_namespaces(spec.redirect),
        *_system(etc, spec.redirect),
        *_mounts(spec),
        "--json-status-fd",
        str(status),
    ]
    arguments += ["--chdir", str(spec.workdir or WORKSPACE), "--", *_program(spec)]
    with ExitStack() as files:
        stdin = files.enter_context(spec.stdin.open("rb")) if spec.stdin else asyncio.subprocess.DEVNULL
        stdout = files.enter_context(spec.stdout.open("wb"))
        stderr = files.enter_context(spec.stderr.open("wb"))
        try:
            # The environment is bwrap's own, handed on: --setenv would show secrets in the process list.
            process = await asyncio.create_subprocess_exec(
                *group.entering([bwrap, *arguments]),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=spec.env,
                start_new_session=True,
                pass_fds=(status,),
            )
        except BaseException:
            os.close(status)
            raise
    return process, status


def _namespaces(redirect: Redirect | None = None) -> list[str]:
    kinds = ("user", "net", "pid", "ipc", "uts", "cgroup-try")
    uid, capabilities = UID, list[str]()
    if redirect is not None:
        uid, capabilities = 0, ["CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN", "CAP_SETFCAP"]  # the last to map uid 0 below
    return [
        *(f"--unshare-{kind}" for kind in kinds),
        *("--uid", str(uid), "--gid", str(uid), "--hostname", "polar", "--cap-drop", "ALL"),
        *(word for name in capabilities for word in ("--cap-add", name)),
        "--die-with-parent",
        "--new-session",
    ]


def _system(etc: Path, redirect: Redirect | None = None) -> Iterator[str]:
    """The read-only system, with an /etc that tells nothing of this machine. `etc` is a scratch folder."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        path = Path(name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), name)
        elif path.is_dir():
            yield from ("--ro-bind", name, name)
    for name in _ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    yield from ("--proc", "/proc", "--dev", "/dev")
    for name in _PROC_READ_ONLY:
        yield from ("--ro-bind-try", name, name)
    yield from ("--tmpfs", "/tmp", "--tmpfs", "/run", "--dir", "/var", "--symlink", "../tmp", "/var/tmp")
    names = (redirect.names or ()) if redirect else ()
    own = {
        "passwd": f"agent:x:{UID}:{UID}::{HOME}:/bin/sh\n",
        "group": f"agent:x:{UID}:\n",
        "hosts": "".join(["127.0.0.1 localhost polar\n::1 localhost\n", *(f"127.0.0.1 {name}\n" for name in names)]),
        "hostname": "polar\n",
        "resolv.conf": "nameserver 127.0.0.1\n" if redirect and redirect.names is None else "",
    }
    for name, text in own.items():
        (etc / name).write_text(text)
        yield from ("--ro-bind", str(etc / name), f"/etc/{name}")


def _mounts(spec: RunSpec) -> Iterator[str]:
    """What belongs to this run. Mounted after the system, so that an install under /tmp shows through its tmpfs."""
    bundle = write_bundle(spec.ca) if spec.ca else system_bundle()
    if bundle is not None:
        for place in _BUNDLE_PLACES:
            yield from ("--ro-bind", str(bundle), str(place))
    if spec.ca is not None:
        yield from ("--ro-bind", str(spec.ca), str(CA))
    for folder in spec.read_only:
        yield from ("--ro-bind", str(folder), str(folder))
    yield from ("--bind", str(spec.home), str(HOME))
    yield from ("--bind", str(spec.workspace), str(spec.workdir or WORKSPACE))
    for port, socket in _sockets(spec).items():
        yield from ("--ro-bind", str(socket), str(SOCKETS / f"{port}.sock"))
    yield from ("--remount-ro", "/")


def _program(spec: RunSpec) -> Sequence[str]:
    sockets = [str(port) for port in _sockets(spec)]
    if not sockets:
        return spec.argv
    redirect = [] if spec.redirect is None else ["transparent" if spec.redirect.names is None else "hosts"]
    return ["/bin/sh", "-c", _BRIDGE, "polar-bridge", *redirect, *sockets, "--", *spec.argv]


def _sockets(spec: RunSpec) -> dict[int, Path]:
    if spec.redirect is None:
        return spec.sockets
    redirected = {443: spec.redirect.https, 80: spec.redirect.http}
    if spec.redirect.dns is not None:
        redirected[53] = spec.redirect.dns
    return spec.sockets | redirected


async def _end(process: asyncio.subprocess.Process, status: int) -> None:
    """Kill pid 1 of the namespace: the kernel ends everything in it before bwrap can reap it and end too."""
    for _ in range(50):
        if process.returncode is not None:
            return
        # Before its report there is only bwrap, and --die-with-parent takes what it is making.
        victim = _report(status).get("child-pid", process.pid)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 1)
    raise SandboxError("bwrap is still running after 50 s of SIGKILL")


def _report(status: int) -> dict[str, int]:
    """What bwrap said so far: `child-pid` once the namespaces stand, `exit-code` once the program has ended."""
    report: dict[str, int] = {}
    for line in os.pread(status, 65536, 0).splitlines():
        try:
            report |= json.loads(line)
        except json.JSONDecodeError:
            break  # the last line is still being written
    return report


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:].strip() or "it said nothing"


def _try_namespaces() -> list[str]:
    """Make the very namespaces of a run once; bwrap's own words when they cannot be made."""
    bwrap = shutil.which("bwrap") or "bwrap"
    with tempfile.TemporaryDirectory(prefix="polar-bwrap-") as etc:
        command = [bwrap, *_namespaces(), *_system(Path(etc)), "--", "/bin/sh", "-c", "exit 0"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, env={}, check=False)
        except subprocess.TimeoutExpired:
            return ["bwrap did not finish an empty command within 10 s"]
    if done.returncode == 0:
        return []
    return [
        f"bwrap cannot make its namespaces here: {done.stderr.strip()} "
        "(allow unprivileged user namespaces: sysctl kernel.unprivileged_userns_clone=1 on Debian, "
        "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu; in a container: run it with "
        "--security-opt seccomp=unconfined and --cap-add SYS_ADMIN; or use --sandbox host)"
    ]
