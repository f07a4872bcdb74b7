"""Keeps the flows of each session in its folder, `flows.mitm`: what `mitmweb -r` opens."""

import asyncio
import logging
from pathlib import Path

from mitmproxy import http, io

from polar_mitm.proxy.border import Border

logger = logging.getLogger(__name__)


class KeepFlows:
    """Appends a flow when its answer is complete. Stands after Intercept, so that the record is on the flow."""

    def __init__(self, border: Border) -> None:
        self.border = border

    async def response(self, flow: http.HTTPFlow) -> None:
        await self._keep(flow)

    async def error(self, flow: http.HTTPFlow) -> None:
        await self._keep(flow)

    async def _keep(self, flow: http.HTTPFlow) -> None:
        session = self.border.sessions.find(flow.metadata.get("polar_session"))
        if session is None or not flow.live:
            return
        try:
            await asyncio.to_thread(_append, session.log.folder.flows, flow)
        except OSError as error:
            logger.error("polar: %s can't be written: %s", session.log.folder.flows, error)
            session.log.poison(f"flows.mitm: {error}")


def _append(path: Path, flow: http.HTTPFlow) -> None:
    with path.open("ab") as file:
        io.FlowWriter(file).add(flow)
