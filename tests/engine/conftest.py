"""A real engine for the live tests, and a home of its own for those that write into it."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def engine_url() -> str:
    """A vLLM that serves `tiny`. Without one the test is skipped, in CI it fails."""
    if url := os.environ.get("POLAR_TEST_ENGINE_URL"):
        return url
    reason = "POLAR_TEST_ENGINE_URL names no engine (polar model serve tiny)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def polar_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path))
    return tmp_path
