"""The proxy in front of the stand-in engine, and, live, in front of a real vLLM that serves `tiny`."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.stage import Stage


@dataclass(frozen=True)
class Front:
    """`async with front(Reply("Hi.")) as on:` - a real engine samples what it likes; the record says what that was."""

    real: bool
    open: Callable[..., AbstractAsyncContextManager[Stage]]

    def __call__(self, *replies: Reply, **options: Any) -> AbstractAsyncContextManager[Stage]:
        return self.open(*replies, **options)


@pytest.fixture(params=["fake", pytest.param("tiny", marks=pytest.mark.live)])
def front(request: pytest.FixtureRequest, stage: Staged) -> Front:
    if request.param == "fake":
        return Front(False, stage)
    url = request.getfixturevalue("engine_url")

    def real(*replies: Reply, **options: Any) -> AbstractAsyncContextManager[Stage]:
        return stage(engine_url=url, **options)

    return Front(True, real)
