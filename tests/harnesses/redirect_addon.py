"""For `mitmdump -s`: send every request to the loopback port that stands in the file $FAKE_PROVIDER_PORT_FILE."""

import os
from pathlib import Path

from mitmproxy import http


def request(flow: http.HTTPFlow) -> None:
    flow.request.scheme = "http"
    flow.request.host = "127.0.0.1"
    flow.request.port = int(Path(os.environ["FAKE_PROVIDER_PORT_FILE"]).read_text())
