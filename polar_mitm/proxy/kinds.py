"""What kind of call a request is: a turn of the task, or one of the side requests that harnesses make beside it.

Pure. Training leaves side requests out, so nothing is called one on a single weak sign: either the request says so
itself (a header, a field), or several signs of its structure agree. The texts that harnesses use change with every
release and are not looked for; at most a word that no such text can do without.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

import orjson

from polar_mitm.capture.record import Kind
from polar_mitm.chat import Assistant, ChatRequest, System, Text, User, text_of
from polar_mitm.providers import Ask, Request

SUBAGENT_HEADERS: Final = (
    "x-claude-code-agent-id",
    "x-openai-subagent",
    "x-codex-parent-thread-id",
    "x-parent-session-id",
)
"""Sent by sub-agents only: Claude Code, Codex (two), opencode."""
REQUEST_CLASSES: Final = ("x-claude-code-request-class", "x-claude-1p-request-class")
CODEX_METADATA: Final = "x-codex-turn-metadata"

SMALL_MODEL: Final = re.compile(r"\b(?:mini|nano|lite|haiku|small)\b")
"""In the names of the models that harnesses keep for side requests."""
SMALL_ANSWER: Final = 1024
"""Tokens. Harnesses ask for at least 4,096 in a turn, and for a title or a verdict for a few hundred."""
LONG_INSTRUCTION: Final = 300
"""Characters. What asks a model for the summary of a conversation is a page, not a line that a person typed."""

TITLE: Final = re.compile(r"\btitles?\b", re.IGNORECASE)
SUMMARY: Final = re.compile(r"\bsummar\w*", re.IGNORECASE)
OF_THIS: Final = re.compile(r"\b(?:conversation|context|hand-?off|history|so far)\b", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class Opening:
    """How a conversation begins, which all of its turns share. Texts are hashed: a session keeps this for long."""

    system: str
    tools: frozenset[str]
    first_words: str

    @classmethod
    def of(cls, chat: ChatRequest) -> Self:
        first = next((message for message in chat.messages if isinstance(message, User)), User(()))
        return cls(_hash(_system(chat)), frozenset(tool.name for tool in chat.tools), _hash(text_of(first.parts)))


def classify(request: Request, ask: Ask, main: Opening | None) -> tuple[Kind, str]:
    """The kind of this call, and by which signs. `main` is the opening of the session's first turn, if it had one."""
    marks = {**ask.harness_ids, **request.headers}
    looks: tuple[tuple[Kind, str | None], ...] = (
        ("probe", _probe(ask)),
        ("compaction", _compaction_said(ask, marks)),
        ("compaction", _compaction(ask, main)),
        ("subagent", _subagent(marks)),
        ("title", _title(ask)),
        ("compaction", _compaction_apart(ask, main)),
        ("classifier", _classifier(ask, main)),
        ("subagent", _other_conversation(ask, main)),
    )
    for kind, reason in looks:
        if reason:
            return kind, reason
    return "turn", "no sign of a side request"


def _probe(ask: Ask) -> str | None:
    """A request for one token wants to know the usage, or whether the key is good."""
    return "it asks for one token" if ask.chat.sampling.max_tokens == 1 else None


def _compaction_said(ask: Ask, marks: Mapping[str, str]) -> str | None:
    if ask.compacts:
        return "the request asks for a compaction"
    if marks.get("x-openai-subagent") == "compact":
        return "x-openai-subagent: compact"
    if _codex_kind(marks) == "compaction":
        return f"{CODEX_METADATA}: request_kind compaction"
    return None


def _compaction(ask: Ask, main: Opening | None) -> str | None:
    """An instruction, at the end of a conversation that the model took part in, to sum it up."""
    messages = ask.chat.messages
    if not _answered(ask.chat) or not isinstance(messages[-1], User):
        return None
    texts = [part.text for part in messages[-1].parts if isinstance(part, Text)]
    if not texts or not (SUMMARY.search(texts[-1]) and OF_THIS.search(texts[-1])):
        return None
    signs = []
    if main and main.tools and not ask.chat.tools:
        signs.append("no tools, unlike the session's turns")
    if len(texts[-1]) >= LONG_INSTRUCTION:
        signs.append("a long instruction at its end")
    return _joined("the end of a conversation asks for its summary", signs)


