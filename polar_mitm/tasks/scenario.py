"""Scenario files: one YAML mapping that says what is to be done, by which harness, where, and how it is graded.

Loading checks everything that the file alone can tell; every complaint names file, line, field and what was expected.
Whether the harness is installed or the sandbox works here is asked later, by whoever runs it.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from typing_extensions import TypedDict

from polar_mitm import harnesses
from polar_mitm.harnesses import HARNESSES, Assignment, refusals
from polar_mitm.harnesses.actions import Action, EditFile, ListFolder, ReadFile, Shell, WriteFile
from polar_mitm.harnesses.base import Intercept, mode_of
from polar_mitm.proxy.limits import CallLimits
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.sandboxes.limits import Limits
from polar_mitm.tasks.evaluators import EVALUATORS, Evaluator

type Text = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]


MOST_VALUES = 100_000
"""Of a scenario, its aliases unfolded."""


class ScenarioError(Exception):
    """A scenario file that cannot be used: `scenarios/x.yaml:12: evaluator.type: expected one of command, ...`.

    `line` counts from 1; None when the file itself is the trouble. `field` is a dotted path, empty for the whole file.
    """

    def __init__(self, file: Path, line: int | None, field: str, expected: str) -> None:
        place = f"{file}:{line}" if line is not None else str(file)
        super().__init__(": ".join(part for part in (place, field, expected) if part))
        self.file = file
        self.line = line
        self.field = field
        self.expected = expected


class Sampling(TypedDict, total=False):
    """Sampling parameters of the session, by the engine's names. They win over what the harness asks."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # type: ignore[misc]  # how pydantic configures a TypedDict

    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=-1)]
    min_p: Annotated[float, Field(ge=0, le=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    presence_penalty: Annotated[float, Field(ge=-2, le=2)]
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)]
    repetition_penalty: Annotated[float, Field(gt=0)]
    seed: int
    stop: list[str]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Write(_Part):
    """A file to be made. The path is relative to the workspace."""

    path: Text
    text: str


class Edit(_Part):
    """A change to a file: `old`, which it holds once, becomes `new`."""

    path: Text
    old: Text
    new: str


class Step(_Part):
    """One scripted turn: an action, put into the harness's own tool for it, or a tool and its arguments."""

    shell: Text | None = None
    """A command."""
    list: Text | None = None
    """A folder."""
    read: Text | None = None
    """A file."""
    write: Write | None = None
    edit: Edit | None = None
    agent: "SubAgent | None" = None
    """A sub-agent is started."""
    tool: Text | None = None
    arguments: dict[str, JsonValue] = {}

    @property
    def action(self) -> Action | None:
        """What it does; None where it names a tool or starts a sub-agent."""
        match self:
            case Step(shell=str(command)):
                return Shell(command)
            case Step(list=str(path)):
                return ListFolder(path)
            case Step(read=str(path)):
                return ReadFile(path)
            case Step(write=Write(path=path, text=text)):
                return WriteFile(path, text)
            case Step(edit=Edit(path=path, old=old, new=new)):
                return EditFile(path, old, new)
        return None

    @model_validator(mode="after")
    def _one_of_all(self) -> Self:
        given = [name for name in type(self).model_fields if name != "arguments" and getattr(self, name) is not None]
        if len(given) != 1 or (self.arguments and given != ["tool"]):
            raise PydanticCustomError(
                "step", "expected one of shell, list, read, write, edit, agent, or `tool: NAME` with `arguments`"
            )
        return self


class ContainerPlace(_Part):
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


class LimitFields(_Part):
    """What the whole run may take. See `polar_mitm.sandboxes.limits.Limits`."""

    cpus: Annotated[float, Field(gt=0)] | None = None
    memory_mb: Annotated[int, Field(ge=16)] | None = None
    processes: Annotated[int, Field(ge=4)] | None = None
    disk_mb: Annotated[int, Field(ge=1)] | None = None

    def limits(self) -> Limits:
        return Limits(**self.model_dump())


