"""A session's calls as the builders see them: compact, in the order in which they were asked.

Token ids and messages stay in two tries that the calls share. Reading changes no file.
"""

import math
import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polar_mitm.capture.checks import LARGEST_ID
from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.ids import pack
from polar_mitm.capture.reader import CallFileError, Lines
from polar_mitm.capture.record import CallLine
from polar_mitm.errors import Failed
from polar_mitm.trajectory.trie import Node, grow

AGENT_IDS = (
    "x-claude-code-agent-id",
    "thread-id",
    "x-opencode-session",
    "x-session-id",
    "x-session-affinity",
    "conversation_id",
)
"""What harnesses name the agent of a call with: its own id, which a sub-agent does not share with its caller."""

PARENT_IDS = ("x-codex-parent-thread-id", "x-parent-session-id")
"""What a sub-agent names the agent that called it with."""

SIDE = frozenset({"title", "classifier", "count", "compaction", "probe"})
"""Kinds of calls that do not advance a conversation."""

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
"""What decides with which probability a token is sampled."""

_REPEATS = re.compile(r"(?:repeats|answered from) ([^\s:]+)")


class TrajectoryError(Failed):
    """A session of which no trajectory can be built: where, what is wrong, and how to mend it."""

    def __init__(self, place: Path | str, what: str, mend: str) -> None:
        super().__init__(f"{place}: {what} ({mend})")
        self.place = place
        self.what = what
        self.mend = mend


@dataclass(slots=True, eq=False)
class Seen:
    """One call. Of two calls the one with the lower `number` was asked first."""

    number: int
    call_id: str
    kind: str
    kind_reason: str
    parent_call_id: str | None
    started_at: float
    finished_at: float
    agent: str | None
    caller: str | None
    """The agent that a sub-agent says it was called by."""
    answered: bool
    """The engine gave an answer, and nothing went wrong afterwards."""
    sampled: array[int]
    logprobs: array[float]
    forced: list[tuple[int, int]]
    invalid: str | None
    """Why its ids or log-probabilities cannot be trained on."""
    delivery: str
    failure: str | None
    finish_reason: str
    stops: bool
    """A stop string or stop token was asked for: its last token need not be an end of turn."""
    built_from: str | None
    """The call whose ids the proxy built this prompt from."""
    built_why: str
    """Why the proxy could not build it from the last answer's, where there was one."""
    sampling: dict[str, Any]
    logprobs_mode: str | None
    policy_version: str | None
    weight_versions: list[tuple[int, int, str]]
    model: str | None
    template: str | None
    text: str
    reasoning: str
    tool_calls: list[dict[str, Any]]
    tools: tuple[int, ...]
    spoken: Node
    """Where its messages end in the trie of messages."""
    prompt: Node | None = None
    """Where its prompt ends in the trie of ids; None without usable prompt ids."""
    whole: Node | None = None
    """Where prompt + response end."""
    twin: bool = False
    """Another record has the same call id."""

    @property
    def prompt_len(self) -> int:
        return self.prompt.end if self.prompt else 0

    @property
    def whole_len(self) -> int:
        return self.whole.end if self.whole else 0

    @property
    def broken(self) -> bool:
        """The harness was told an error instead of the answer, or the engine gave it up half-way."""
        return self.failure is not None or self.finish_reason == "abort"

    @property
    def sent(self) -> bool:
        """The answer reached the harness whole."""
        return self.delivery == "delivered" and not self.broken

    @property
    def continuable(self) -> bool:
        """It has ids that a later prompt can contain."""
        return self.whole is not None and len(self.sampled) > 0 and not self.twin


@dataclass(slots=True, eq=False)
class Session:
    """A session as read: its record, its calls by the start of their requests, and what they share."""

    folder: Path
    record: SessionRecord
    calls: list[Seen] = field(default_factory=list)
    torn: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Messages and tools, by number."""

    def messages(self, call: Seen, start: int = 0) -> list[dict[str, Any]]:
        """The request's messages from number `start` on."""
        return [self.bodies[number] for number in call.spoken.read(start, call.spoken.end)]

    def tools(self, call: Seen) -> list[dict[str, Any]]:
        return [self.bodies[number] for number in call.tools]


