"""The text of token ids, asked of the engine, where its tokenizer's files are not here.

The engine decodes whole characters only: a token that is a part of one comes back as U+FFFD.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from polar_mitm.tokens.find import find_vocabulary
from polar_mitm.tokens.vocabulary import Vocabulary

_LIMIT_S: Final = 20.0
_AT_ONCE: Final = 16
MOST_IDS: Final = 5_000
"""vLLM decodes one id in about a millisecond, and each id is a request of its own."""


class NoVocabulary(Exception):
    """The engine does not tell what its tokens are. The message names it and why."""


@dataclass(slots=True, frozen=True)
class EngineVocabulary:
    source: str
    _texts: dict[int, str]

    def bytes_of(self, token_id: int) -> bytes | None:
        text = self._texts.get(token_id)
        return None if text is None else text.encode()

    def is_special(self, token_id: int) -> bool:
        text = self._texts.get(token_id, "")
        return text.startswith("<|") and text.endswith("|>")


async def ask_vocabulary(url: str, model: str, ids: Iterable[int]) -> Vocabulary:
    """The tokenizer of `model` at the engine's `url`: its files where the engine's folder is on this machine, else the
    text of these ids, one by one. Raises NoVocabulary."""
    base = url.rstrip("/").removesuffix("/v1").rstrip("/")
    wanted = sorted(set(ids))
    try:
        where = str(URL(base).with_user(None))
        if len(wanted) > MOST_IDS:
            raise NoVocabulary(f"{len(wanted)} different tokens are too many to ask {where} for")
        async with (
            asyncio.timeout(_LIMIT_S),
            aiohttp.ClientSession(trust_env=False, connector=aiohttp.TCPConnector(limit=_AT_ONCE)) as session,
        ):
            root = await _root(session, base, model)
            if found := await asyncio.to_thread(find_vocabulary, root):
                return found
            texts = await asyncio.gather(*(_text(session, base, model, token_id) for token_id in wanted))
    except (aiohttp.ClientError, OSError, TimeoutError, KeyError, TypeError, ValueError) as error:
        raise NoVocabulary(str(error) or type(error).__name__) from error
    return EngineVocabulary(f"the engine at {where}", dict(zip(wanted, texts, strict=True)))


async def _root(session: aiohttp.ClientSession, base: str, model: str) -> str:
    """The folder or name that the engine loaded the model from; the model's own name where it does not say."""
    async with session.get(f"{base}/v1/models") as answer:
        if answer.status != 200:  # it wants a key; /detokenize does not
            return model
        served = (await answer.json())["data"]
    return next((entry.get("root") or model for entry in served if entry["id"] == model), model)


async def _text(session: aiohttp.ClientSession, base: str, model: str, token_id: int) -> str:
    async with session.post(f"{base}/detokenize", json={"model": model, "tokens": [token_id]}) as answer:
        answer.raise_for_status()
        text = (await answer.json())["prompt"]
    if not isinstance(text, str):
        raise TypeError("/detokenize gave no text")
    return text