class SubAgent(_Part):
    """A sub-agent that the model is made to start, and the tool calls of its first turns."""

    prompt: Text
    script: list[Step] = []


class CallLimitFields(_Part):
    """What the session may ask of the model. See `polar_mitm.proxy.limits.CallLimits`."""

    calls: Annotated[int, Field(ge=1)] | None = None
    response_tokens: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    concurrent: Annotated[int, Field(ge=1)] | None = None
    repeats: Annotated[int, Field(ge=1)] | None = None

    def limits(self) -> CallLimits:
        return CallLimits(**self.model_dump())


class TaskSet(_Part):
    """Many tasks in a JSONL file. See `task_set`."""

    file: Text
    """Relative to the scenario's folder."""
    instruction: Text = "instruction"
    """The field of a line that holds what the harness is told."""
    id: Text = "id"
    """The field that names the task; without it the line's number does."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Take only so many, from the start of the file."""


class McpServer(_Part):
    """A tool server that the harness starts beside itself, in its sandbox."""

    command: Text
    args: list[str] = []
    env: dict[str, str] = {}


class Scenario(_Part):
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
    command: list[Text] = []
    """The program and its arguments, for the harness `command`."""
    mcp_servers: dict[str, McpServer] = {}
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
    files: dict[str, str] = {}
    """More files of the workspace, path: text. They win over the folder's."""
    evaluator: Evaluator
    script: list[Step] = []
    """Tool calls that the model is made to give in its first turns."""

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
        return _one_of(name, HARNESSES)

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
        harness = HARNESSES[self.harness]
        refused = refusals(harness, mode_of(self.intercept), self.assignment(""))
        if not harness.FACTS.sub_agents and any(step.agent for step in self.script):
            refused.append(f"{self.harness} has no sub-agents: leave the script's `agent` steps out")
        if refused:
            raise PydanticCustomError("harness", "{refused}", {"refused": "; ".join(refused)})
        return self

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


def load(path: Path, changes: Mapping[str, object] | None = None) -> Scenario:
    """The scenario in a file. `changes` are top-level fields that win over the file's, such as a command's options.

    Raises ScenarioError.
    """
    document = _read(path)
    try:
        fields = _Plain().of(document) | dict(changes or {})
    except ValueError as error:
        raise ScenarioError(path, None, "", f"not usable: {error}") from None
    for name in fields:
        if name == "path" or not isinstance(name, str):  # the one field that is not the file's to set; `1: x`
            raise ScenarioError(path, _line(document, (name,)), str(name), _unknown(str(name), _siblings((name,))))
    try:
        scenario = Scenario.model_validate({"name": path.stem} | fields | {"path": path})
    except ValidationError as error:
        # The first in the file; what is missing comes last, since a misspelt field is often why.
        problems = [
            (details["type"] == "missing", _problem(path, document, changes or {}, details))
            for details in error.errors()
        ]
        raise min(problems, key=lambda problem: (problem[0], problem[1].line or 0))[1] from None
    _check_files(scenario, document)
    return scenario


