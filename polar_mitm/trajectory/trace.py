"""What a session's calls become: traces, and the trajectory that holds them with the ledger of every sampled token.

Data only. `builders` makes it, `ledger` balances it, `credit` puts rewards on it, `exporters` write it for trainers.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = 1
"""Schema version of a trajectory. A reader refuses a newer one."""

type Bin = Literal[
    "trained",
    "context",
    "side_request",
    "superseded",
    "forced",
    "undelivered",
    "aborted",
    "quarantined",
    "invalid",
    "masked",
]
"""Where a sampled token ended. `context`: it stands in a trace with mask 0. `superseded`: by a retry. `masked`: it
would be trained, were its session not failed, timed out, poisoned or incomplete."""

type Relation = Literal[
    "root",
    "extends",
    "template_tail",
    "rewritten",
    "diverges",
    "rewound",
    "retried",
    "compacted",
    "subagent",
    "side_request",
    "ambiguous",
    "unplaced",
]
"""How a call's prompt stands to what was sampled before it. `rewritten`: the parent's prompt is its beginning, the
response came back rendered otherwise. `diverges`: the same conversation, but the prompt leaves the parent's prompt.
`unplaced`: it has no prompt ids."""

type Cause = Literal[
    "arguments_rerendered",
    "reasoning_stripped",
    "tools_changed",
    "system_changed",
    "rotating_line",
    "image",
    "compaction",
    "truncation",
    "template_tail",
    "message_edited",
    "retokenised",
    "unknown",
]
"""Why a prompt does not continue what was sampled. `message_edited`: a message came back with other text, or not at
all. `retokenised`: the same text, cut into other tokens."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Break(Part):
    """A prompt that does not continue its parent's prompt + response, looked at where they part."""

    call_id: str
    parent_call_id: str
    position: int
    """Index of the first token that differs, in the parent's prompt + response."""
    parent_around: list[int]
    """Token ids of the parent's side, from a few before `position` to a few after."""
    prompt_around: list[int]
    """The same of this call's prompt."""
    parent_text: str | None = None
    """`parent_around` decoded; None without the model's tokenizer."""
    prompt_text: str | None = None
    cause: Cause
    why: str
    """One sentence: what was seen that names the cause."""


class Drift(Part):
    """How far a turn's context is from the one it was sampled in: sampled ids stand in for re-rendered ones."""

    sampled_tokens: int
    """Ids that stand in the trace."""
    rendered_tokens: int
    """Ids that the engine really saw in their place."""
    common_tokens: int
    """Of both, from the front and from the back."""


class Turn(Part):
    """The part of a trace that one call sampled."""

    call_id: str
    start: int
    """Half-open span [start, end) of the trace's response_ids: all ids that this call sampled."""
    end: int
    relation: Relation
    kind: str
    """The call's kind, as captured."""
    started_at: float
    finish_reason: str
    policy_version: str | None = None
    weight_versions: list[tuple[int, int, str]] = []
    """Half-open spans of the call's sampled ids and the version of the weights that sampled them, where known."""
    logprobs_mode: str | None = None
    """What its log-probabilities are of, as the engine says: `raw_logprobs` are before temperature and filters."""
    sampling: dict[str, Any] = {}
    """Temperature, filters, penalties and seed, as they were sent to the engine."""
    tools: list[str] = []
    """The tools that it called, by name."""
    bin: Bin
    """Of its ids with mask 0; `trained` when none has, apart from `forced` spans."""
    reason: str = ""
    drift: Drift | None = None
    reward: float | None = None
    """A per-step reward, where an evaluator gave one."""


type Within = Literal["main", "subagent", "side"]


def _within(lineage: dict[str, Any]) -> Within:
    kind = lineage["kind"]
    return "subagent" if kind == "subagent" else "side" if kind == "side" else "main"


class Lineage(Part):
    kind: Literal["main", "subagent", "compaction", "rewind", "fork", "side"]
    within: Within = Field(default_factory=_within)
    """Whose conversation it is, forks, rewinds and compactions of it included."""
    of_trace: str | None = None
    """The trace it comes from: the caller's of a sub-agent, the compacted, the forked one."""
    of_call: str | None = None
    """The call in it."""


class Trace(Part):
    """One trainable sequence: `prompt_ids + response_ids`.

    `response_ids`, `loss_mask` (1: trained) and `logprobs` (natural, as captured; 0.0 where a token was not sampled)
    are of one length. Mask 1 stands only on ids that the engine sampled in exactly this context, each once in a
    session.
    """

    trace_id: str
    """`<session_id>/<n>`, n from 0 by the start of its first call."""
    session_id: str
    lineage: Lineage
    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float]
    turns: list[Turn]
    broken_by: Break | None = None
    """Why this is a trace of its own, when it is a fork."""
    exact: bool = True
    """False when sampled ids stand in for re-rendered ones somewhere before a trained token."""
    reward: float | None = None
    rewards: dict[str, float] = {}
    weight: float = 1.0
    """The weights of a session's traces with trained tokens sum to 1."""
    advantage: float | None = None
    messages: list[dict[str, Any]] = []
    """Request messages of the last call, in Chat form."""
    tools: list[dict[str, Any]] = []
    reply: dict[str, Any] = {}
    """The last call's reply as an assistant message."""
    model: str | None = None

    @property
    def policy_versions(self) -> list[str]:
        """Each version of its turns, once, in order."""
        versions: dict[str, None] = {}
        for turn in self.turns:
            spans = [version for _, _, version in turn.weight_versions]
            versions |= dict.fromkeys(spans or ([turn.policy_version] if turn.policy_version is not None else []))
        return list(versions)

    @property
    def trained(self) -> int:
        """Tokens with mask 1."""
        return sum(self.loss_mask)


class Entry(Part):
    """Sampled tokens of one call that ended in one bin for one reason."""

    call_id: str
    bin: Bin
    tokens: int
    reason: str


class Ledger(Part):
    sampled: int
    """Tokens that the engine sampled for this session, as the calls say."""
    bins: dict[Bin, int]
    """They sum to `sampled`."""
    entries: list[Entry]


class Trajectory(Part):
    """All traces of a session, with its reward and its token ledger."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, populate_by_name=True)

    schema_version: int = Field(default=SCHEMA, alias="schema")
    session_id: str
    task_id: str | None = None
    sample: int | None = None
    attempt: int = 1
    group_id: str
    """Samples that are compared with each other: one task done in one harness, `<task>/<harness>`. A session without a
    task is alone in its group."""
    rollout_id: str
    """Shared by all traces of this session, so that a trainer can weigh them as one."""
    builder: Literal["per_request", "prefix_merging"]
    rewritten: Literal["fork", "substitute"] = "fork"
    status: str
    """The session's."""
    masked: str | None = None
    """Why no token of it is trained, when that is so; its place in the group stays."""
    harness: str | None = None
    scenario: str | None = None
    reward: float | None = None
    rewards: dict[str, float] = {}
    traces: list[Trace]
    relations: dict[Relation, int] = {}
    """How many calls stood so to the one before."""
    breaks: list[Break] = []
    ledger: Ledger
