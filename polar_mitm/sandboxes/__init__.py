"""Sandboxes by name. One file a sandbox; adding one is a file and a line here."""

from polar_mitm.sandboxes.base import Exit, Layout, RunSpec, Sandbox, SandboxError
from polar_mitm.sandboxes.bridge import UnixBridge
from polar_mitm.sandboxes.bwrap import Bwrap
from polar_mitm.sandboxes.container import Container
from polar_mitm.sandboxes.host import Host

SANDBOXES: dict[str, Sandbox] = {sandbox.NAME: sandbox for sandbox in (Host(), Bwrap(), Container())}

__all__ = ["SANDBOXES", "Exit", "Layout", "RunSpec", "Sandbox", "SandboxError", "UnixBridge"]
