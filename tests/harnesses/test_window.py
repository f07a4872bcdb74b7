"""A harness whose first prompt cannot fit the served window is refused before anything starts."""

import pytest

from polar_mitm.harnesses import HARNESSES
from polar_mitm.harnesses.window import too_long


def test_the_refusal_says_both_numbers_and_what_to_do() -> None:
    assert too_long(HARNESSES["claude-code"], 8192, HARNESSES.values()) == (
        "the first prompt of claude-code has about 12,200 tokens, and the served window is 8,192, prompt and answer "
        "together: serve a model with a window of 24,400 or more, or choose pi (1,400), pi-frozen (1,400), "
        "opencode (7,600), mini-swe-agent (950)"
    )


def test_without_a_harness_that_fits_none_is_named() -> None:
    said = too_long(HARNESSES["pi"], 512, HARNESSES.values())
    assert said
    assert said.endswith("serve a model with a window of 2,800 or more")


@pytest.mark.parametrize("name", list(HARNESSES))
def test_every_harness_fits_a_window_of_32768(name: str) -> None:
    assert too_long(HARNESSES[name], 32_768, HARNESSES.values()) is None
