"""A recorded request without its prose, ids, secrets, dates and paths: what stays is its shape.

JSON keys, names of tools and parameters, types, roles and enum values stay as they are. Everything else becomes filler
of the same length, or the n-th id of its kind.
"""

import json
import re
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from tests.wire.filler import filler, is_filler

type Json = dict[str, Any]

HEADERS: Final = frozenset(
    {
        *("accept", "anthropic-beta", "anthropic-version", "authorization", "content-encoding", "content-type"),
        *("conversation_id", "openai-beta", "originator", "session-id", "session_id", "thread-id", "upgrade"),
        *("user-agent", "x-api-key", "x-app", "x-claude-code-agent-id", "x-claude-code-agent-type"),
        *("x-claude-code-prompt-id", "x-claude-code-request-class", "x-claude-code-session-id", "x-client-request-id"),
        *("x-codex-parent-thread-id", "x-codex-turn-metadata", "x-codex-window-id", "x-gemini-api-privileged-user-id"),
        *("x-goog-api-key", "x-openai-internal-codex-responses-lite", "x-openai-subagent", "x-opencode-project"),
        *("x-opencode-request", "x-opencode-session", "x-parent-session-id", "x-session-affinity", "x-session-id"),
        *("x-stainless-retry-count", "x-claude-1p-request-class", "x-dashscope-authtype", "x-opencode-client"),
    }
)
"""Headers that are part of a fixture: who is calling, for whom, and by which features of the API."""

SECRETS: Final = frozenset({"authorization", "x-api-key", "x-goog-api-key"})
SECRET: Final = "key-of-this-run"

PROSE_KEYS: Final = frozenset(
    {"content", "definition", "description", "input", "instructions", "output", "system", "text", "thinking", "title"}
)
"""Fields whose text is prose whatever it looks like."""

# Codex names a sub-agent by lot.
NICKNAME: Final = "/kemi"

IDENTIFIER = re.compile(r"[\w.:/@+*=?&^$%#~;,-]{1,40}")
SCHEMA_URL: Final = "https://json-schema.org/draft/2020-12/schema"

# Beta features and some fields have long names.
_NAME = re.compile(r"[\w-]{1,60}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# At least one digit, so that a long word with an underscore is none.
_ID = re.compile(r"\b(?=[A-Za-z]*[_-]?[A-Za-z]*\d)(?:[a-z]{2,12}[_-])?[0-9A-Za-z]{16,}\b")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ][\d:.]+(Z|[+-]\d\d:?\d\d)?)?")
_PATH = re.compile(r"(file://)?/\S+")
_SETTLED_ID = re.compile(r"([a-z]{2,12}[_-])?[0-9:-]+")
# Unix seconds and milliseconds of this century.
_TIMESTAMPS = range(10**9, 10**13)


class Scrubber:
    """Scrubs the requests of one run, in order: an id is the same in all of them."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._numbers = count(1)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers of a fixture, by lower-case name, sorted."""
        kept = {name.lower(): value for name, value in headers.items() if name.lower() in HEADERS}
        return {name: self._header(name, kept[name]) for name in sorted(kept)}

    def body(self, value: Any, key: str = "") -> Any:
        match value:
            case dict():
                # Codex writes its metadata in the order of a hash table, which differs in each run.
                items = sorted(value.items()) if key == "client_metadata" else value.items()
                return {_UUID.sub(self._id, name): self.body(inner, name) for name, inner in items}
            case list():
                return [self.body(inner, key) for inner in value]
            case str():
                return self._text(value, key)
            case bool():
                return value
            case int() | float() if int(value) in _TIMESTAMPS:
                return 10 ** (len(str(int(value))) - 1)
            case _:
                return value

    def _header(self, name: str, value: str) -> str:
        if name in SECRETS:
            return f"Bearer {SECRET}" if value.startswith("Bearer ") else SECRET
        if name == "user-agent":
            # Without the comment in brackets, which names this machine.
            return " ".join(re.sub(r"\([^)]*\)", "", value).split())
        return value if "-beta" in name else self._text(value, "")

    def _text(self, text: str, key: str) -> str:
        if key == "nickname" or (key == "agent_name" and text.startswith("/")):
            return NICKNAME
        if packed := _packed(text):
            return json.dumps(self.body(packed), ensure_ascii=False)
        if key in PROSE_KEYS:
            return filler(text)
        if text == SCHEMA_URL:
            return text
        if _DATE.fullmatch(text):
            return re.sub(r"\d", "0", text)
        if _PATH.fullmatch(text):
            return "/".join(map(filler, text.split("/")))
        text = _ID.sub(self._id, _UUID.sub(self._id, text))
        return text if IDENTIFIER.fullmatch(text) or _SETTLED_ID.fullmatch(text) else filler(text)

    def _id(self, match: re.Match[str]) -> str:
        """The n-th id of the run, in the shape of this one."""
        found = match[0]
        if found not in self._ids:
            number = str(next(self._numbers))
            prefix = re.match(r"[a-z]{2,12}[_-]", found)
            kept = prefix[0] if prefix and not _UUID.fullmatch(found) else ""
            digits = re.sub(r"[0-9A-Za-z]", "0", found[len(kept) :])
            self._ids[found] = kept + digits[: -len(number)] + number
        return self._ids[found]


def prose(value: Any) -> list[str]:
    """The texts, at any depth, that are neither filler nor names, ids or numbers: a fixture has none."""
    match value:
        case dict():
            return [text for item in value.items() for inner in item for text in prose(inner)]
        case list():
            return [text for inner in value for text in prose(inner)]
        case str():
            if packed := _packed(value):
                return prose(packed)
            return [] if _says_nothing(value) else [value]
        case _:
            return []


def header_prose(headers: Mapping[str, str]) -> list[str]:
    """The same for headers, which may be lists of names: a name has no space in it."""
    return [value for name, value in headers.items() if not _is_plain_header(name, value)]


def _is_plain_header(name: str, value: str) -> bool:
    if name in ("authorization", "user-agent"):
        return len(value.split()) <= 5 and all(len(part) <= 60 for part in value.split())
    if _packed(value):
        return not prose(value)
    return all(_says_nothing(item) for item in re.split(", ?", value))


def _packed(text: str) -> Json | None:
    """The object that a text holds as JSON, as tool arguments and some headers do."""
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _says_nothing(text: str) -> bool:
    return (
        text == SCHEMA_URL
        or is_filler(text)
        or any(pattern.fullmatch(text) for pattern in (IDENTIFIER, _NAME, _SETTLED_ID))
        or (text.startswith("/") and is_filler(text.replace("/", " ")))
    )
