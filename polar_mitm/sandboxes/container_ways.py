"""The ways out of a container that has no network: unix sockets, each bridged to a port of its loopback by `socat`.

Where every address is to lead to polar, a second container enters the network of the first for a moment and makes all
of IPv4 its own. The program's own container never has the right to do that.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from polar_mitm.sandboxes.base import RunSpec, SandboxError, to_the_end
from polar_mitm.sandboxes.carried import IP, SOCAT, carried
from polar_mitm.sandboxes.images import engine, said

DNS: Final = 53
TRIES: Final = 600

# Start a socat for each port before "--", wait until each listens, say so, become the program. The image may have
# nothing but a shell. A resolver's port is known from /proc/net/udp: no answer tells that nobody listens there.
ENTRY: Final = """
address=127.0.0.1
if [ "$1" = transparent ]; then all=yes address=0.0.0.0; shift; fi
open() {
  if [ "$1" != 53 ]; then /polar/socat/run -u OPEN:/dev/null "TCP:127.0.0.1:$1" 2>/dev/null; return; fi
  while read -r _ local _; do case "$local" in *:0035) return 0 ;; esac; done </proc/net/udp
  return 1
}
while [ "$1" != -- ]; do
  case "$1" in
    53) socket="UDP-RECVFROM:53,bind=127.0.0.1,fork,reuseaddr" ;;
    *) socket="TCP-LISTEN:$1,bind=$address,fork,reuseaddr" ;;
  esac
  (/polar/socat/run "$socket" "UNIX-CONNECT:/polar/$1.sock" </dev/null >/dev/null &)
  tries=0
  until open "$1"; do
    tries=$((tries + 1))
    if [ "$tries" -gt 500 ]; then echo "polar: the bridge on port $1 did not open" >&2; exit 125; fi
  done
  shift
done
shift
if [ -n "$all" ]; then
  tries=0
  until /polar/socat/run -u OPEN:/dev/null TCP:198.18.0.1:443 2>/dev/null; do
    tries=$((tries + 1))
    if [ "$tries" -gt 1200 ]; then echo "polar: no way was made for every address" >&2; exit 125; fi
    sleep 0.1
  done
fi
unset address all socket tries
if command -v "$1" >/dev/null; then echo started > /polar/status; exec "$@"; fi
echo "$1: No such file" >&2
"""


def transparent(spec: RunSpec) -> bool:
    return spec.redirect is not None and spec.redirect.names is None


def sockets(spec: RunSpec) -> dict[int, Path]:
    """The unix sockets by the port that leads to each."""
    if spec.redirect is None:
        return spec.sockets
    redirected = {443: spec.redirect.https, 80: spec.redirect.http}
    if spec.redirect.dns is not None:
        redirected[DNS] = spec.redirect.dns
    return spec.sockets | redirected


def entry(spec: RunSpec) -> list[str]:
    """What comes before "--" on the command line of the entry."""
    return [*(["transparent"] if transparent(spec) else []), *map(str, sockets(spec))]


def arguments(spec: RunSpec, scratch: Path) -> Iterator[str]:
    """Those of the engine's `run`. `scratch` is a folder of the run's."""
    ways = sockets(spec)
    if ways:
        yield from ("--volume", f"{carried(SOCAT)}:/polar/socat:ro")
    for port, socket in ways.items():
        yield from ("--volume", f"{socket}:/polar/{port}.sock")
    if spec.redirect is None:
        return
    yield from ("--sysctl", "net.ipv4.ip_unprivileged_port_start=0")  # the image's user need not be root
    for name in spec.redirect.names or ():
        yield from ("--add-host", f"{name}:127.0.0.1")
    if transparent(spec):
        resolver = scratch / "resolv.conf"
        resolver.write_text("nameserver 127.0.0.1\n")
        yield from ("--volume", f"{resolver}:/etc/resolv.conf:ro")


async def lead_all(name: str, image: str, variant: Sequence[str], process: asyncio.subprocess.Process) -> None:
    """Make every IPv4 address the container's own, as soon as it is there. Raises SandboxError."""
    command = [
        *("run", "--rm", *variant, "--name", f"{name}-ways", "--pull", "never", "--network", f"container:{name}"),
        *("--user", "0", "--cap-drop", "ALL", "--cap-add", "NET_ADMIN", "--security-opt", "no-new-privileges"),
        *("--volume", f"{carried(IP)}:/polar/ip:ro", "--entrypoint", "/bin/sh", image),
        *("/polar/ip/run", "route", "add", "local", "0.0.0.0/0", "dev", "lo"),
    ]
    for _ in range(TRIES):  # until the engine has started the container
        running = await asyncio.to_thread(said, "inspect", "--format", "{{.State.Running}}", name)
        if process.returncode is not None or running.stdout.strip() == "true":
            break
        await asyncio.sleep(0.1)
    # To its end: the engine removes no container whose network another one is in.
    made = await to_the_end(asyncio.to_thread(said, *command))
    if made.returncode != 0 and process.returncode is None:
        words = made.stderr.strip()[-500:]
        raise SandboxError(f"{Path(engine()).name} could not lead every address to polar: {words}")
