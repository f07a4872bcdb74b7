"""Where the tokenizer of a served model lies on this machine."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from polar_mitm.home import home
from polar_mitm.tokens.vocabulary import FILE, FileVocabulary, VocabularyError, read_vocabulary

logger = logging.getLogger(__name__)


def find_vocabulary(model: str) -> FileVocabulary | None:
    """By the name or path of the model: polar's own models, a folder, the cache of Hugging Face. None when not here."""
    try:
        for path in _candidates(model):
            if path.is_file():
                try:
                    return read_vocabulary(path)
                except VocabularyError as error:
                    logger.warning("polar: %s", error)
    except OSError as error:  # a name that can't be a path
        logger.warning("polar: no tokenizer of the model: %s", error)
    return None


def _candidates(model: str) -> Iterator[Path]:
    if not model or "\0" in model:
        return
    if Path(model).name == model:
        yield home() / "models" / model / FILE
    yield Path(model) / FILE
    snapshots = _hub() / f"models--{model.replace('/', '--')}" / "snapshots"
    if snapshots.is_dir():
        yield from sorted(snapshots.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)


def _hub() -> Path:
    """The folder of downloaded models, as huggingface_hub places it."""
    if configured := os.environ.get("HF_HUB_CACHE"):
        return Path(configured).expanduser()
    cache = os.environ.get("HF_HOME")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache" / "huggingface") / "hub"
