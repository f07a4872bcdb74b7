"""Whether a harness's first prompt fits the window of the model that is served."""

from collections.abc import Iterable

from polar_mitm.harnesses.base import Harness

SURE = 0.75
"""Share of `first_prompt` that no tokenizer goes below: SmolLM2's has 49,000 tokens, and larger ones need fewer."""

SMALLEST_ANSWER = 256
"""Tokens."""


def too_long(harness: Harness, max_model_len: int, others: Iterable[Harness]) -> str | None:
    """Why no first prompt of the harness fits, with the mend; None where it may. `max_model_len` is in tokens."""
    prompt = harness.FACTS.first_prompt
    if prompt * SURE + SMALLEST_ANSWER <= max_model_len:
        return None
    smaller = [
        f"{other.NAME} ({other.FACTS.first_prompt:,})"
        for other in others
        if other.FACTS.source and other.FACTS.first_prompt + SMALLEST_ANSWER <= max_model_len
    ]
    choice = f", or choose {', '.join(smaller)}" if smaller else ""
    return (
        f"the first prompt of {harness.NAME} has about {prompt:,} tokens, and the served window is {max_model_len:,}, "
        f"prompt and answer together: serve a model with a window of {prompt * 2:,} or more{choice}"
    )
