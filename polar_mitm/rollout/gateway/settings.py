"""What a gateway is set up with."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polar_mitm.prompts import Tokens


@dataclass(slots=True, frozen=True)
class Workers:
    """Places in each stage: preparing and grading never take a place to run."""

    preparing: int = 2
    ready: int = 2
    """Sessions that may stand prepared beside those that run."""
    running: int = 4
    grading: int = 2
    waiting: int = 16
    """Sessions in line before that."""

    @property
    def capacity(self) -> int:
        """Sessions that the gateway holds at once, in all stages together."""
        return self.waiting + self.ready + self.running + self.grading


@dataclass(slots=True, frozen=True, kw_only=True)
class Settings:
    server_url: str
    token: str = field(repr=False)
    engine_urls: Sequence[str]
    state: Path
    """Folder of the sessions, and of reports that the server has not answered yet. It outlives the process."""
    scenarios: Path | None = None
    """Folder of the scenarios that this gateway knows by name."""
    name: str = field(default_factory=socket.gethostname)
    host: str = "127.0.0.1"
    port: int = 0
    url: str | None = None
    """Where the server reaches it; None is `http://<host>:<port>`."""
    workers: Workers = Workers()
    tokens: Tokens | None = None
    """How prompts go to the engine; None is as it can."""
    policy_version: str | None = None
    """Of the weights that the engines serve at first, in the trainer's words."""
    keep: bool = False
    """Sessions' folders stay when the server has them."""
    labels: dict[str, str] = field(default_factory=dict)
