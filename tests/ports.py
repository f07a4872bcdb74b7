"""Loopback ports for tests that start servers as processes."""

import random
import socket
import time

RANGE = (12_000, 32_000)
"""Below the ports that Linux gives to whoever asks for any: one of those may be gone in the seconds of a start."""


def free_port() -> int:
    """A port that was free a moment ago."""
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.SystemRandom().randrange(*RANGE)))
            except OSError:
                continue
            return int(probe.getsockname()[1])


def wait_for_port(port: int, *, seconds: float) -> None:
    """Wait until something listens. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"nothing listened on port {port} within {seconds:g} s")
