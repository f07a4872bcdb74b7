"""`task.toml`: every field that harbor 0.26 knows, with its defaults. A field that nobody knows is kept in view."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from polar_mitm.tasks.errors import ScenarioError, shown

type NetworkMode = Literal["no-network", "public", "allowlist"]

_SIZES = {"K": 1 / 1024, "M": 1, "G": 1024}
"""MiB in each unit of the sizes that older files have."""


class Table(BaseModel):
    """Lax as harbor is: "600" is a number. What it does not know is in `model_extra`."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class Network(Table):
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class Healthcheck(Table):
    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class McpServer(Table):
    name: str
    transport: Literal["stdio", "sse", "streamable-http", "http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = Field(default_factory=list)
    headers: dict[str, str] = Field(default_factory=dict)


class Tpu(Table):
    type: str
    topology: str


class Environment(Network):
    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: Tpu | None = None
    mcp_servers: list[McpServer] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    allow_internet: bool | None = None
    """Of older files. `network_mode` wins."""

    @property
    def network(self) -> NetworkMode:
        if self.network_mode is None and self.allowed_hosts is None and self.allow_internet is False:
            return "no-network"
        return self.network_mode or "public"

    @field_validator("os", mode="before")
    @classmethod
    def _lower(cls, name: Any) -> Any:
        return name.lower() if isinstance(name, str) else name

    @model_validator(mode="before")
    @classmethod
    def _older_sizes(cls, fields: Any) -> Any:
        """`memory = "2G"` and `storage = "10G"` of older files."""
        if not isinstance(fields, dict):
            return fields
        fields = dict(fields)
        for older, field in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if isinstance(size := fields.get(older), str):
                del fields[older]
                megabytes = _megabytes(size)
                if fields.setdefault(field, megabytes) != megabytes:
                    raise ValueError(f"{older} is {size} and {field} is {fields[field]}: expected one of them")
        return fields


class Collect(Table):
    command: str
    service: str = "main"
    timeout_sec: float = 60.0
    user: str | int | None = None


class Verifier(Network):
    timeout_sec: float = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = Field(default_factory=list)

    @property
    def separate(self) -> bool:
        return (self.environment_mode or ("separate" if self.environment else "shared")) == "separate"

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode is shared and there is an environment: expected one of them")
        return self


class Agent(Network):
    timeout_sec: float | None = None
    user: str | int | None = None


class Solution(Table):
    env: dict[str, str] = Field(default_factory=dict)


class Artifact(Table):
    source: str
    destination: str | None = None
    exclude: list[str] = Field(default_factory=list)
    service: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @field_validator("source", "destination")
    @classmethod
    def _inside(cls, path: str | None) -> str | None:
        if path is not None and ".." in path.split("/"):
            raise ValueError("expected a path without '..'")
        return path


class Package(Table):
    name: str
    version: str | None = None
    description: str = ""
    authors: list[dict[str, Any]] = Field(default_factory=list)
    keywords: list[str] = Field(default_factory=list)


class Step(Table):
    name: str
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[Artifact] = Field(default_factory=list)


class TaskFile(Table):
    """The whole file."""

    schema_version: str = "1.4"
    task: Package | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    solution: Solution = Solution()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[Step] | None = None
    artifacts: list[Artifact] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _older_version(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "version" in fields:
            fields = dict(fields)
            fields.setdefault("schema_version", fields.pop("version"))
        return fields

    @property
    def unknown(self) -> list[str]:
        """The fields that harbor leaves aside, dotted."""
        return list(_unknown(self))

    @property
    def verifier_network(self) -> NetworkMode:
        """What the tests may reach."""
        place = (self.verifier.environment or self.environment) if self.verifier.separate else self.environment
        return self.verifier.network_mode or place.network

    @property
    def agent_network(self) -> NetworkMode:
        return self.agent.network_mode or self.environment.network


def read(path: Path) -> TaskFile:
    """Raises ScenarioError, which names the field and what was expected."""
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(path, None, "", f"cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ScenarioError(path, None, "", f"not TOML: {str(error) or 'nested too deeply'}") from None
    return validated(path, fields)


def validated(path: Path, fields: dict[str, Any]) -> TaskFile:
    """Raises ScenarioError."""
    try:
        return TaskFile.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part + 1) if isinstance(part, int) else part for part in first["loc"])
        got = "" if first["type"] == "missing" else f"; got {shown(first['input'])}"
        raise ScenarioError(path, None, field, first["msg"].removeprefix("Value error, ") + got) from None


def _megabytes(size: str) -> int:
    number, unit = size.strip()[:-1], size.strip()[-1:].upper()
    try:
        return int(float(number) * _SIZES[unit])
    except (ValueError, KeyError, OverflowError):
        raise ValueError("expected a size such as 512M or 2G") from None


def _unknown(table: Table, place: str = "") -> Iterator[str]:
    yield from (place + name for name in table.model_extra or {})
    for name in type(table).model_fields:
        value = getattr(table, name)
        for number, part in enumerate(value if isinstance(value, list) else [value], 1):
            if isinstance(part, Table):
                yield from _unknown(part, f"{place}{name}.{number}." if isinstance(value, list) else f"{place}{name}.")
