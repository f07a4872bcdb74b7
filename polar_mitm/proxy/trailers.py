"""Trailers of a chunked body are dropped, as RFC 9110 (6.5.1) lets a recipient do.

mitmproxy 12 reads chunks with h11 and, where trailers follow them, gives up the whole connection with a traceback.
"""

from h11 import Data, EndOfMessage
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from mitmproxy.proxy.layers.http import _http1


class _WithoutTrailers(ChunkedReader):
    def __call__(self, buf: ReceiveBuffer) -> Data | EndOfMessage | None:
        event = super().__call__(buf)
        return EndOfMessage() if isinstance(event, EndOfMessage) else event


def drop_trailers() -> None:
    """From here on, in this process. Safe to call twice."""
    _http1.ChunkedReader = _WithoutTrailers  # type: ignore[attr-defined]
