"""For `mitmdump -s`: send every request to the port $WIRE_PORT of this machine, with the host it was meant for."""

import os

from mitmproxy import http

from tests.wire.canned import HOST_HEADER


def request(flow: http.HTTPFlow) -> None:
    flow.request.decode()
    flow.request.headers[HOST_HEADER] = flow.request.pretty_host
    flow.request.scheme = "http"
    flow.request.host = "127.0.0.1"
    flow.request.port = int(os.environ["WIRE_PORT"])
