"""What is said about the weights that engines serve: by trainers to the server, by the server to gateways.

A version of the policy is a name that the trainer gives to weights. Changing it is a pause, an update and a resume.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from polar_mitm.client.models import Name, Received, Seconds, Sent

type Version = Annotated[str, StringConstraints(pattern=r"^[^\x00]+$", max_length=256)]
type Count = Annotated[int, Field(ge=0)]

type PolicyPhase = Literal["serving", "pausing", "paused", "updating", "resuming"]
"""Of a gateway. In each but `serving` new calls are held. `pausing`: calls that run come to an end. `updating`: which
weights the engines have is not known."""

type PauseMode = Literal["drain", "abort", "keep"]
"""What becomes of calls that run. `drain`: they come to their end. `abort`: they are ended, what they sampled stays on
record, and they are sampled anew with the new weights. `keep`: they go on with the new weights where they stopped. That
takes engines in development mode; calls whose prompts went as messages are ended as with `abort`."""


class EngineState(Sent):
    """An engine, as a gateway sees it."""

    url: str
    healthy: bool
    """Whether calls go there."""
    trouble: str | None = None
    """Why none do."""
    model: str | None = None
    policy_version: str | None = None
    began: float | None = None
    """When its process began, Unix seconds."""
    running: Count = 0
    """Calls that it is answering."""
    sessions: Count = 0
    """Sessions that have their place there."""
    calls: Count = 0
    """Answered so far."""
    lost: Count = 0
    """Calls that it gave no answer to."""


class PolicyState(Sent):
    """Where a gateway's policy stands."""

    phase: PolicyPhase
    version: str | None = None
    trouble: str | None = None
    """Why it does not go on by itself."""
    since: float
    """Of this phase."""
    held: Count = 0
    """Calls that wait for the end of the change."""
    engines: list[EngineState] = []


class Pause(Sent):
    """`POST /v1/policy/pause`: hold new calls, and see to those that run."""

    mode: PauseMode = "drain"
    limit_s: Seconds = 600
    """For the calls that run. Over it the pause fails, and says which calls hang."""
    to_load: bool = False
    """Fail, before any call is held, where an engine cannot load weights."""
    gateways: list[Name] | None = None
    """By default all."""


class Update(Sent):
    """`POST /v1/policy`: pause, new weights, resume."""

    version: Version
    """The name of the new weights."""
    weights: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """A folder on the engines' machines that they are to load. Null: they have the new weights already."""
    mode: PauseMode = "drain"
    limit_s: Seconds = 600
    """For each step."""
    gateways: list[Name] | None = None


class Load(Sent):
    """`POST /v1/policy/load` at a gateway: have engines load weights, or say which they have by now."""

    version: Version
    weights: str | None = None
    limit_s: Seconds = 600
    engines: list[str] | None = None
    """By default all of the gateway's."""


class Resume(Sent):
    """`POST /v1/policy/resume`: probe the engines and let calls go on."""

    version: Version | None = None
    """Of the weights that the engines have now. Null: the same as before the pause."""
    gateways: list[Name] | None = None


class GatewayPolicy(Received):
    name: str
    policy: PolicyState | None = None
    """As it was last heard of."""
    trouble: str | None = None
    """What it did not do of the last change."""


class FleetPolicy(Received):
    """`GET /v1/policy`: where the policy of all gateways stands."""

    phase: Literal["serving", "pausing", "paused", "updating", "resuming", "failed"]
    """`paused`: calls are held, and nothing is under way. `failed`: the last change was not done."""
    version: str | None = None
    """Null also where gateways have different ones."""
    wanted: str | None = None
    """Of the change that is under way, or failed."""
    trouble: str | None = None
    held: int = 0
    gateways: list[GatewayPolicy] = []
