"""Scenario files: one YAML mapping each.

Loading checks everything that the file alone can tell; every complaint names file, line, field and what was expected.
"""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from polar_mitm.tasks.errors import ScenarioError, shown
from polar_mitm.tasks.problems import fields_of as fields_at
from polar_mitm.tasks.problems import line_of, problem, unknown
from polar_mitm.tasks.scenario import NOT_IN_FILE, Scenario
from polar_mitm.tasks.work import fields_of

MOST_VALUES = 100_000
"""Of a scenario, its aliases unfolded."""


def load(path: Path, changes: Mapping[str, object] | None = None) -> Scenario:
    """The scenario in a file, or the one that a Harbor task folder, a folder of such, or a file of SWE-bench rows comes
    to.

    `changes` are top-level fields that win over the file's, such as a command's options; those of a mapping (`tasks`)
    are changed one by one. Raises ScenarioError.
    """
    given = fields_of(path)
    document = _read(path) if given is None else CommentedMap(given)
    try:
        fields = _changed(_Plain().of(document), changes or {})
    except ValueError as error:
        raise ScenarioError(path, None, "", f"not usable: {error}") from None
    for name in fields:
        if name in NOT_IN_FILE or not isinstance(name, str):  # `1: x`
            raise ScenarioError(path, line_of(document, (name,)), str(name), unknown(str(name), fields_at((name,))))
    try:
        scenario = Scenario.model_validate({"name": path.stem} | fields | {"path": path})
    except ValidationError as error:
        # The first in the file; what is missing comes last, since a misspelt field is often why.
        problems = [
            (details["type"] == "missing", problem(path, document, changes or {}, details))
            for details in error.errors()
        ]
        raise min(problems, key=lambda problem: (problem[0], problem[1].line or 0))[1] from None
    _check_files(scenario, document)
    return scenario


def _changed(fields: dict[Any, Any], changes: Mapping[str, object]) -> dict[Any, Any]:
    for name, value in changes.items():
        within = fields.get(name)
        fields = fields | {name: within | value if isinstance(within, dict) and isinstance(value, dict) else value}
    return fields


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
        got = "nothing" if document is None else shown(document)
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


def _check_files(scenario: Scenario, document: CommentedMap) -> None:
    """What the scenario names must be there, and an instruction must say something."""

    def fail(field: str, expected: str) -> ScenarioError:
        return ScenarioError(scenario.path, line_of(document, (field,)), field, expected)

    if scenario.start_folder is not None and not scenario.start_folder.is_dir():
        raise fail("workspace", f"expected a folder; {scenario.start_folder} is none")
    build = scenario.container.build
    if build is not None and not (scenario.path.parent / build / "Dockerfile").is_file():
        what = f"expected a folder with a Dockerfile; {scenario.path.parent / build} is none"
        raise ScenarioError(scenario.path, line_of(document, ("container", "build")), "container.build", what)
    for field, expected in scenario.evaluator.problems(scenario.path.parent):
        raise ScenarioError(scenario.path, line_of(document, ("evaluator", field)), f"evaluator.{field}", expected)
    if scenario.instruction_file is None:
        return
    try:
        text = scenario.instruction_text
    except (OSError, UnicodeDecodeError) as error:
        raise fail("instruction_file", f"expected a text file: {error}") from error
    if not text.strip():
        raise fail("instruction_file", f"expected text; {scenario.path.parent / scenario.instruction_file} is empty")
