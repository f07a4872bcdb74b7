"""A small chat template with its tokenizer, for sessions without an engine.

Text is cut into words and signs, each a token; any of them can also be spelled in letters, which is how a sample comes
to be the same text in other tokens. Special tokens have no text.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SYSTEM, USER, ASSISTANT, TOOL, CALL, CALLED, THINK, THOUGHT, IMAGE = range(1, 10)
END, OTHER_END = 20, 21
"""END closes every rendered message; a model may end a turn with either."""
SPECIAL = 32
LETTERS = 256
"""Ids from SPECIAL to LETTERS are single characters, ids from LETTERS on are words."""

_PIECES = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(slots=True)
class Template:
    """How messages become tokens.

    `spaced`: the arguments of tool calls are rendered as JSON with spaces, whatever was sampled. `forgetful`: thinking
    of earlier turns is left out once a user message follows.
    """

    spaced: bool = False
    forgetful: bool = False
    words: dict[str, int] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)

    def encode(self, text: str) -> list[int]:
        return [token for piece in _PIECES.findall(text) for token in self._piece(piece)]

    def spell(self, text: str) -> list[int]:
        """The same text, one token a letter."""
        return [token for letter in text for token in self._letter(letter)]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.texts.get(token, f"<{token}>" if token < SPECIAL else "?") for token in ids)

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """The whole prompt, the beginning of an answer at its end."""
        ids: list[int] = []
        last_user = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=0)
        for number, message in enumerate(messages):
            if number == 0 and tools:
                ids += [SYSTEM, *self.encode(" ".join(tool["function"]["name"] for tool in tools)), END]
            match message["role"]:
                case "assistant":
                    keep = not self.forgetful or number > last_user
                    ids += [ASSISTANT, *self.answer(message, thinking=keep, spaced=self.spaced), END]
                case role:
                    start = {"system": SYSTEM, "user": USER, "tool": TOOL}[role]
                    ids += [start, *self._content(message["content"]), END]
        return [*ids, ASSISTANT]

    def answer(self, message: dict[str, Any], *, thinking: bool = True, spaced: bool = False) -> list[int]:
        """What stands between the beginning of an answer and its end of turn."""
        ids: list[int] = []
        if thinking and message.get("reasoning"):
            ids += [THINK, *self.encode(message["reasoning"]), THOUGHT]
        ids += self.encode(message.get("content") or "")
        for call in message.get("tool_calls") or []:
            arguments = call["function"]["arguments"]
            if spaced:
                arguments = json.dumps(json.loads(arguments))
            ids += [CALL, *self.encode(call["function"]["name"]), *self.encode(arguments), CALLED]
        return ids

    def _content(self, content: str | list[dict[str, Any]]) -> list[int]:
        if isinstance(content, str):
            return self.encode(content)
        return [
            token
            for part in content
            for token in ([IMAGE] if part["type"] == "image_url" else self.encode(part["text"]))
        ]

    def _piece(self, piece: str) -> list[int]:
        if len(piece) == 1:
            return self._letter(piece)
        token = self.words.setdefault(piece, LETTERS + len(self.words))
        self.texts[token] = piece
        return [token]

    def _letter(self, letter: str) -> list[int]:
        token = SPECIAL + ord(letter) % (LETTERS - SPECIAL)
        self.texts[token] = letter
        return [token]
