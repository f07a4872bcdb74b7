"""What a live test needs of the machine: skipped with the reason where it is missing, failed where CI promised it."""

import os
from collections.abc import Sequence

import pytest


def need(problems: Sequence[str]) -> None:
    """Skip the test when there are problems; in CI fail it: nobody would notice a test that is always skipped."""
    if not problems:
        return
    if os.environ.get("CI"):
        pytest.fail("; ".join(problems))
    pytest.skip("; ".join(problems))
