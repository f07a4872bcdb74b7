"""The call record: one model request of a session and its answer.

`Call` is the record in memory, whole. `CallLine` is the same call as one line of `calls.jsonl`: messages and tools are
named by content hash and stored where they first appear, prompt ids are a prefix of an earlier call plus a suffix.
`polar_mitm.capture.log` turns one into the other. The JSON Schema of `CallLine` is published in `docs/schemas/`.

Never in a record: API keys, bearer tokens, cookies, session secrets.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from polar_mitm.prompts import Broken, Tokens

SCHEMA = 1
"""Schema version of a line. A reader refuses a newer one."""


type Logprob = Annotated[
    float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]})
]
"""A natural log-probability. JSON has no word for one that is not finite (on an invalid call): a line spells it out."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Identity(Part):
    session_id: str
    call_id: str
    task_id: str | None = None
    sample: int | None = None
    attempt: int = 1
    harness: str | None = None
    harness_version: str | None = None
    started_at: float
    """Unix seconds, when the request was complete at the proxy."""
    finished_at: float
    """Unix seconds, when the answer was handed over, or given up."""


type Kind = Literal["turn", "title", "classifier", "count", "compaction", "subagent", "probe", "retry"]


class Origin(Part):
    provider: str
    path: str
    """The path the client asked, without session prefix and query."""
    streamed: bool
    """Whether the client asked for a stream."""
    harness_ids: dict[str, str] = {}
    kind: Kind = "turn"
    kind_reason: str = ""


class Lost(Part):
    """A field or tool of the request that the model was not given, and why."""

    field: str
    why: str
    times: int = 1
    """How often it stood in the request."""


class Asked(Part):
    """The request in Chat form, whole.

    `sampling_asked` is what the client said, `sampling_sent` what the engine was sent.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    sampling_asked: dict[str, Any] = {}
    sampling_sent: dict[str, Any] = {}
    not_carried: list[Lost] = []


class EngineInfo(Part):
    url: str | None = None
    """Of the engine that sampled the answer."""
    model: str
    engine_version: str | None = None
    policy_version: str | None = None
    """Of the weights that sampled the answer's first token, in the trainer's words."""
    logprobs_mode: str | None = None
    """`raw_logprobs` unless the engine says otherwise: log-probabilities before temperature and filters."""
    template_hash: str | None = None
    tokenizer_hash: str | None = None
    tokens: Tokens = "chat"
    """How this call's prompt went to the engine: `exact` as token ids, `chat` as messages."""


class Tried(Part):
    """An engine that was asked before, and gave no answer that could be used."""

    url: str
    why: str


class Built(Part):
    """What the prompt was made of, in a session whose prompts go to the engine as token ids."""

    from_call_id: str | None = None
    """The earlier call with whose prompt + response ids, all of them, the prompt begins. Null: it was all rendered."""
    ids: int = 0
    """How many those are."""
    broken: Broken | None = None
    """Why it does not begin with those of the last reply in its history, where there is one."""
    why: str = ""
    """The same in a sentence."""


class Response(Part):
    """What the engine gave. `text` and `arguments` are byte for byte what it produced."""

    text: str
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = []
    response_ids: list[int]
    """Sampled token ids, the end-of-turn token included when it was sampled. Empty on an invalid record."""
    logprobs: list[Logprob]
    """Natural log-probability of each sampled id; as long as response_ids."""
    forced: list[tuple[int, int]] = []
    """Half-open spans of response_ids that a grammar imposed: never trained on, their logprobs are post-mask."""
    finish_reason: str
    """The engine's own word."""
    stop_reason: str | None = None
    """What the client was told, in its provider's words."""
    repairs: list[str] = []
    """What was changed for the client only."""
    weight_versions: list[tuple[int, int, str]] = []
    """Half-open spans of response_ids, from the first id to the last, and the version of the weights that sampled them,
    where the engine says it."""

    @property
    def chosen(self) -> list[float]:
        """Log-probabilities of the tokens that the model chose: those outside `forced`, which are post-mask."""
        return [
            value
            for place, value in enumerate(self.logprobs)
            if not any(start <= place < end for start, end in self.forced)
        ]


class Checks(Part):
    valid: bool
    """Prompt ids, response ids and one logprob per response id are all there. An invalid call is never trained on."""
    invalid_reason: str | None = None
    decode_matches_text: bool | None = None
    """The sampled tokens' bytes hold the text and the calls that the client got. None when it could not be told."""
    prefix: Literal["root", "extends", "diverges"] | None = None
    """How this prompt relates to the parent's prompt + response ids."""
    common_prefix_len: int | None = None
    """Tokens shared with the parent's prompt + response ids."""


class Delivery(Part):
    status: Literal["delivered", "partial", "aborted"]
    bytes_sent: int = 0


class Failure(Part):
    what: str
    kind: str
    fault: Literal["client", "polar", "engine"]
    status: int | None = None
    """HTTP status told to the client; None when headers were already out or nobody was left to tell."""


class Call(Part):
    """One call, whole, in memory."""

    identity: Identity
    parent_call_id: str | None = None
    """The earlier call whose conversation this one continues; filled in by the log when the caller leaves it out."""
    origin: Origin
    request: Asked
    engine: EngineInfo | None = None
    tried: list[Tried] = []
    """Engines that were asked before the one that answered, in their order."""
    prompt_ids: list[int] = Field(default_factory=list)
    """Every token id of the prompt as the engine saw it. Empty when the engine never answered."""
    built: Built | None = None
    response: Response | None = None
    checks: Checks
    delivery: Delivery
    error: Failure | None = None
    imported: dict[str, Any] | None = None
    """Of a call that another program captured: what it wrote of it that this record has no field for."""


class Named(Part):
    """The request as stored: hashes into `new` of this line or an earlier one of the same file."""

    messages: list[str]
    tools: list[str] = []
    new: dict[str, dict[str, Any]] = {}
    """Bodies of messages and tools seen for the first time in this file, by content hash."""
    sampling_asked: dict[str, Any] = {}
    sampling_sent: dict[str, Any] = {}
    not_carried: list[Lost] = []


class Prompt(Part):
    """Prompt ids, delta coded: the first `prefix_len` ids of that call's prompt + response, then `suffix_ids`."""

    prefix_call_id: str | None = None
    prefix_len: int = 0
    suffix_ids: list[int]


class CallLine(Part):
    """One line of calls.jsonl."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    schema_version: int = Field(default=SCHEMA, alias="schema")
    identity: Identity
    parent_call_id: str | None = None
    origin: Origin
    request: Named
    engine: EngineInfo | None = None
    tried: list[Tried] = []
    prompt: Prompt
    built: Built | None = None
    response: Response | None = None
    checks: Checks
    delivery: Delivery
    error: Failure | None = None
    imported: dict[str, Any] | None = None
