"""What harnesses print when they print JSON lines: the events among whatever else came out of the same output."""

import json
from collections.abc import Iterator
from typing import Any


def events(stdout: str) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines. A line cut by a kill, or one of another program, is passed over."""
    for line in stdout.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def complaint(stdout: str) -> str:
    """What the last event that tells of a failure says, for a person to read; empty where none does."""
    last = ""
    for event in events(stdout):
        match event:
            case (
                {"type": "result", "is_error": True, "result": str(words)}  # Claude Code
                | {"type": "result", "error": {"message": str(words)}}  # Qwen Code, Gemini CLI
                | {"type": "result", "is_error": True, "subtype": str(words)}  # Claude Code at a limit
                | {"type": "error", "error": {"data": {"message": str(words)}}}  # opencode
                | {"type": "error", "message": str(words)}  # Codex
                | {"type": "turn.failed", "error": {"message": str(words)}}  # Codex
            ):
                last = words.strip() or last
    return last


def texts(blocks: list[Any]) -> str:
    """The text of content blocks. A program that the agent ran can have written them: nothing in them is certain."""
    found = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                found.append(text)
    return "\n".join(found).strip()