def side(call: Seen) -> bool:
    """Whether it is a request beside the conversations."""
    return call.kind in SIDE


def read_session(path: Path) -> Session:
    """Raises OSError, SessionFileError, CallFileError, and TrajectoryError for calls that are not this session's."""
    folder = SessionFolder(path)
    session = Session(path, folder.load())
    if folder.calls.exists():
        _Reading(session, folder.calls).run()
    return session


class _Reading:
    def __init__(self, session: Session, path: Path) -> None:
        self.session = session
        self.path = path
        self.ids = Node()
        self.talk = Node()
        self.numbers: dict[str, int] = {}
        self.by_id: dict[str, Seen] = {}
        self.placed: dict[str, Node] = {}
        """Where prompt + response of each line end, whatever numbers they are: later lines are coded against them."""
        self.good: dict[str, int] = {}
        """How many of them, from the first on, can be tokens."""
        self.spoken: dict[str, tuple[Node, bytes]] = {}

    def run(self) -> None:
        lines = Lines(self.path)
        calls = [self._seen(number, line) for number, line in lines]
        self.session.torn = lines.torn
        # Lines stand in the order in which calls ended; a harness asks several at once.
        calls.sort(key=lambda call: call.started_at)
        for number, call in enumerate(calls):
            call.number = number
        self.session.calls = calls

    def _seen(self, number: int, line: CallLine) -> Seen:
        identity, response = line.identity, line.response
        if identity.session_id != self.session.record.session_id:
            what = f"call {identity.call_id} is of {identity.session_id}, not of {self.session.record.session_id}"
            raise TrajectoryError(f"{self.path}, line {number}", what, "a file holds one session: take the line out")
        self._learn(line)
        marks = line.origin.harness_ids
        call = Seen(
            number=number,
            call_id=identity.call_id,
            kind=line.origin.kind,
            kind_reason=line.origin.kind_reason,
            parent_call_id=line.parent_call_id,
            started_at=identity.started_at,
            finished_at=identity.finished_at,
            agent=_first(marks, AGENT_IDS),
            caller=_first(marks, PARENT_IDS),
            answered=response is not None and line.error is None,
            sampled=_ids(response.response_ids if response else []),
            logprobs=array("d", response.logprobs if response else []),
            forced=list(response.forced) if response else [],
            invalid=_invalid(line),
            delivery=line.delivery.status,
            failure=line.error.what if line.error else None,
            finish_reason=response.finish_reason if response else "",
            stops=any(line.request.sampling_sent.get(name) for name in ("stop", "stop_token_ids")),
            built_from=line.built.from_call_id if line.built else None,
            built_why=line.built.why if line.built else "",
            sampling={
                name: line.request.sampling_sent[name] for name in SAMPLING if name in line.request.sampling_sent
            },
            logprobs_mode=line.engine.logprobs_mode if line.engine else None,
            policy_version=line.engine.policy_version if line.engine else None,
            weight_versions=list(response.weight_versions) if response else [],
            model=line.engine.model if line.engine else None,
            template=line.engine.template_hash if line.engine else None,
            text=response.text if response else "",
            reasoning=response.reasoning if response else "",
            tool_calls=response.tool_calls if response else [],
            tools=tuple(self._named(line.request.tools, number)),
            spoken=self._messages(line, number),
        )
        self._place(call, line, number)
        if (twin := self.by_id.get(call.call_id)) is not None:
            call.twin = twin.twin = True
        self.by_id[call.call_id] = call
        return call

    def _place(self, call: Seen, line: CallLine, number: int) -> None:
        """Put its ids into the trie."""
        prompt, base = line.prompt, self.ids
        if prompt.prefix_call_id is not None:
            base = self.placed.get(prompt.prefix_call_id, base)
        if not 0 <= prompt.prefix_len <= base.end:
            what = f"its prompt repeats {prompt.prefix_len} ids of call {prompt.prefix_call_id}, which are not there"
            raise CallFileError(self.path, number, what)
        try:
            asked = grow(base.at(prompt.prefix_len), pack(prompt.suffix_ids))
            whole = grow(asked, pack(call.sampled))
        except OverflowError:
            asked = whole = self.ids
        good = self.good.get(prompt.prefix_call_id or "", 0)
        if prompt.prefix_len <= good:
            good = prompt.prefix_len + _leading(prompt.suffix_ids)
        if good == asked.end:
            good += _leading(call.sampled)
            if asked.end:
                call.prompt = asked
                call.whole = whole if good == whole.end else None
        if call.prompt is None and call.invalid is None:
            call.invalid = f"an id of its prompt is outside 0..{LARGEST_ID}"
        self.placed[call.call_id] = whole
        self.good[call.call_id] = min(good, whole.end)

    def _messages(self, line: CallLine, number: int) -> Node:
        packed = pack(self._named(line.request.messages, number))
        node, known = self.spoken.get(line.parent_call_id or "", (self.talk, b""))
        if not packed.startswith(known):
            node, known = self.talk, b""
        node = grow(node, packed[len(known) :])
        self.spoken[line.identity.call_id] = node, packed
        return node

    def _named(self, names: list[str], number: int) -> list[int]:
        try:
            return list(map(self.numbers.__getitem__, names))
        except KeyError as error:
            what = f"it names content {error.args[0]}, which no line up to here holds"
            raise CallFileError(self.path, number, what) from None

    def _learn(self, line: CallLine) -> None:
        """The bodies of messages and tools that stand in this line for the first time."""
        for name, body in line.request.new.items():
            if name not in self.numbers:
                self.numbers[name] = len(self.session.bodies)
                self.session.bodies.append(body)


