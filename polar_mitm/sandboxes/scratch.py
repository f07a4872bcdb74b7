"""Temporary folders of a run, named by its session, so that those of a polar that was killed can be found."""

import shutil
import tempfile
from pathlib import Path

PLACES = {Path(tempfile.gettempdir()), Path("/tmp")}
"""The second holds sockets, whose paths must be short."""


def prefix(marker: str) -> str:
    """For `tempfile`: what the names of this run's temporary folders begin with."""
    return f"polar-{marker}-"


def sweep(session_id: str) -> None:
    """Remove the temporary folders of a session that has ended, those of its evaluation too."""
    for place in PLACES:
        for pattern in (prefix(session_id), f"polar-{session_id}."):
            for left in place.glob(pattern + "*"):
                shutil.rmtree(left, ignore_errors=True)