def _compaction_apart(ask: Ask, main: Opening | None) -> str | None:
    """The same by another agent, so to speak: under a system text of its own, which the summary is all about.

    opencode and pi send the conversation as one text, Qwen Code and Gemini CLI message by message, with its tool calls
    though no tool is offered.
    """
    chat = ask.chat
    system = _system(chat)
    if main is None or not main.tools or chat.tools or chat.json_schema is not None or _hash(system) == main.system:
        return None
    apart = "no tools and another system text, unlike the session's turns"
    if any(isinstance(message, Assistant) and message.tool_calls for message in chat.messages):
        return f"{apart}; a conversation with tool calls"
    if SUMMARY.search(system) and OF_THIS.search(system):
        return f"{apart}, which is about the summary of a conversation"
    return None


def _subagent(marks: Mapping[str, str]) -> str | None:
    said = [name for name in SUBAGENT_HEADERS if marks.get(name)]
    said += [f"{name}: {value}" for name in REQUEST_CLASSES if (value := marks.get(name, "")).endswith("subagent")]
    return ", ".join(said) or None


def _title(ask: Ask) -> str | None:
    chat = ask.chat
    if chat.tools or _answered(chat) or not TITLE.search(_system(chat)):
        return None
    signs = []
    if sum(len(message.parts) for message in chat.messages if isinstance(message, User)) > 1:
        signs.append("several user texts in a row")
    properties = chat.json_schema.get("properties") if chat.json_schema else None
    if isinstance(properties, dict) and "title" in properties:
        signs.append("an answer under a JSON schema with a title")
    return _joined("no tools, no history, a system text about titles", [*signs, *_small(ask)])


def _classifier(ask: Ask, main: Opening | None) -> str | None:
    """Gemini CLI lets a small model say how hard each prompt is, before it chooses the model for the turn."""
    chat = ask.chat
    if chat.tools or (chat.json_schema is None and not chat.choices) or _answered(chat):
        return None
    signs = _small(ask)
    if main and main.tools:
        signs.append("no tools, unlike the session's turns")
    return _joined("an answer under a JSON schema, no tools, no history", signs)


def _other_conversation(ask: Ask, main: Opening | None) -> str | None:
    """Some harnesses mark their sub-agents with nothing; each has a system text, tools and a task of its own.

    Qwen Code has another agent look through the conversation when a turn is over, for what is worth remembering: under
    a system text of its own, with a few of the tools.
    """
    if main is None:
        return None
    here = Opening.of(ask.chat)
    if here.system == main.system or here.tools == main.tools:
        return None
    if here.first_words != main.first_words:
        return "system text, tools and first user text all differ from those of the session's first turn"
    if here.tools < main.tools and _answered(ask.chat):
        return "the conversation under another system text, with only some of the tools of the session's first turn"
    return None


def _small(ask: Ask) -> list[str]:
    signs = []
    if (ask.chat.sampling.max_tokens or SMALL_ANSWER + 1) <= SMALL_ANSWER:
        signs.append("a small answer asked for")
    if SMALL_MODEL.search(ask.model):
        signs.append(f"a small model ({ask.model})")
    return signs


def _joined(first: str, others: list[str]) -> str | None:
    """All the signs in one line; None when the first one stands alone."""
    return "; ".join([first, *others]) if others else None


def _answered(chat: ChatRequest) -> bool:
    return any(isinstance(message, Assistant) for message in chat.messages)


def _system(chat: ChatRequest) -> str:
    match chat.messages:
        case (System(text), *_):
            return text
        case _:
            return ""


def _codex_kind(marks: Mapping[str, str]) -> str | None:
    try:
        metadata = orjson.loads(marks.get(CODEX_METADATA, "{}"))
    except orjson.JSONDecodeError:
        return None
    kind = metadata.get("request_kind") if isinstance(metadata, dict) else None
    return kind if isinstance(kind, str) else None


def _hash(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()
