"""What the server keeps in memory of sessions that are not done, and what an operation asks of that memory."""

from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class Lane:
    """What a session needs of a gateway. None: anything."""

    policy_version: str | None = None
    harness: str | None = None
    sandbox: str | None = None
    scenario: str | None = None
    """A scenario that the gateway has to know by name."""


@dataclass(slots=True, frozen=True)
class Queued:
    """A session in line."""

    order: int
    """Of its task among all; with the sample it is the place in line, also of a later attempt."""
    session_id: str
    task_id: str
    group_id: str
    sample: int
    attempt: int
    priority: int
    lane: Lane
    deadline: float | None
    """By the server's clock."""

    @property
    def place(self) -> tuple[int, int, int]:
        return (-self.priority, self.order, self.sample)


@dataclass(slots=True, frozen=True)
class Assigned:
    """A session that was given to a gateway."""

    session_id: str
    task_id: str
    gateway: str
    incarnation: str
    stopping: bool = False
    """It is to be cancelled."""


@dataclass(slots=True)
class Effects:
    """What an operation changed for those who keep sessions in memory."""

    queued: list[Queued] = field(default_factory=list)
    """Sessions to stand in line."""
    over: list[str] = field(default_factory=list)
    """Sessions that are done."""
    cancel: list[str] = field(default_factory=list)
    """Sessions that a gateway has, to be ended there."""
    callbacks: bool = False
    """There are callbacks to send."""
