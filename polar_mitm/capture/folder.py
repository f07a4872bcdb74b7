"""A session's folder `<out>/<session_id>/` and its record `session.json`: what they hold, and how they are replaced.

The calls in it are `record`'s and `log`'s. Who runs a session, and when it ends, is decided elsewhere.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from polar_mitm import __version__
from polar_mitm.capture.canonical import loads
from polar_mitm.capture.forms import present
from polar_mitm.errors import BadInput
from polar_mitm.prompts import Tokens

SESSION_SCHEMA = 1
"""Schema version of session.json. A reader refuses a newer one."""

type Ending = Literal["completed", "failed", "timeout", "cancelled", "error"]
type Status = Ending | Literal["open"]
type RewardFrom = Literal["reward", "only", "mean"]


class SessionEngine(BaseModel):
    model_config = ConfigDict(extra="forbid")

    url: str
    """Of the engine that it began at; each call names its own."""
    model: str
    engine_version: str | None = None


class Seal(BaseModel):
    """What a file of calls holds, compressed or not."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    sha256: str
    """Of the lines as text, 64 hex characters."""
    bytes: int
    """Of the lines as text."""


class SessionRecord(BaseModel):
    """One run of one harness on one task, as `session.json` holds it."""

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, use_attribute_docstrings=True, validate_assignment=True
    )

    schema_version: int = Field(default=SESSION_SCHEMA, alias="schema")
    session_id: str
    task_id: str | None = None
    sample: int | None = None
    attempt: int = 1
    harness: str | None = None
    harness_version: str | None = None
    sandbox: str | None = None
    intercept: str | None = None
    scenario: str | None = None
    engine: SessionEngine | None = None
    tokens: Tokens | None = None
    """How its prompts go to the engine."""
    tokens_reason: str | None = None
    """Why as messages (`chat`), where nobody asked for that."""
    started_at: float
    """Unix seconds."""
    finished_at: float | None = None
    """Unix seconds; null while the session is open."""
    status: Status = "open"
    """`failed`: the harness did not end well. `error`: polar or the environment did not let it run."""
    status_reason: str | None = None
    exit_code: int | None = None
    """The harness's."""
    reward: FiniteFloat | None = None
    """Null when there is none; never a stand-in for an evaluation that failed."""
    reward_from: RewardFrom | None = None
    """What the reward is: the one of the rewards that is named `reward`, the `only` one, or the `mean` of all."""
    rewards: dict[str, FiniteFloat] = {}
    """Every reward the evaluator gave, by name."""
    step_rewards: dict[str, FiniteFloat] = {}
    """By call id: a reward for that call alone, where the evaluator gave some."""
    trace_rewards: dict[str, FiniteFloat] = {}
    """By the id of a call: a reward for the token sequence that it stands in, in place of the session's (a sub-agent's,
    say). Of several calls in one sequence the last counts."""
    evaluation_error: str | None = None
    """Why there is no reward, when the evaluation itself failed."""
    poisoned: str | None = None
    """Why calls.jsonl may lack calls that were made. A poisoned session is never trained on."""
    limited: list[str] = []
    """Limits that were met: of size (what is not in flows.mitm), or of calls, which were not served. calls.jsonl is
    whole."""
    calls: int = 0
    """Calls in calls.jsonl, as of the last time this file was written."""
    prompt_tokens: int = 0
    """Sum over the calls of their whole prompts."""
    response_tokens: int = 0
    not_carried: dict[str, int] = {}
    """By field of the requests: on how many calls the model was not given it. Why is on each call."""
    seal: Seal | None = None
    """What the calls were when the session was closed: readers refuse a file that holds anything else. Null while it is
    open, and while a call that ended later is being added."""
    polar_version: str = Field(default_factory=lambda: __version__)

    @property
    def incomplete(self) -> bool:
        """Its process was killed: calls may be missing, and it was never graded."""
        return self.status == "failed" and (self.status_reason or "").startswith("incomplete:")


class SessionFileError(BadInput):
    """A folder or session.json that cannot be used: which, what is wrong, and how to mend it."""

    def __init__(self, path: Path, what: str, mend: str) -> None:
        super().__init__(f"{path}: {what} ({mend})")
        self.path = path
        self.what = what
        self.mend = mend


@dataclass(slots=True, frozen=True)
class SessionFolder:
    """`<out>/<session_id>/` and the names of what lies in it."""

    path: Path

    @classmethod
    def create(cls, out: Path, session_id: str) -> Self:
        """Make the folder, readable by its owner alone. Raises OSError, also when it is there already.

        `path` is absolute: programs that run in other folders are given paths below it.
        """
        out.mkdir(parents=True, exist_ok=True)
        path = out.absolute() / session_id
        path.mkdir(mode=0o700)
        return cls(path)

    @property
    def record(self) -> Path:
        return self.path / "session.json"

    @property
    def calls(self) -> Path:
        """`calls.jsonl`, or `calls.jsonl.zst` where it was compressed."""
        return present(self.path / "calls.jsonl")

    @property
    def flows(self) -> Path:
        return self.path / "flows.mitm"

    @property
    def stdout(self) -> Path:
        return self.path / "stdout.txt"

    @property
    def stderr(self) -> Path:
        return self.path / "stderr.txt"

    @property
    def workspace_diff(self) -> Path:
        return self.path / "workspace.diff"

    @property
    def answer(self) -> Path:
        """The harness's last answer, as text."""
        return self.path / "answer.txt"

    def write(self, record: SessionRecord) -> None:
        """Replace session.json in one step: a reader sees the old one or the new one. Raises OSError."""
        text = record.model_dump_json(by_alias=True, indent=2) + "\n"
        handle, name = tempfile.mkstemp(dir=self.path, prefix=".session-", suffix=".tmp")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.record)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def load(self) -> SessionRecord:
        """Read session.json. Raises OSError and SessionFileError."""
        try:
            value = loads(self.record.read_bytes())
        except ValueError as error:
            raise SessionFileError(self.record, f"not JSON: {error}", "put the original back") from error
        version = value.get("schema", SESSION_SCHEMA) if isinstance(value, dict) else SESSION_SCHEMA
        if type(version) is not int or version < 1:  # True is an int too
            raise SessionFileError(self.record, f"its schema version is {version!r}", "put the original back")
        if version > SESSION_SCHEMA:
            what = f"it has schema version {version}, and this polar reads up to {SESSION_SCHEMA}"
            raise SessionFileError(self.record, what, "install a newer polar-mitm")
        try:
            return SessionRecord.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise SessionFileError(self.record, f"{place}: {first['msg']}", "put the original back") from error
