"""Small tokenizers of the two common kinds, as their `tokenizer.json` says it."""

from pathlib import Path
from typing import Any

import orjson

from polar_mitm.tokens.vocabulary import FileVocabulary, read_vocabulary

BYTES = 256
"""Of the byte-level one: ids 0 to 255 are the bytes, then come WORDS, then SPECIAL."""
WORDS = [" hello", " world", "\n\n", "\t\t", "é", "<tool_call>"]
SPECIAL = ["<|im_start|>", "<|im_end|>"]


def spell(content: bytes) -> str:
    """Byte-level spelling, by the rule and not by the table under test."""
    shifted = [byte for byte in range(256) if byte < 0x21 or 0x7F <= byte <= 0xA0 or byte == 0xAD]
    return "".join(chr(0x100 + shifted.index(byte)) if byte in shifted else chr(byte) for byte in content)


def byte_level() -> dict[str, Any]:
    spellings = [spell(bytes([byte])) for byte in range(BYTES)] + [spell(word.encode()) for word in WORDS[:-1]]
    added = [
        {"id": len(spellings) + place, "content": content, "special": content in SPECIAL}
        for place, content in enumerate([WORDS[-1], *SPECIAL])
    ]
    return {
        "added_tokens": added,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True},
        "model": {"type": "BPE", "vocab": {spelling: token_id for token_id, spelling in enumerate(spellings)}},
    }


def byte_fallback() -> dict[str, Any]:
    """The way of Llama 2 and Gemma: a blank is `▁`, a byte that has no token `<0xE2>`. As a unigram model has it."""
    tokens = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁hello", "lo", "▁"]
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True}],
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {"type": "Unigram", "vocab": [[token, -1.0] for token in tokens]},
    }


def write(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_bytes(orjson.dumps(content))
    return path


def vocabulary(folder: Path, content: dict[str, Any] | None = None) -> FileVocabulary:
    return read_vocabulary(write(folder, content or byte_level()))


def word(content: str) -> int:
    """The id of one of WORDS or SPECIAL."""
    return BYTES + [*WORDS, *SPECIAL].index(content)