def repeated(call: Seen) -> str | None:
    """The call whose answer this retry was given; None for a call that was sampled."""
    match = _REPEATS.match(call.kind_reason) if call.kind == "retry" and not call.sampled else None
    return match[1] if match else None


def _invalid(line: CallLine) -> str | None:
    """As `capture.checks` has it, on what is new in the line; a record is believed only when it says invalid."""
    if not line.checks.valid:
        return line.checks.invalid_reason or "marked invalid"
    response = line.response
    if response is None:
        return "no answer"
    ids, logprobs = response.response_ids, response.logprobs
    if not line.prompt.prefix_len and not line.prompt.suffix_ids:
        return "no prompt ids"
    if not ids:
        return "no response ids"
    if len(logprobs) != len(ids):
        return f"{len(logprobs)} logprobs for {len(ids)} response ids"
    if not _tokens(ids) or not _tokens(line.prompt.suffix_ids):
        return f"an id is outside 0..{LARGEST_ID}"
    if not all(map(math.isfinite, logprobs)):
        return "a logprob is not finite"
    if max(logprobs) > 0:
        return "a logprob is above 0"
    if not all(0 <= start <= end <= len(ids) for start, end in response.forced):
        return f"a forced span is outside the {len(ids)} response ids"
    return None


def _ids(ids: list[int]) -> array[int]:
    try:
        return array("i", ids)
    except OverflowError:
        return array("q", [min(max(token, -1), LARGEST_ID + 1) for token in ids])


def _tokens(ids: "list[int] | array[int]") -> bool:
    return not ids or (min(ids) >= 0 and max(ids) <= LARGEST_ID)


def _leading(ids: "list[int] | array[int]") -> int:
    """How many of them, from the first on, can be tokens."""
    return next((place for place, token in enumerate(ids) if not 0 <= token <= LARGEST_ID), len(ids))


def _first(marks: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((marks[name] for name in names if marks.get(name)), None)
