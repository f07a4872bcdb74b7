"""The bytes of each token, read from a model's `tokenizer.json`: byte for byte, with no text put back together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from polar_mitm.errors import BadInput

FILE: Final = "tokenizer.json"


class VocabularyError(BadInput):
    """A tokenizer file that cannot be used: which, what is wrong, and how to mend it."""

    def __init__(self, path: Path, what: str, mend: str = "name the folder of the model that was served") -> None:
        super().__init__(f"{path}: {what} ({mend})")


class Vocabulary(Protocol):
    @property
    def source(self) -> str:
        """Where it comes from, for a person."""
        ...

    def bytes_of(self, token_id: int) -> bytes | None:
        """What the token adds to the text, in UTF-8, which may be part of a character. None: it has no such token."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether it is a token of the template (`<|im_end|>`), which no text holds."""
        ...


@dataclass(slots=True)
class FileVocabulary:
    """The vocabulary of a `tokenizer.json`."""

    source: str
    _tokens: Mapping[int, str]
    _added: Mapping[int, str]
    _special: frozenset[int]
    _decode: Callable[[str], bytes]
    _known: dict[int, bytes | None] = field(default_factory=dict)

    def bytes_of(self, token_id: int) -> bytes | None:
        if token_id not in self._known:
            self._known[token_id] = self._look_up(token_id)
        return self._known[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def _look_up(self, token_id: int) -> bytes | None:
        if (added := self._added.get(token_id)) is not None:
            return added.encode()
        token = self._tokens.get(token_id)
        return None if token is None else self._decode(token)


def read_vocabulary(path: Path) -> FileVocabulary:
    """Of a `tokenizer.json`, or of the folder that holds one. Raises VocabularyError."""
    file = path / FILE if path.is_dir() else path
    try:
        content = orjson.loads(file.read_bytes())
    except OSError as error:
        raise VocabularyError(file, error.strerror or str(error)) from error
    except orjson.JSONDecodeError as error:
        raise VocabularyError(file, f"not JSON: {error}") from error
    try:
        return FileVocabulary(
            source=str(file),
            _tokens=_tokens(content["model"]["vocab"]),
            _added={added["id"]: added["content"] for added in content["added_tokens"]},
            _special=frozenset(added["id"] for added in content["added_tokens"] if added["special"]),
            _decode=_decoder(content["decoder"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = "it is no tokenizer.json whose tokens can be told byte by byte"
        raise VocabularyError(file, f"{what}: {error}") from error


def _tokens(vocab: Any) -> dict[int, str]:
    """By id. BPE models have token -> id, unigram ones a list of [token, score]."""
    if isinstance(vocab, list):
        return {token_id: entry[0] for token_id, entry in enumerate(vocab)}
    return {token_id: token for token, token_id in vocab.items()}


def _decoder(config: Any) -> Callable[[str], bytes]:
    """What a token's spelling stands for. ValueError for a decoder whose tokens depend on their neighbours."""
    steps = config["decoders"] if config["type"] == "Sequence" else [config]
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _from_byte_level
    if not kinds & {"ByteFallback", "Metaspace"}:
        raise ValueError(f"decoder {', '.join(sorted(kinds))}")
    replaced = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
    replaced += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]
    return lambda token: _from_byte_fallback(token, replaced)


def _from_byte_fallback(token: str, replaced: list[tuple[str, str]]) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    for pattern, content in replaced:
        token = token.replace(pattern, content)
    return token.encode()


def _from_byte_level(token: str) -> bytes:
    """Byte-level BPE spells each byte as one character, so that no spelling holds a blank or a control character."""
    try:
        return bytes(_BYTES[sign] for sign in token)
    except KeyError:
        return token.encode()


def _byte_level_alphabet() -> dict[str, int]:
    """Printable Latin-1 stands for itself, the other bytes, in order, for the characters from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTES: Final = _byte_level_alphabet()