def bundled(name: str) -> Path:
    """The file of a scenario that comes with polar: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).parents[1]
    places = (package.parent / "scenarios", package / "scenarios")
    file = next((place / f"{name}.yaml" for place in places if (place / f"{name}.yaml").is_file()), None)
    if file is None:
        raise ScenarioError(places[0] / f"{name}.yaml", None, "", "no scenario of this name comes with polar")
    return file


def _read(path: Path) -> CommentedMap:
    if path.exists() and not path.is_file():
        raise ScenarioError(path, None, "", "cannot be read: it is no regular file")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ScenarioError(path, None, "", "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(path, None, "", f"cannot be read: {error}") from error
    try:
        document = YAML(typ="rt").load(StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise ScenarioError(path, line, "", f"not YAML: {error.problem or error.context}") from None
    except (YAMLError, ValueError) as error:
        raise ScenarioError(path, None, "", f"not YAML: {error}") from None
    except RecursionError:
        raise ScenarioError(path, None, "", "nested too deeply") from None
    if not isinstance(document, CommentedMap):
        got = "nothing" if document is None else _shown(document)
        raise ScenarioError(path, 1, "", f"expected a mapping of fields; got {got}")
    return document


class _Plain:
    """Plain Python of a round-trip document: its strings and numbers are subclasses that remember their style.

    Raises ValueError for what no scenario needs: text that no file can hold, and aliases that unfold without end.
    """

    def __init__(self) -> None:
        self.values = 0

    def of(self, node: Any) -> Any:
        self.values += 1
        if self.values > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES} values")
        match node:
            case CommentedMap():
                return {self.of(key): self.of(value) for key, value in node.items()}
            case CommentedSeq():
                return [self.of(value) for value in node]
            case bool() | None:
                return node
            case str() if "\0" in node or any("\ud800" <= sign <= "\udfff" for sign in node):
                raise ValueError(f"text with a zero byte or half a surrogate pair: {str(node)[:60]!r}")
        for kind in (int, float, str):
            if isinstance(node, kind):
                return kind(node)
        return node


def _problem(path: Path, document: CommentedMap, changes: Mapping[str, object], details: ErrorDetails) -> ScenarioError:
    location = _location(document, details)
    field = ".".join(_dotted(document, location))
    expected = _expected(details, location)
    if location and location[0] in changes:
        return ScenarioError(path, None, field, f"{expected} (given in place of the file's)")
    return ScenarioError(path, _line(document, location), field, expected)


def _location(document: CommentedMap, details: ErrorDetails) -> tuple[int | str, ...]:
    """pydantic's location with the union tags, which are no keys of the file, taken out or made the field they are."""
    match details:
        case {"type": "harness"}:
            return ("harness",)
        case {"type": "instruction"}:
            return ("instruction_file" if "instruction_file" in document else "instruction",)
        case {"type": "union_tag_not_found" | "union_tag_invalid", "loc": loc}:
            return (*loc, "type")
        case {"loc": ("evaluator", str(kind), *rest)} if kind in EVALUATORS:
            return ("evaluator", *rest)
    return details["loc"]


def _dotted(document: CommentedMap, location: Sequence[int | str]) -> Iterator[str]:
    """The location's parts as a person counts: the first step of a script is `script.1`."""
    node: Any = document
    for key in location:
        yield str(key + 1) if isinstance(node, CommentedSeq) and isinstance(key, int) else str(key)
        node = (
            node.get(key) if isinstance(node, CommentedMap) else node[key] if isinstance(node, CommentedSeq) else None
        )


def _line(document: CommentedMap, location: Sequence[int | str]) -> int:
    """The line of the field, or of the nearest thing around it that is in the file; counts from 1."""
    node: Any = document
    line = 0
    for key in location:
        places = node.lc.data if isinstance(node, CommentedMap | CommentedSeq) else None
        if not places or key not in places:  # not in the file, or merged into this mapping from elsewhere
            break
        line = places[key][0]
        node = node[key]
    return line + 1


