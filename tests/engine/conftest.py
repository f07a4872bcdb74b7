"""A real engine for the live tests, and a home of its own for those that write into it."""

from pathlib import Path

import pytest


@pytest.fixture
def polar_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path))
    return tmp_path
