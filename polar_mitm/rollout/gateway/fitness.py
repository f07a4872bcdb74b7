"""Whether sessions can be run here: there is room on the disk, and an engine answers."""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from polar_mitm.engine.pool import EnginePool

MIN_FREE = 512 * 1024 * 1024
"""Bytes. Below this no session is begun: those that run need it for their calls."""
PROBE = 64 * 1024
"""Bytes that are written to find out; a quota does not show in the free space."""


@dataclass(slots=True)
class Fitness:
    """What was found at the last look."""

    engine: EnginePool
    state: Path
    room: str | None = None
    """Why nothing can be written; None when it can."""

    @property
    def trouble(self) -> str | None:
        return self.room or self.engine.trouble

    async def look(self) -> None:
        self.room = await asyncio.to_thread(_room, self.state)


def _room(state: Path) -> str | None:
    probe = state / ".probe"
    try:
        free = shutil.disk_usage(state).free
        if free < MIN_FREE:
            return f"{state} has {free // 2**20} MiB of room, and needs {MIN_FREE // 2**20}"
        probe.write_bytes(bytes(PROBE))
        probe.unlink()
    except OSError as error:
        return f"nothing can be written to {state}: {error.strerror or error}"
    return None
