"""Where polar keeps what it installs and shares between runs: engine, models, harnesses, running engines."""

import os
from pathlib import Path

import platformdirs


def home() -> Path:
    """`$POLAR_HOME`, else the user's cache folder for polar-mitm."""
    if configured := os.environ.get("POLAR_HOME"):
        return Path(configured).expanduser().resolve()
    return platformdirs.user_cache_path("polar-mitm")