def _expected(details: ErrorDetails, location: Sequence[int | str]) -> str:
    """pydantic's complaint in the words of someone who writes YAML."""
    context = details.get("ctx", {})
    got = details.get("input")
    match details["type"]:
        case "missing":
            return "expected, but it is not there"
        case "extra_forbidden":
            return _unknown(str(location[-1]), _siblings(location))
        case "union_tag_not_found":
            return f"expected one of {_names(EVALUATORS)}, but it is not there"
        case "union_tag_invalid":
            return f"expected one of {_names(EVALUATORS)}; got {context['tag']!r}"
        case "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            return f"expected one of {_names(choices)}; got {_shown(got)}"
        case "string_type":
            return f"expected text; got {_shown(got)}"
        case "string_too_short" | "string_pattern_mismatch" if location[-1] == "name":
            return f"expected letters, digits, '.', '_' and '-'; got {_shown(got)}"
        case "string_too_short" | "string_pattern_mismatch":
            return "expected text; got nothing but blanks"
        case "int_type" | "int_from_float":
            return f"expected a whole number; got {_shown(got)}"
        case "invalid-json-value":
            return f"expected what JSON can hold; got {_shown(got)}"
        case "float_type" | "finite_number":
            return f"expected a number; got {_shown(got)}"
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than" as kind:
            sign = {"greater_than_equal": ">= ", "greater_than": "> ", "less_than_equal": "<= ", "less_than": "< "}[
                kind
            ]
            bound = next(context[key] for key in ("ge", "gt", "le", "lt") if key in context)
            return f"expected a number {sign}{bound:g}; got {_shown(got)}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"expected a mapping; got {_shown(got)}"
        case "list_type":
            return f"expected a list; got {_shown(got)}"
        case _:
            return details["msg"]


def _siblings(location: Sequence[int | str]) -> tuple[str, ...]:
    """The fields that may stand where the last key of `location` does."""
    match location[:-1]:
        case ():
            return tuple(name for name in Scenario.model_fields if name != "path")
        case ("sampling",):
            return tuple(Sampling.__annotations__)
        case ("container",):
            return tuple(ContainerPlace.model_fields)
        case ("call_limits",):
            return tuple(CallLimitFields.model_fields)
        case ("limits",):
            return tuple(LimitFields.model_fields)
        case ("tasks",):
            return tuple(TaskSet.model_fields)
        case ("evaluator",):
            return tuple({name: None for fields in EVALUATORS.values() for name in fields.model_fields})
        case ("mcp_servers", str()):
            return tuple(McpServer.model_fields)
        case ("script", int()):
            return tuple(Step.model_fields)
        case ("script", int(), "write" | "edit" | "agent" as action):
            parts: dict[str, type[_Part]] = {"write": Write, "edit": Edit, "agent": SubAgent}
            return tuple(parts[action].model_fields)
        case _:
            return ()


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown field; did you mean {near[0]}?" if near else f"unknown field; known are {_names(known)}"


def _one_of(name: str, known: Mapping[str, object]) -> str:
    if name not in known:
        raise PydanticCustomError(
            "one_of", "expected one of {known}; got {name}", {"known": _names(known), "name": repr(name)}
        )
    return name


def _names(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names)


def _shown(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case bool():
            return str(value).lower()
        case str() if len(value) > 60:
            return repr(value[:57] + "...")
        case _:
            return repr(value)


def _check_files(scenario: Scenario, document: CommentedMap) -> None:
    """What the scenario names must be there, and an instruction must say something."""

    def fail(field: str, expected: str) -> ScenarioError:
        return ScenarioError(scenario.path, _line(document, (field,)), field, expected)

    if scenario.start_folder is not None and not scenario.start_folder.is_dir():
        raise fail("workspace", f"expected a folder; {scenario.start_folder} is none")
    build = scenario.container.build
    if build is not None and not (scenario.path.parent / build / "Dockerfile").is_file():
        what = f"expected a folder with a Dockerfile; {scenario.path.parent / build} is none"
        raise ScenarioError(scenario.path, _line(document, ("container", "build")), "container.build", what)
    for field, expected in scenario.evaluator.problems(scenario.path.parent):
        raise ScenarioError(scenario.path, _line(document, ("evaluator", field)), f"evaluator.{field}", expected)
    if scenario.instruction_file is None:
        return
    try:
        text = scenario.instruction_text
    except (OSError, UnicodeDecodeError) as error:
        raise fail("instruction_file", f"expected a text file: {error}") from error
    if not text.strip():
        raise fail("instruction_file", f"expected text; {scenario.path.parent / scenario.instruction_file} is empty")
