"""A scenario: what is to be done, by which harness, where, and how it is graded. `reading` loads one from its file.

Whether the harness is installed or the sandbox works here is asked later, by whoever runs it.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

from pydantic import Field, InstanceOf, StringConstraints, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from polar_mitm import harnesses
from polar_mitm.harnesses import RUNNABLE, Assignment, refusals
from polar_mitm.harnesses.base import Intercept, mode_of
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.sandboxes.container import Container
from polar_mitm.tasks.evaluators import Evaluator, Swebench
from polar_mitm.tasks.fields import (
    CallLimitFields,
    ContainerPlace,
    LimitFields,
    McpServer,
    Part,
    Sampling,
    TaskSet,
    Text,
)
from polar_mitm.tasks.harbor.setting import ORACLE
from polar_mitm.tasks.harbor.setting import Setting as HarborSetting
from polar_mitm.tasks.script import Step
from polar_mitm.tasks.swebench.setting import Setting as SwebenchSetting

NOT_IN_FILE = frozenset({"path", "harbor", "swebench"})
"""Fields that a scenario has and its file does not."""


class Scenario(Part):
    """A loaded scenario. `instruction_text` and `start_folder` are what the file's own fields come to."""

    path: Path
    """The file it came from; files it names are relative to its folder."""
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Letters, digits, `.`, `_`, `-`; the file's stem when the file does not say."""
    description: str = ""
    instruction: Text | None = None
    instruction_file: Text | None = None
    tasks: TaskSet | None = None
    extra_instructions: str = ""
    """Added to the harness's own system text, where it has a place for them."""
    harness: str = "pi"
    command: list[Text] = Field(default_factory=list)
    """The program and its arguments, for the harness `command`."""
    mcp_servers: dict[str, McpServer] = Field(default_factory=dict)
    max_turns: Annotated[int, Field(ge=1)] | None = None
    """The harness's own limit."""
    login: bool = False
    """Let the harness believe that a person is logged in, where it can; needs `intercept: proxy`."""
    sandbox: str = "bwrap"
    intercept: Intercept = "base-url"
    model: Text = "smollm2"
    """Name of a local model."""
    samples: Annotated[int, Field(ge=1)] = 1
    window: Annotated[int, Field(ge=1024)] | None = None
    """Tokens that the harness is told its model may have, prompt and answer together; the engine's own by default."""
    timeout_s: Annotated[float, Field(gt=0)] = 600
    """Seconds that the harness may run."""
    sampling: Sampling = Sampling()
    container: ContainerPlace = ContainerPlace()
    limits: LimitFields = LimitFields()
    call_limits: CallLimitFields = CallLimitFields()
    workspace: Text | None = None
    """Folder whose copy the harness starts in. Without it the workspace is empty, but for `files`."""
    files: dict[str, str] = Field(default_factory=dict)
    """More files of the workspace, path: text. They win over the folder's."""
    evaluator: Evaluator
    script: list[Step] = Field(default_factory=list)
    """Tool calls that the model is made to give in its first turns."""
    summary: str = ""
    """What it is made to write where the harness asks for a summary of the conversation; needs a script."""
    harbor: SkipJsonSchema[InstanceOf[HarborSetting] | None] = None
    """The Harbor task, of a scenario that was made for one. See `work`."""
    swebench: SkipJsonSchema[InstanceOf[SwebenchSetting] | None] = None
    """The row, of a scenario that was made for one."""

    @property
    def start_folder(self) -> Path | None:
        return self.path.parent / self.workspace if self.workspace else None

    @property
    def instruction_text(self) -> str:
        """What the harness is told, where the scenario is one task. OSError when the file has gone since loading."""
        if self.instruction is not None:
            return self.instruction
        assert self.instruction_file is not None
        return (self.path.parent / self.instruction_file).read_text(encoding="utf-8")

    def assignment(self, instruction: str) -> Assignment:
        """What the harness gets, with the instruction of one of the scenario's tasks."""
        servers = {
            name: harnesses.McpServer(server.command, tuple(server.args), server.env)
            for name, server in self.mcp_servers.items()
        }
        return Assignment(
            instruction, self.extra_instructions, servers, self.max_turns, self.login, tuple(self.command)
        )

    @field_validator("harness")
    @classmethod
    def _known_harness(cls, name: str) -> str:
        return _one_of(name, RUNNABLE)

    @field_validator("sandbox")
    @classmethod
    def _known_sandbox(cls, name: str) -> str:
        return _one_of(name, SANDBOXES)

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, str]) -> dict[str, str]:
        for name in files:
            parts = PurePosixPath(name).parts
            if not parts or parts[0] == "/" or ".." in parts:
                raise PydanticCustomError(
                    "files", "expected paths inside the workspace; got {name}", {"name": repr(name)}
                )
        return files

    @model_validator(mode="after")
    def _fits_the_harness(self) -> Self:
        harness = RUNNABLE[self.harness]
        refused = refusals(harness, mode_of(self.intercept), self.assignment(""))
        if not harness.FACTS.sub_agents and any(step.agent for step in self.script):
            others = ", ".join(name for name, other in RUNNABLE.items() if other.FACTS.sub_agents)
            refused.append(
                f"{self.harness} has no sub-agents: choose {others}, or leave the script's `agent` steps out"
            )
        if refused:
            raise PydanticCustomError("harness", "{refused}", {"refused": "; ".join(refused)})
        return self

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_tasks(cls, fields: Any) -> Any:
        """A Harbor task and a row of SWE-bench are worked on in their own image, and graded by their own tests; a row
        whose log was saved is worked on anywhere."""
        match fields:
            case {"tasks": {"harbor": _}}:
                return {"sandbox": Container.NAME, "evaluator": {"type": "harbor"}} | fields
            case {"tasks": {"swebench": _}, "evaluator": {"type": "swebench", "log": str()}}:
                return fields
            case {"tasks": {"swebench": _}}:
                return {"sandbox": Container.NAME, "evaluator": {"type": "swebench"}} | fields
        return fields

    @model_validator(mode="after")
    def _fits_its_tasks(self) -> Self:
        kind = self._kind_of_tasks
        for name, what in (("harbor", "Harbor tasks (tasks.harbor)"), ("swebench", "SWE-bench rows (tasks.swebench)")):
            if (kind == name) != (self.evaluator.type == name):
                raise PydanticCustomError(
                    "evaluator", "{what} and the evaluator {name} go together", {"what": what, "name": name}
                )
        if self.harness == ORACLE and kind is None:
            what = "the oracle runs a task's own solution: expected tasks.harbor or tasks.swebench"
            raise PydanticCustomError("harness", what)
        if self.harness == ORACLE and self.grades_saved_logs:
            raise PydanticCustomError("harness", "the oracle works in the row's image: leave evaluator.log out")
        if kind is None or self.grades_saved_logs:
            return self
        name = "Harbor task" if kind == "harbor" else "SWE-bench row"
        if self.sandbox != Container.NAME:
            raise PydanticCustomError(
                "sandbox",
                "a {name} is worked on in its own image, with what that has: expected container; "
                "{sandbox} would show this machine's files in its place",
                {"name": name, "sandbox": self.sandbox},
            )
        if own := [field for field in ("workspace", "files", "container") if field in self.model_fields_set]:
            raise PydanticCustomError(
                own[0], "a {task} brings its own: leave {name} out", {"task": name, "name": own[0]}
            )
        return self

    @property
    def _kind_of_tasks(self) -> str | None:
        """Of tasks that bring their own image and tests."""
        found = [name for name in ("harbor", "swebench") if self.tasks is not None and getattr(self.tasks, name)]
        return found[0] if found else None

    @property
    def grades_saved_logs(self) -> bool:
        """Whether the tests of its SWE-bench rows were run before."""
        return isinstance(self.evaluator, Swebench) and self.evaluator.log is not None

    @model_validator(mode="after")
    def _one_instruction(self) -> Self:
        given = [n for n in ("instruction", "instruction_file", "tasks") if getattr(self, n) is not None]
        if len(given) != 1:
            raise PydanticCustomError(
                "instruction",
                "expected one of instruction, instruction_file and tasks; got {which}",
                {"which": " and ".join(given) or "none"},
            )
        return self


def _one_of(name: str, known: Mapping[str, object]) -> str:
    if name not in known:
        raise PydanticCustomError(
            "one_of", "expected one of {known}; got {name}", {"known": ", ".join(known), "name": repr(name)}
        )
    return name
