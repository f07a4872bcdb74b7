"""What trainers and the rollout server say to each other: task requests, tasks, sessions, results, events.

`nodes` has what gateways and the server say to each other. Times are Unix seconds, durations seconds. What is sent is
checked strictly; what is received may have fields that this version does not know.
"""

from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)

type Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
"""Letters, digits, `.`, `_`, `:`, `-`; at most 128. It stands in paths of URLs and in names of folders."""

type Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

type Stage = Literal["queued", "assigned", "waiting", "preparing", "ready", "running", "grading", "done"]
"""Where a session is. `queued`: in line at the server. `assigned`: on its way to a gateway. The rest is at the gateway:
`waiting` for a place to be prepared, `ready` for a place to run. `done`: its end is on disk."""

type Ending = Literal["completed", "failed", "timeout", "cancelled", "error", "lost"]
"""How a session ended. `failed`: the harness did not end well. `timeout`: it ran for longer than it may; no other clock
leads to this. `error`: polar or the environment did not let it run. `lost`: its gateway is gone."""

type TaskStatus = Literal["queued", "running", "completed", "partial", "failed", "cancelled"]
"""`completed`: each sample's session completed, or as many were usable as were asked for. `partial`: some completed.
`failed`: none did."""

ENDED: Final[frozenset[TaskStatus]] = frozenset({"completed", "partial", "failed", "cancelled"})
"""What a task will not leave by itself."""

type EventType = Literal[
    "task.submitted",
    "task.started",
    "task.finished",
    "task.retried",
    "session.assigned",
    "session.stage",
    "session.finished",
    "session.late",
    "session.lost",
    "gateway.up",
    "gateway.down",
    "gateway.draining",
    "report.unknown",
]


class Sent(BaseModel):
    """What goes to the server: a field it does not know is refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Received(BaseModel):
    """What comes from the server: fields of a newer one are left out."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class Budgets(Sent):
    """A clock each. A session that is over one of them but `running_s` was not let run: its status is `error`."""

    waiting_s: Seconds | None = None
    """In line, at the server and at a gateway. Null: as long as it takes."""
    preparing_s: Seconds = 900
    """Making the sandbox and the workspace."""
    running_s: Seconds | None = None
    """The harness. Null: the scenario's `timeout_s`."""
    grading_s: Seconds = 900
    """Evaluating, and then building traces, each for so long. A session over it keeps its status, and has an evaluation
    error for a reward, or no traces and says so."""


class Builder(Sent):
    """How traces are made of calls."""

    name: Literal["prefix_merging", "per_request"] = "prefix_merging"
    rewritten: Literal["fork", "substitute"] = "fork"
    """What becomes of a prompt in which an answer came back rendered otherwise."""


class Callback(Sent):
    """Where the server posts to, at least once for each event, signed as Standard Webhooks says."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[\x21-\x7e]+$", max_length=2048)]
    events: list[Literal["task.finished", "session.finished"]] = Field(default=["task.finished"], min_length=1)

    @field_validator("url")
    @classmethod
    def _names_a_host(cls, url: str) -> str:
        parts = urlsplit(url)  # raises ValueError for what is no address
        if not parts.hostname or parts.port == 0:  # so does a port that is no number, or too large a one
            raise ValueError("an address names a host, and a port from 1 to 65535 if any")
        return url


class TaskRequest(Sent):
    """One task, to be attempted `num_samples` times."""

    task_id: Name | None = None
    """This request's own; the server makes one up. A second request of the same id is refused."""
    scenario: str | dict[str, JsonValue]
    """The fields of a scenario file, or the name of a scenario that the gateways know."""
    changes: dict[str, JsonValue] = {}
    """Fields that win over the scenario's: `harness`, `sandbox`, `sampling`, `evaluator`, ..."""
    instruction: Annotated[str, StringConstraints(min_length=1)] | None = None
    """What the harness is told, in place of the scenario's."""
    data: dict[str, JsonValue] = {}
    """The task's own row: it is handed to the evaluator."""
    num_samples: Annotated[int, Field(ge=1, le=4096)] = 1
    budgets: Budgets = Budgets()
    builder: Builder = Builder()
    callback: Callback | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Higher goes first; among equals, who came first."""
    group_id: Name | None = None
    """Tasks of a group go to one gateway where they can: their prompts begin alike. By default the task is its own."""
    metadata: dict[str, JsonValue] = {}
    """Kept with the task and given back with it; nothing reads it."""
    policy_version: Annotated[str, StringConstraints(pattern=r"^[^\x00]+$", max_length=256)] | None = None
    """Only gateways that serve exactly this version of the policy take it."""
    stop_after: Annotated[int, Field(ge=1)] | None = None
    """As soon as so many samples are usable, the others are cancelled."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """How often a sample is begun that ends as `error` or `lost`."""

    @model_validator(mode="after")
    def _can_stop(self) -> "TaskRequest":
        if self.stop_after is not None and self.stop_after > self.num_samples:
            raise ValueError(f"stop_after is {self.stop_after}, and there are {self.num_samples} samples")
        return self


class RetryRequest(Sent):
    samples: list[Annotated[int, Field(ge=0)]] | None = None
    """By default every sample that has ended and is not usable."""


class Counts(Received):
    """Of a task's samples."""

    queued: int = 0
    live: int = 0
    """On a gateway, or on the way to one."""
    completed: int = 0
    failed: int = 0
    timeout: int = 0
    cancelled: int = 0
    error: int = 0
    usable: int = 0


