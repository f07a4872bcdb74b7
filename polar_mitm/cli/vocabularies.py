"""Which tokenizer shows a session's tokens: the named one, else the model's own where it lies, else the engine's."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.capture.record import Call
from polar_mitm.cli.shell import default_engine_url
from polar_mitm.engine.sample import decode_matches
from polar_mitm.engine.vocabulary import NoVocabulary, ask_vocabulary
from polar_mitm.tokens.find import find_vocabulary
from polar_mitm.tokens.vocabulary import Vocabulary, read_vocabulary

Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", exists=True, help="The model's folder or tokenizer.json. [default: found by the model's name]"
    ),
]
EngineUrl = Annotated[
    str | None,
    typer.Option("--engine-url", help="Ask this vLLM where no tokenizer is found here; $POLAR_ENGINE_URL."),
]

MEND = "--tokenizer FOLDER names the model's own"


@dataclass(slots=True, frozen=True)
class Known:
    vocabulary: Vocabulary | None
    note: str
    """Where it comes from, or why there is none; and when it does not fit these calls, that."""


def vocabulary_for(calls: Sequence[Call], tokenizer: Path | None, engine_url: str | None) -> Known:
    """For calls of one model. Raises VocabularyError when the named tokenizer can't be read."""
    vocabulary: Vocabulary | None
    if tokenizer:
        vocabulary = read_vocabulary(tokenizer)
    else:
        model = next((call.engine.model for call in calls if call.engine), "")
        vocabulary = find_vocabulary(model)
        url = engine_url or default_engine_url()
        if vocabulary is None and url:
            ids = {token for call in calls for token in [*call.prompt_ids, *_sampled(call)]}
            try:
                vocabulary = asyncio.run(ask_vocabulary(url, model, ids))
            except NoVocabulary as error:
                return Known(None, f"tokens are shown as ids: the engine did not decode them: {error}; {MEND}")
        if vocabulary is None:
            return Known(None, f"tokens are shown as ids: no tokenizer of {model!r} is on this machine; {MEND}")
    if not all(_fits(vocabulary, call) for call in calls):
        return Known(vocabulary, f"{vocabulary.source} is not the tokenizer of these tokens: the texts differ; {MEND}")
    return Known(vocabulary, f"decoded by {vocabulary.source}")


def _sampled(call: Call) -> list[int]:
    return call.response.response_ids if call.response else []


def _fits(vocabulary: Vocabulary, call: Call) -> bool:
    """Whether the decoded ids hold the text that was captured with them."""
    if not call.response or not call.checks.valid:
        return True
    sampled = b"".join(vocabulary.bytes_of(token) or b"" for token in call.response.response_ids)
    return (
        decode_matches(sampled.decode(errors="replace"), call.response.text, call.response.reasoning, ()) is not False
    )
