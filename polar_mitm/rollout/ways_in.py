"""The way from a sandbox to the proxy, by intercept mode: what the harness is told, and the sockets that lead out."""

from contextlib import AsyncExitStack

from polar_mitm.harnesses.base import Access, Intercept, mode_of
from polar_mitm.providers import PROVIDERS
from polar_mitm.proxy.master import EmbeddedProxy
from polar_mitm.proxy.names import NameServer
from polar_mitm.proxy.sessions import Session, Sessions
from polar_mitm.sandboxes import RunSpec, Sandbox, UnixBridge
from polar_mitm.sandboxes.base import Layout, Redirect

LOGIN_NAMES = ("chatgpt.com", "auth.openai.com", "oauth2.googleapis.com", "www.googleapis.com", "console.anthropic.com")
"""Hosts beside the providers' own that a logged-in harness asks."""

UNKNOWN_WINDOW = 32_768
"""Tokens that a harness plans with when the engine does not tell its window."""


def refusal(intercept: Intercept, sandbox: Sandbox) -> str | None:
    """Why this sandbox can't do it; None when it can."""
    if intercept in ("base-url", "proxy") or intercept in sandbox.REDIRECTS:
        return None
    return (
        f"the sandbox {sandbox.NAME} leads no name or address elsewhere, for its program has this machine's network: "
        "use --sandbox bwrap or container, or --intercept proxy"
    )


def access(intercept: Intercept, session: Session, layout: Layout, window: int) -> Access:
    """What the harness is set up with. `window` is in tokens."""
    told = intercept in ("base-url", "proxy")
    return Access(
        mode=mode_of(intercept),
        base_url=f"http://127.0.0.1:{layout.base_port}/s/{session.id}",
        proxy_url=f"http://{session.id}:{session.token}@127.0.0.1:{layout.proxy_port}" if told else "",
        key=session.token,
        model=session.engine.capabilities.model,
        max_model_len=window,
    )


async def open_ways(
    stack: AsyncExitStack,
    spec: RunSpec,
    intercept: Intercept,
    *,
    session: Session,
    sessions: Sessions,
    proxy: EmbeddedProxy,
    layout: Layout,
) -> None:
    """Open the sockets that the run needs until the stack is closed, and name them in its spec.

    They connect from an address of the session's own: whatever comes through them is this session's.
    """
    source = sessions.address(session)

    async def bridge(port: int) -> UnixBridge:
        return await stack.enter_async_context(UnixBridge(port, marker=session.id, source=source))

    base = await bridge(proxy.base_url_port)
    if intercept in ("base-url", "proxy"):
        spec.sockets = {layout.proxy_port: (await bridge(proxy.port)).path, layout.base_port: base.path}
        return
    https = await bridge(proxy.names_port)
    if intercept == "hosts":
        names = sorted({*LOGIN_NAMES, *(name for provider in PROVIDERS for name in provider.HOSTS)})
        spec.redirect = Redirect(tuple(names), https.path, base.path)
    else:
        dns = await stack.enter_async_context(NameServer(session.id))
        spec.redirect = Redirect(None, https.path, base.path, dns.path)
