"""Which addons make a polar, in their order."""

from collections.abc import Callable

from polar_mitm.capture.record import Call
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.fence import Fence
from polar_mitm.proxy.flows import KeepFlows
from polar_mitm.proxy.intercept import Intercept
from polar_mitm.proxy.lines import log_call
from polar_mitm.proxy.look import Look
from polar_mitm.proxy.standalone import Standalone
from polar_mitm.proxy.trailers import drop_trailers


def core(border: Border) -> list[object]:
    """For a proxy whose sessions are opened by the program that embeds it."""
    drop_trailers()
    return [Fence(border), Intercept(border), KeepFlows(border), Look()]


def standalone(on_call: Callable[[Call, str], None] = log_call) -> list[object]:
    """For a proxy that serves one session for anyone, set up by mitmproxy options. `on_call` shows what it served."""
    border = Border(on_call=on_call)
    return [*core(border), Standalone(border)]
