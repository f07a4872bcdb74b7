"""A name server for sandboxes that know no network: every name is polar's."""

import asyncio
import struct
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from mitmproxy.dns import DNSMessage, ResourceRecord
from mitmproxy.net import dns

from polar_mitm.sandboxes.scratch import prefix

ADDRESS = b"\xc6\x12\x00\x01"
"""198.18.0.1, of a block that no machine of the internet has."""
TTL_S = 60
LARGEST = 65_535


class NameServer:
    """`async with NameServer(marker) as names:` answers queries, one a connection, at the unix socket `names.path`.

    IPv4 addresses exist for every name, and nothing else does.
    """

    def __init__(self, marker: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=prefix(marker), dir="/tmp")
        self._server: asyncio.Server | None = None

    @property
    def path(self) -> Path:
        return Path(self._folder.name) / "dns"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(_serve, self.path)
        self.path.chmod(0o600)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server
        self._server.close()
        self._folder.cleanup()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Each datagram comes as one read, and goes as one write."""
    try:
        while query := await reader.read(LARGEST):
            if reply := answer(query):
                writer.write(reply)
                await writer.drain()
    except OSError:
        pass  # who asked has left
    finally:
        writer.close()


def answer(query: bytes) -> bytes | None:
    """The reply to a DNS query; None for what is none."""
    try:
        message = DNSMessage.unpack(query, time.time())
    except (ValueError, struct.error):
        return None
    if not message.query:
        return None
    return message.succeed(
        [
            ResourceRecord(question.name, dns.types.A, dns.classes.IN, TTL_S, ADDRESS)
            for question in message.questions
            if (question.type, question.class_) == (dns.types.A, dns.classes.IN)
        ]
    ).packed
