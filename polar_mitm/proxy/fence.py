"""What may pass: nothing. The only socket ever dialled is polar's own loopback, for a call that waits there.

Layers, so that one failing leaves the others: every flow is answered locally; a connection to any other address is
killed before it is dialled; and mitmproxy's own options (a block list that answers 403, no raw TCP, lazy connections,
sockets bound to loopback) stay in force when this addon is gone, say after a reload of a broken script.
"""

import ipaddress
from typing import Any

from mitmproxy import ctx, exceptions
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from polar_mitm.proxy.border import Border

BLOCK_ALL = "|~all|403"

LOCKED: dict[str, Any] = {
    "connection_strategy": "lazy",  # a CONNECT is answered without a DNS look-up or a dial
    "http2": False,  # an h2 stream reset is invisible to a waiting hook, and h2 calls queue five at a time
    "rawtcp": False,  # what is not HTTP would be relayed to its address unread
    "ignore_hosts": [],  # names here are tunnelled to the internet unread
    "allow_hosts": [],  # and so is every name not listed here
    "tcp_hosts": [],
    "stream_large_bodies": None,  # a streamed request is dialled before any addon sees it, and its body is never read
    "connect_addr": "127.0.0.1",  # the kernel takes a socket bound to loopback nowhere else
    "emudhra": False,  # a certificate authority whose private key is public
    "emudhra_old": False,
}

DEFAULTS: dict[str, Any] = {
    "body_size_limit": "128m",  # twice what is read at most: what comes beyond it is not even gathered
    "tcp_timeout": 7200,  # seconds; the watchdog would cut a call that the engine works on for long
    "store_streamed_bodies": True,  # a streamed answer is in the saved flow and in mitmweb
    "keep_host_header": True,  # base-URL calls show the host that the client asked
    "upstream_cert": False,  # no look at a real server's certificate
}


MODES = ("regular", "transparent", "socks5", "reverse:http:", "reverse:https:")
"""The others pass traffic on unread, look names up, or hand it to another proxy."""


def lock(options: Any) -> list[str]:
    """Put the safe options in force; returns the names of those for which someone had chosen an unsafe value."""
    known = [name for name in LOCKED if name in options]
    overridden = [name for name in known if getattr(options, name) not in (LOCKED[name], options.default(name))]
    wanted = {name: value for name, value in {**DEFAULTS, **LOCKED}.items() if name in options}
    blocks = list(options.block_list)
    if BLOCK_ALL not in blocks:
        wanted["block_list"] = [*blocks, BLOCK_ALL]
    if not options.listen_host:
        wanted["listen_host"] = "127.0.0.1"
    options.update(**wanted)
    return overridden


def _refused(name: str) -> exceptions.OptionsError:
    why = "any other value can let traffic leave this machine"
    return exceptions.OptionsError(f"polar: option {name} must stay {LOCKED[name]!r}: {why}")


class Fence:
    """Locks the options and kills every connection that is not the diverted one."""

    name = "polar-fence"

    def __init__(self, border: Border) -> None:
        self.border = border
        self.overridden: list[str] = []

    def load(self, loader: Loader) -> None:
        # An error here would leave mitmproxy running without this addon. In `configure` it ends one that starts.
        self.overridden = lock(ctx.options)

    def configure(self, updated: set[str]) -> None:
        if self.overridden:
            raise _refused(self.overridden.pop())
        for name in updated & LOCKED.keys():
            if getattr(ctx.options, name) != LOCKED[name]:
                raise _refused(name)
        if "block_list" in updated and BLOCK_ALL not in ctx.options.block_list:
            raise exceptions.OptionsError(f"polar: block_list must keep {BLOCK_ALL!r}, which outlives a broken addon")
        if "mode" in updated:
            for mode in ctx.options.mode:
                if not mode.startswith(MODES):
                    raise exceptions.OptionsError(f"polar: mode {mode} can let traffic leave this machine")

    def client_connected(self, client: Client) -> None:
        """mitmdump listens before its script can say where: on every address, when nobody named one."""
        if _is_loopback(ctx.options.listen_host) and not _is_loopback(client.peername[0]):
            client.error = "polar: this proxy serves its own machine only; set listen_host to let others in"

    def server_connect(self, data: ServerConnectionHookData) -> None:
        named, loopback = self.border.diverted.get(data.client, (None, None))
        if loopback and data.server.address == named and not data.server.via:
            data.server.address = loopback
        else:
            data.server.error = "polar: nothing leaves this machine"


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
