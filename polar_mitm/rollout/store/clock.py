"""The server's clock: Unix seconds that do not jump while it runs, whatever is done to the machine's clock."""

import time


class Clock:
    def __init__(self) -> None:
        self._started = time.time()
        self._monotonic = time.monotonic()

    def now(self) -> float:
        """Unix seconds, as the machine's clock told them at the start."""
        return self._started + (time.monotonic() - self._monotonic)
