"""Keeps the flows of each session in its folder, `flows.mitm`: what `mitmweb -r` opens."""

import asyncio
import errno
import logging
from io import BytesIO
from pathlib import Path

from mitmproxy import http, io

from polar_mitm.proxy.border import Border
from polar_mitm.proxy.sessions import Session

logger = logging.getLogger(__name__)


class KeepFlows:
    """Appends a flow when its answer is complete. Stands after Intercept, so that the record is on the flow."""

    name = "polar-flows"

    def __init__(self, border: Border) -> None:
        self.border = border
        self._one_at_a_time = asyncio.Lock()

    async def response(self, flow: http.HTTPFlow) -> None:
        await self._keep(flow)

    async def error(self, flow: http.HTTPFlow) -> None:
        await self._keep(flow)

    async def _keep(self, flow: http.HTTPFlow) -> None:
        session = self.border.by_flow.get(flow)
        if session is None or not flow.live:
            return
        async with self._one_at_a_time:
            await asyncio.to_thread(keep, session, flow, self.border.session_bytes)


def keep(session: Session, flow: http.HTTPFlow, limit: int) -> None:
    """Append the flow to its session's file, which may be over by now. What keeps it out is said, not raised."""
    path = session.log.folder.flows
    try:
        kept = _append(path, flow, limit)
    except OSError as error:
        logger.error("polar: %s can't be written: %s", path, error)
        return
    if not kept:
        session.log.limit(f"flows.mitm would pass the session's limit of {limit} bytes: not every flow is in it")


def _append(path: Path, flow: http.HTTPFlow, limit: int) -> bool:
    """Add the flow, or leave the file as it was: a torn flow would hide all that follow it from a reader.

    False where the file would be larger than `limit` bytes. Raises OSError.
    """
    whole = BytesIO()
    io.FlowWriter(whole).add(flow)
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        if end + len(whole.getbuffer()) > limit:
            return False
        written = file.write(whole.getbuffer())
        if written != len(whole.getbuffer()):
            file.truncate(end)
            raise OSError(errno.ENOSPC, f"only {written} of {len(whole.getbuffer())} bytes were written")
    return True
