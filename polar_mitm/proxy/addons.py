"""Which addons make a polar, in their order."""

from polar_mitm.proxy.border import Border
from polar_mitm.proxy.fence import Fence
from polar_mitm.proxy.flows import KeepFlows
from polar_mitm.proxy.intercept import Intercept
from polar_mitm.proxy.standalone import Standalone


def core(border: Border) -> list[object]:
    """For a proxy whose sessions are opened by the program that embeds it."""
    return [Fence(border), Intercept(border), KeepFlows(border)]


def standalone() -> list[object]:
    """For a proxy that serves one session for anyone, set up by mitmproxy options."""
    border = Border()
    return [*core(border), Standalone(border)]
