"""A PostgreSQL of the tests' own: a fresh cluster in a temporary folder, on a unix socket, as a user without rights.

The binaries are the system's (`make postgres` installs them).
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

STARTS_S = 60


def missing() -> list[str]:
    """Why no cluster can be started here."""
    return [] if _folder() else ["PostgreSQL is not installed: make postgres"]


@contextmanager
def cluster() -> Iterator[str]:
    """The address of a running cluster, `postgresql://<user>@/{}?host=<folder>`; `{}` stands for a database's name."""
    binaries = _folder()
    assert binaries
    user = _user()
    place = Path(tempfile.mkdtemp(prefix="polar-pg-", dir="/tmp"))  # a path of a socket has 107 bytes at most
    try:
        if os.geteuid() == 0:
            shutil.chown(place, user)
        data = place / "data"
        _run(user, [binaries / "initdb", "-D", data, "-U", user, "-A", "trust", "-E", "UTF8", "--no-sync"])
        settings = f"-c listen_addresses='' -c unix_socket_directories={place} -c max_connections=200"
        control = [binaries / "pg_ctl", "-D", data, "-w", "-t", str(STARTS_S), "-l", place / "log"]
        _run(user, [*control, "-o", settings, "start"])
        try:
            yield f"postgresql://{user}@/{{}}?host={place}"
        finally:
            _run(user, [binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(place, ignore_errors=True)


def restart(address: str) -> None:
    """End the cluster at once, as a crash would, and start it again."""
    binaries = _folder()
    assert binaries
    data = Path(address.partition("?host=")[2]) / "data"
    _run(_user(), [binaries / "pg_ctl", "-D", data, "-w", "-t", str(STARTS_S), "-m", "immediate", "restart"])


def _folder() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def _user() -> str:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _run(user: str, argv: Sequence[str | Path]) -> None:
    rights = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    starts = argv[-1] in ("start", "restart")
    done = subprocess.run(
        [str(part) for part in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if starts else subprocess.PIPE,  # the server would keep the pipe open
        stderr=subprocess.DEVNULL if starts else subprocess.STDOUT,
        text=True,
        cwd="/",
        **rights,  # type: ignore[call-overload]
    )
    if done.returncode:
        raise RuntimeError(f"{argv[0]}: {done.stdout or done.returncode}")
