"""Proves each way in: a real request from inside each sandbox, by each intercept mode, through a real proxy."""

import asyncio
import base64
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from polar_mitm.capture.session import SessionFolder, SessionLog, SessionRecord, new_session_id
from polar_mitm.engine.pool import EnginePool
from polar_mitm.harnesses.base import Access, Intercept
from polar_mitm.harnesses.environment import environment
from polar_mitm.proxy.addons import core
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.master import EmbeddedProxy, ProxyFailed
from polar_mitm.proxy.sessions import Session
from polar_mitm.rollout.ways_in import UNKNOWN_WINDOW, open_ways, refusal
from polar_mitm.sandboxes import SANDBOXES, RunSpec, Sandbox, SandboxError
from polar_mitm.sandboxes.base import Layout
from polar_mitm.sandboxes.base_image import BASE_IMAGE
from polar_mitm.sandboxes.images import has_image

LIMIT_S: Final = 60.0
HOST: Final = "api.anthropic.com"
"""A name that every mode must lead to polar. It is never asked itself: nothing leaves this machine."""

_ASK: Final = """\
import sys, urllib.request
url, proxy = sys.argv[1:3]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({"https": proxy} if proxy else {}))
print(opener.open(url, timeout=20).read().decode())
"""

# An image need not have a program that speaks TLS; the sandbox's own socat does. mitmproxy takes a half-closed client
# for one that has left: hence ignoreeof.
_ASK_BY_SOCAT: Final = """\
case "$1" in
  base-url) way="TCP:127.0.0.1:$3"; target="$2/healthz"; more="" ;;
  proxy) way="TCP:127.0.0.1:$3"; target="http://$4/healthz"; more="Proxy-Authorization: Basic $2\\r\\n" ;;
  *) way="OPENSSL:$4:443,cafile=$2,snihost=$4"; target="/healthz"; more="" ;;
esac
head="GET $target HTTP/1.1\\r\\nHost: $4\\r\\n${more}Connection: close"
printf "$head\\r\\n\\r\\n" | /polar/socat/run -T 20 -,ignoreeof "$way"
"""


@dataclass(slots=True, frozen=True)
class Proof:
    sandbox: str
    intercept: str
    ok: bool
    says: str
    possible: bool = True
    """False where the sandbox cannot have this mode on any machine."""


async def proofs() -> AsyncIterator[Proof]:
    """A proof for each sandbox that works here and each mode. Raises ProxyFailed."""
    border = Border()
    async with EmbeddedProxy(core(border), names=True) as proxy:
        for name, sandbox in SANDBOXES.items():
            lacks = await asyncio.to_thread(_lacks, name, sandbox)
            for intercept in get_args(Intercept.__value__):
                if why := refusal(intercept, sandbox):
                    yield Proof(name, intercept, False, why, possible=False)
                elif lacks:
                    yield Proof(name, intercept, False, lacks)
                else:
                    yield await _prove(sandbox, intercept, border, proxy)


def _lacks(name: str, sandbox: Sandbox) -> str | None:
    if problems := sandbox.check():
        return "; ".join(problems)
    if name == "container" and not has_image(BASE_IMAGE):
        return f"there is no image {BASE_IMAGE}: make it with `polar sandbox image`"
    return None


async def _prove(sandbox: Sandbox, intercept: Intercept, border: Border, proxy: EmbeddedProxy) -> Proof:
    with tempfile.TemporaryDirectory(prefix="polar-proof-") as folder:
        try:
            said = await _ask(sandbox, intercept, border, proxy, Path(folder))
        except (SandboxError, OSError, ProxyFailed) as error:
            return Proof(sandbox.NAME, intercept, False, str(error))
    ok = '"ok"' in said
    return Proof(sandbox.NAME, intercept, ok, "a request came through" if ok else f"no answer: {said[-300:]}")


async def _ask(sandbox: Sandbox, intercept: Intercept, border: Border, proxy: EmbeddedProxy, scratch: Path) -> str:
    """What a program in the sandbox gets for `/healthz`, or its last words."""
    folder = SessionFolder.create(scratch, new_session_id())
    record = SessionRecord(session_id=folder.path.name, started_at=0)
    session = Session(folder.path.name, SessionLog(folder, record), EnginePool.of(["http://127.0.0.1:9"]).seat("proof"))
    border.sessions.add(session)
    workspace, home = scratch / "workspace", scratch / "home"
    workspace.mkdir()
    home.mkdir()
    layout = sandbox.layout(
        workspace=workspace, home=home, ca=proxy.ca, proxy_port=proxy.port, base_port=proxy.base_url_port
    )
    told = Access("proxy", "", "", session.token, "", UNKNOWN_WINDOW)
    ask = _by_socat if sandbox.NAME == "container" else _asking
    spec = RunSpec(
        argv=ask(intercept, session, layout),
        env=environment(told, layout),
        workspace=workspace,
        home=home,
        stdout=scratch / "out",
        stderr=scratch / "err",
        timeout_s=LIMIT_S,
        marker=session.id,
        ca=proxy.ca,
        read_only=[Path(sys.base_prefix)],
        image=BASE_IMAGE if sandbox.NAME == "container" else None,
    )
    try:
        async with AsyncExitStack() as stack:
            await open_ways(
                stack, spec, intercept, session=session, sessions=border.sessions, proxy=proxy, layout=layout
            )
            ended = await sandbox.run(spec)
    finally:
        border.sessions.remove(session)
        session.log.close("completed")
    if ended.timed_out:
        return f"it took more than {LIMIT_S:g} s"
    return spec.stdout.read_text() or spec.stderr.read_text(errors="replace").strip().rpartition("\n")[2]


def _asking(intercept: Intercept, session: Session, layout: Layout) -> list[str]:
    url, through = f"https://{HOST}/healthz", ""
    if intercept == "base-url":
        url = f"http://127.0.0.1:{layout.base_port}/s/{session.id}/healthz"
    elif intercept == "proxy":
        through = f"http://{session.id}:{session.token}@127.0.0.1:{layout.proxy_port}"
    return [f"{sys.base_prefix}/bin/python3", "-I", "-c", _ASK, url, through]


def _by_socat(intercept: Intercept, session: Session, layout: Layout) -> list[str]:
    given, port = str(layout.ca_bundle), 0
    if intercept == "base-url":
        given, port = f"/s/{session.id}", layout.base_port
    elif intercept == "proxy":
        credentials = base64.b64encode(f"{session.id}:{session.token}".encode()).decode()
        given, port = credentials, layout.proxy_port
    return ["/bin/sh", "-c", _ASK_BY_SOCAT, "polar-proof", intercept, given, str(port), HOST]