class Task(Received):
    task_id: str
    group_id: str
    status: TaskStatus
    status_reason: str | None = None
    """Why it ended as it did; while samples are in line, what no gateway has that they need."""
    num_samples: int
    samples: Counts
    attempts: int
    """Sessions made so far."""
    priority: int
    policy_version: str | None = None
    stop_after: int | None = None
    mean_reward: float | None = None
    """Of the samples that have a reward."""
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    metadata: dict[str, Any] | None = None
    """Null in lists."""
    request: dict[str, Any] | None = None
    """As it was sent; null in lists."""


class StageTimes(Received):
    """When a session came to each stage. The gateway's clock, but for the first two."""

    queued_at: float | None = None
    assigned_at: float | None = None
    preparing_at: float | None = None
    ready_at: float | None = None
    running_at: float | None = None
    grading_at: float | None = None
    finished_at: float | None = None


class Session(Received):
    """One attempt at one sample of a task."""

    session_id: str
    task_id: str
    group_id: str
    sample: int
    attempt: int
    stage: Stage
    gateway: str | None = None
    status: Ending | None = None
    """Null while it is not done."""
    status_reason: str | None = None
    ended_in: Stage | None = None
    """The stage that it was in."""
    reward: float | None = None
    usable: bool = False
    """Whether a trainer can use it: it has a reward and is not masked."""
    counts: bool = False
    """Whether it is its sample's result. Of several that ended the first one is; the others are kept beside."""
    seq: int | None = None
    """Grows with each session that ends."""
    times: StageTimes = StageTimes()


class File(Received):
    """A file of a session."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True, frozen=True)

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None


class Result(Received):
    """What came of a session."""

    seq: int
    session: Session
    rewards: dict[str, FiniteFloat] = {}
    evaluation_error: str | None = None
    masked: str | None = None
    """Why nothing of it may be trained."""
    trained_tokens: int | None = None
    calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    policy_versions: list[str] = []
    record: dict[str, Any] = {}
    """`session.json`."""
    files: list[File] = []
    files_url: str | None = None
    """A path or an fsspec URL of the folder that holds them. The server gives them out as well."""
    trajectory: dict[str, Any] | None = None
    """`trajectory.json`, where it was asked for and is there."""


class ResultLine(Received):
    """A line of a stream of results."""

    type: Literal["result", "ping", "end"]
    """`end`: everything was sent. A stream that stops without it was cut off; go on after the last `seq`."""
    result: Result | None = None
    task: Task | None = None
    """With `end`, where the stream is one task's."""


class Results(Received):
    """All results of a task that there are."""

    task: Task
    results: list[Result]


class Page[Item: BaseModel](Received):
    items: list[Item]
    next_cursor: str | None = None
    """Null on the last page."""


class Event(Received):
    seq: int | None = None
    """Null of those that are not kept (`session.stage`)."""
    type: EventType
    at: float
    task_id: str | None = None
    session_id: str | None = None
    gateway: str | None = None
    data: dict[str, Any] = {}


class CallbackBody(Received):
    """What is posted to a callback's URL. The same `id` may come more than once."""

    id: str
    type: Literal["task.finished", "session.finished"]
    at: float
    task: Task
    result: Result | None = None
    """With `session.finished`."""


class CallbackView(Received):
    """A callback that was sent, is to be sent, or was given up on."""

    id: str
    task_id: str
    session_id: str | None = None
    type: Literal["task.finished", "session.finished"]
    url: str
    state: Literal["pending", "delivered", "dead"]
    attempts: int
    created_at: float
    next_at: float | None = None
    last_error: str | None = None


class Overview(Received):
    """The server at a glance."""

    version: str
    at: float
    tasks: dict[TaskStatus, int]
    stages: dict[Stage, int]
    """Sessions that are not done."""
    sessions_done: int
    gateways: dict[str, int]
    """By state."""
    callbacks_pending: int
    callbacks_dead: int


class Problem(Received):
    code: str
    """For programs: `not_found`, `conflict`, `invalid`, `unauthorized`, `too_large`, `unavailable`, ..."""
    message: str
    """For people: what is wrong, and the mend."""
    field: str | None = None


class ErrorBody(Received):
    """Every answer of 4xx and 5xx."""

    error: Problem
