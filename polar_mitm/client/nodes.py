"""What gateways and the rollout server say to each other.

To the server a gateway registers, beats, uploads files and reports. To the gateway the server posts assignments
(`POST /v1/sessions`) and cancellations (`DELETE /v1/sessions/<id>`). Both carry the one bearer token.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, JsonValue, StringConstraints

from polar_mitm.client.models import Builder, File, Name, Received, Seconds, Sent, Stage, StageTimes
from polar_mitm.client.policy import Count, EngineState, PolicyState

type Url = Annotated[str, StringConstraints(pattern=r"^https?://[\x21-\x7e]+$", max_length=2048)]
type GatewayState = Literal["ready", "draining", "down", "left"]


class Registration(Sent):
    """`POST /v1/gateways`. A second one of the same name takes the first one's place."""

    name: Name
    """Of the node; it stays the same when the process starts again."""
    incarnation: Name
    """Of the process: a new one at each start."""
    url: Url
    """Where the server reaches it."""
    capacity: Count
    """Sessions that it holds at once, in all stages together."""
    harnesses: list[str] | None = None
    """Those installed. Null: whatever is asked for."""
    sandboxes: list[str] | None = None
    scenarios: list[str] | None = None
    """Scenarios that it knows by name."""
    policy_version: str | None = None
    version: str = ""
    """Of polar."""
    sessions: dict[str, Stage] = {}
    """Sessions that it still holds, of an earlier life or from before the server went away. Those the server gave this
    name that are not among them are begun again elsewhere."""
    labels: dict[str, str] = {}


class Registered(Received):
    heartbeat_s: Seconds
    """A gateway that is silent for twice as long is taken for dead."""
    cancel: list[str] = []
    """Sessions of those it holds that are to be ended."""
    drain: bool = False
    store_url: str | None = None
    """A path or fsspec URL to write sessions' files under, as `<store_url>/<task_id>/<session_id>/<name>`. Null:
    upload them to the server."""


class Heartbeat(Sent):
    """`POST /v1/gateways/<name>/heartbeat`: 404 means register again; 409 that another process has the name now, and
    this one is to end its sessions and stop."""

    incarnation: Name
    state: Literal["ready", "draining"] = "ready"
    capacity: Count
    policy_version: str | None = None
    policy: PolicyState | None = None
    sessions: dict[str, Stage]
    """All that it holds, each until its report was answered."""


class HeartbeatReply(Received):
    cancel: list[str] = []
    """To be ended: cancelled sessions, and those that the server has given up on. Each is reported like any other."""
    drain: bool = False
    """Take no more sessions."""


class GivenBudgets(Sent):
    """What the gateway holds the session to."""

    waiting_s: Seconds | None = None
    """What is left of it."""
    preparing_s: Seconds
    running_s: Seconds | None = None
    """Null: the scenario's `timeout_s`."""
    grading_s: Seconds


class Assignment(Sent):
    """`POST /v1/sessions` at the gateway.

    202: taken, or held already (the same session id is never begun twice, whatever the state of the gateway).
    429: no place; 503: draining. Both say that the gateway does not hold it and never will by this request. 409: it is
    meant for another process (`incarnation`).
    """

    session_id: Name
    task_id: Name
    group_id: Name
    sample: Count
    attempt: Annotated[int, Field(ge=1)]
    gateway: Name
    incarnation: Name
    scenario: str | dict[str, JsonValue]
    changes: dict[str, JsonValue] = {}
    instruction: str | None = None
    data: dict[str, JsonValue] = {}
    budgets: GivenBudgets
    builder: Builder = Builder()
    policy_version: str | None = None


class Accepted(Received):
    session_id: str
    stage: Stage


class Report(Sent):
    """`POST /v1/sessions/<id>/report`, once its files are where they belong; sent again until it is answered."""

    session_id: Name
    incarnation: Name
    status: Literal["completed", "failed", "timeout", "cancelled", "error"]
    status_reason: str | None = None
    ended_in: Stage
    reward: FiniteFloat | None = None
    rewards: dict[str, FiniteFloat] = {}
    evaluation_error: str | None = None
    masked: str | None = None
    trained_tokens: Count | None = None
    calls: Count = 0
    prompt_tokens: Count = 0
    response_tokens: Count = 0
    policy_versions: list[str] = []
    times: StageTimes
    record: dict[str, Any] = {}
    """`session.json`."""
    files: list[File] = []
    files_url: str | None = None
    """Where they are, when the gateway wrote them itself. Null: they were uploaded."""


class Reported(Received):
    outcome: Literal["counts", "again", "late", "duplicate", "unknown"]
    """`counts`: it is its sample's result. `again`: the sample is begun again, as another session. `late`: another one
    was there first, and this is kept beside it. `duplicate`: this very session was reported before. `unknown`: the
    server has no such session; keep the files."""


class Gateway(Received):
    """A gateway as the server sees it."""

    name: str
    incarnation: str
    url: str
    state: GatewayState
    capacity: int
    held: int
    """Sessions on it."""
    stages: dict[Stage, int] = {}
    policy_version: str | None = None
    version: str = ""
    labels: dict[str, str] = {}
    engines: list[EngineState] = []
    registered_at: float
    last_seen_at: float
    lost_sessions: int = 0
    """Since the server started."""
