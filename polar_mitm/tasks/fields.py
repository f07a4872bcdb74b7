"""The parts of a scenario file, each a mapping of its own; a script's steps are in `script`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from polar_mitm.proxy.limits import CallLimits
from polar_mitm.sandboxes.limits import Limits
from polar_mitm.tasks.errors import ScenarioError

type Text = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]


class Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class Sampling(TypedDict, total=False):
    """Sampling parameters of the session, by the engine's names. They win over what the harness asks."""

    # mypy knows no other names in a TypedDict; it is how pydantic configures one.
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # type: ignore[misc]

    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=-1)]
    min_p: Annotated[float, Field(ge=0, le=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    min_tokens: Annotated[int, Field(ge=0)]
    presence_penalty: Annotated[float, Field(ge=-2, le=2)]
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)]
    repetition_penalty: Annotated[float, Field(gt=0)]
    seed: int
    stop: list[str]


class ContainerPlace(Part):
    """Of the container sandbox: its image, or the folder whose Dockerfile it is built from."""

    image: Text | None = None
    """Must be on this machine. Without image and build it is the one that `polar sandbox image` makes."""
    build: Text | None = None
    """A folder with a Dockerfile, relative to the scenario's folder."""
    workdir: Annotated[str, StringConstraints(pattern=r"^/.+")] | None = None
    """Where the workspace is found, also by the bwrap sandbox; the image's own WORKDIR when it says one. What the image
    has there is what the harness starts with."""

    @model_validator(mode="after")
    def _image_or_build(self) -> Self:
        if self.image is not None and self.build is not None:
            raise PydanticCustomError("container", "expected one of image and build; got both")
        return self


class LimitFields(Part):
    """What the whole run may take. See `polar_mitm.sandboxes.limits.Limits`."""

    cpus: Annotated[float, Field(gt=0)] | None = None
    memory_mb: Annotated[int, Field(ge=16)] | None = None
    processes: Annotated[int, Field(ge=4)] | None = None
    disk_mb: Annotated[int, Field(ge=1)] | None = None

    def limits(self) -> Limits:
        return Limits(**self.model_dump())


class CallLimitFields(Part):
    """What the session may ask of the model. See `polar_mitm.proxy.limits.CallLimits`."""

    calls: Annotated[int, Field(ge=1)] | None = None
    response_tokens: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    concurrent: Annotated[int, Field(ge=1)] | None = None
    repeats: Annotated[int, Field(ge=1)] | None = None

    def limits(self) -> CallLimits:
        return CallLimits(**self.model_dump())


class TaskSet(Part):
    """Many tasks: the lines of a JSONL file, see `task_set`; Harbor task folders, see `harbor`; or rows of SWE-bench,
    see `swebench`."""

    file: Text | None = None
    """Relative to the scenario's folder."""
    harbor: Text | None = None
    """A Harbor task folder, or a folder of such; relative to the scenario's folder."""
    swebench: Text | None = None
    """A file of SWE-bench rows (.jsonl, .json or .parquet), relative to the scenario's folder."""
    instruction: Text = "instruction"
    """The field of a line that holds what the harness is told."""
    id: Text = "id"
    """The field that names the task; without it the line's number does."""
    only: list[Text] = Field(default_factory=list)
    """Take these alone, by their ids: a line's, the name of a folder, a row's `instance_id`."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Take only so many, from the start of the file or by the folders' names."""
    tests_network: Literal["none", "public"] | None = None
    """Of Harbor tasks whose tests may use the network, and of SWE-bench rows: whether the tests get it."""
    host_env: list[Text] = Field(default_factory=list)
    """Variables of this machine that Harbor tasks may have when they ask for them."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if [self.file, self.harbor, self.swebench].count(None) != 2:
            raise PydanticCustomError("tasks", "expected one of file, harbor and swebench")
        if self.file is not None and self.tests_network is not None:
            raise PydanticCustomError("tasks", "tests_network is for Harbor tasks and SWE-bench rows")
        if self.harbor is None and self.host_env:
            raise PydanticCustomError("tasks", "host_env is for Harbor tasks")
        return self

    def chosen[T](self, path: Path, known: Iterable[tuple[str, T]]) -> list[T]:
        """Those of the tasks, each with its id, that are taken. ScenarioError when one of `only` is not there."""
        found = [(name, task) for name, task in known if not self.only or name in self.only]
        if missing := [name for name in self.only if name not in {name for name, _ in found}]:
            raise ScenarioError(path, None, "tasks.only", f"there is no task {missing[0]!r} in it")
        return [task for _, task in found[: self.limit]]


class McpServer(Part):
    """A tool server that the harness starts beside itself, in its sandbox."""

    command: Text
    args: list[str] = []
    env: dict[str, str] = {}
