"""The real engine that all live tests share: started once a run, and only when a test asks for it."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from polar_mitm.engine.install import is_installed
from polar_mitm.engine.local import LocalEngine, trainable
from polar_mitm.engine.models import is_built
from tests.needs import need

HOME = os.environ.get("POLAR_HOME")


@pytest.fixture(scope="session")
def engine_url() -> Iterator[str]:
    """A vLLM that serves `tiny`: the one at $POLAR_TEST_ENGINE_URL, else the local one, started here if none runs."""
    if url := os.environ.get("POLAR_TEST_ENGINE_URL"):
        yield url
        return
    with at_home():
        ready = is_installed() and is_built("tiny")
        need([] if ready else ["the engine is not here: polar model install tiny"])
        engine = LocalEngine(launch=trainable)
        running = asyncio.run(engine.start("tiny"))
    yield running.url
    with at_home():
        asyncio.run(engine.stop())


@contextmanager
def at_home() -> Iterator[None]:
    """In the home that this run began with: the test that asks first may have set one of its own."""
    with pytest.MonkeyPatch.context() as patch:
        if HOME is None:
            patch.delenv("POLAR_HOME", raising=False)
        else:
            patch.setenv("POLAR_HOME", HOME)
        yield
