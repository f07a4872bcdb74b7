"""The actor that keeps one gateway process, `polar gateway serve`. An ordinary class: `ray` makes actors of it."""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Final, TypedDict

from polar_mitm.rollout.cluster.placing import NODE, Placing, Secret

TOKEN: Final = "POLAR_ROLLOUT_TOKEN"
BAD_USAGE: Final = 2
"""The exit code of a program that begun again would end the same."""
PR_SET_PDEATHSIG: Final = 1
LEAVING_S: Final = 40.0
"""What a gateway is given to end its sessions and to leave."""
PAUSES_S: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
"""Before a gateway's process is begun again, by how often it ended; the last for ever."""
WELL_S: Final = 60.0
"""After which a process that ends is taken for one that had started well."""


class Health(TypedDict):
    node: str
    """Address of the node that the actor is on."""
    running: bool
    starts: int
    """Of the gateway's process, by this actor."""
    trouble: str | None
    """What a process that ended said last."""


class GatewayActor:
    """One gateway process on the node that Ray gave the actor. It ends with the actor, and is begun again without."""

    def __init__(self, name: str, url: str, token: Secret, placing: Placing, node: str | None = None) -> None:
        """`node`: the node's address, by default what Ray says."""
        self.node = node or _node()
        self.folder = placing.state / name
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ours = ("--server-url", url, "--name", name, "--host", self.node, "--state", str(self.folder / "state"))
        given = (argument.replace(NODE, self.node) for argument in placing.arguments)
        self._command = (*placing.program, *ours, *given)
        self._environment = os.environ | {TOKEN: token.value}
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._keep, name=f"keeps {name}", daemon=True)
        self._thread.start()

    def health(self) -> Health:
        process = self._process
        running = process is not None and process.poll() is None
        return Health(node=self.node, running=running, starts=self._starts, trouble=self._trouble)

    def stop(self) -> None:
        """End the gateway in order: its sessions are reported, and the server is told that it leaves."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join(LEAVING_S)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()

    def _keep(self) -> None:
        """Begin the process, and begin it again. Its parent, to the kernel, is this thread: both end together."""
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            code = self._run()
            if code == BAD_USAGE or self._stopping.is_set():
                return
            failures = 0 if time.monotonic() - began > WELL_S else failures + 1
            self._stopping.wait(PAUSES_S[min(failures, len(PAUSES_S)) - 1])

    def _run(self) -> int:
        log = self.folder / "log"
        with log.open("ab") as file:
            start = file.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(os.getpid()), *self._command],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._starts += 1
        if self._stopping.is_set():
            self._process.terminate()
        code = self._process.wait()
        with log.open("rb") as file:
            file.seek(start)
            said = file.read()[-2000:].decode(errors="replace").strip()
        self._trouble = f"exit code {code}: {said}"
        return code


_CHILD: Final = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGTERM)})
if os.getppid() != int(sys.argv[1]):
    sys.exit("the actor is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Run before the gateway: whoever begins it may be gone already, and then nothing would ever end it."""


def _node() -> str:
    import ray

    address: str = ray.util.get_node_ip_address()
    return address
