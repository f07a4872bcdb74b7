"""Chat templates for the stand-in engine: one for each way in which real ones write a reply's end, and old thoughts.

A token is a byte, its id the byte's value + 10; the marks are tokens of their own, wherever they stand, as in vLLM.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

type Json = dict[str, Any]
type Template = Callable[[Sequence[Json], Sequence[Json], bool], str]
"""From messages, tools, and whether the model is to go on, to the prompt."""

MARKS = {"<|im_start|>": 1, "<|im_end|>": 2, "<|eot|>": 3, "<|user|>": 4, "<|observation|>": 5, "<|assistant|>": 6}
_NAMES = {token: mark.encode() for mark, token in MARKS.items()}
_WHOLE = _NAMES | {byte + 10: bytes([byte]) for byte in range(128)}
"""What is a character, or several, by itself."""
_SPLIT = re.compile(f"({'|'.join(map(re.escape, MARKS))})")


def encoded(text: str) -> list[int]:
    ids: list[int] = []
    for part in _SPLIT.split(text):
        ids += [MARKS[part]] if part in MARKS else [byte + 10 for byte in part.encode()]
    return ids


def decoded(ids: Sequence[int]) -> str:
    return b"".join(_WHOLE.get(token) or bytes([token - 10]) for token in ids).decode(errors="replace")


def pieces(ids: Sequence[int]) -> list[bytes]:
    """The bytes of each token. As vLLM gives them: a character of several tokens lies whole at its last one."""
    found: list[bytes] = []
    begun = b""
    for token in ids:
        if not begun and (whole := _WHOLE.get(token)):
            found.append(whole)
            continue
        begun += _WHOLE.get(token) or bytes([token - 10])
        try:
            begun.decode()
        except UnicodeDecodeError:
            found.append(b"")
        else:
            found.append(begun)
            begun = b""
    return found


def calls_text(message: Json) -> str:
    """Calls as templates write them: the arguments read and written anew."""
    text = ""
    for call in message.get("tool_calls") or []:
        arguments = json.dumps(json.loads(call["function"]["arguments"]))
        text += f'<tool_call>\n{{"name": "{call["function"]["name"]}", "arguments": {arguments}}}\n</tool_call>'
    return text


def chatml(messages: Sequence[Json], tools: Sequence[Json], go_on: bool) -> str:
    return _chatml(messages, tools, go_on, lambda message, index: message.get("reasoning") or "")


def forgetful(messages: Sequence[Json], tools: Sequence[Json], go_on: bool) -> str:
    """Thoughts are shown since the user's last words only; the last reply has an empty thought, if no other."""
    asked = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=0)

    def thought(message: Json, index: int) -> str:
        said = message.get("reasoning") or ""
        return said if index > asked and (said or index < len(messages) - 1) else "" if index < asked else said or "\n"

    return _chatml(messages, tools, go_on, thought)


def _chatml(messages: Sequence[Json], tools: Sequence[Json], go_on: bool, thought: Callable[[Json, int], str]) -> str:
    text = f"<|im_start|>system\n{json.dumps(tools)}<|im_end|>\n" if tools else ""
    for index, message in enumerate(messages):
        role = "user" if message["role"] == "tool" else message["role"]
        text += f"<|im_start|>{role}\n"
        if role == "assistant" and (said := thought(message, index)):
            text += f"<think>{said}</think>"
        text += f"{message.get('content') or ''}{calls_text(message)}<|im_end|>\n"
    return text + "<|im_start|>assistant\n" if go_on else text


def unclosed(messages: Sequence[Json], tools: Sequence[Json], go_on: bool) -> str:
    """Nothing closes a turn; the model ends its own with the mark that begins the next one."""
    marks = {"tool": "<|observation|>", "assistant": "<|assistant|>"}
    text = f"{json.dumps(tools)}\n" if tools else ""
    for message in messages:
        text += f"{marks.get(message['role'], '<|user|>')}\n{message.get('content') or ''}{calls_text(message)}"
    return text + "<|assistant|>\n" if go_on else text


def renamed_end(messages: Sequence[Json], tools: Sequence[Json], go_on: bool) -> str:
    """A reply in a history is closed with another mark than the model ends it with."""
    text = ""
    for message in messages:
        end = "<|eot|>" if message["role"] == "assistant" else "<|im_end|>"
        text += f"<|im_start|>{message['role']}\n{message.get('content') or ''}{calls_text(message)}{end}\n"
    return text + "<|im_start|>assistant\n" if go_on else text


def markless(messages: Sequence[Json], tools: Sequence[Json], go_on: bool) -> str:
    """Plain text, in which any line may be the end of a reply."""
    text = "".join(f"{m['role']}:\n{m.get('content') or ''}{calls_text(m)}\n" for m in messages)
    return text + "assistant:\n" if go_on else text
