"""Rows of a SWE-bench data set: JSON lines, a JSON array, or Parquet, with the columns of swebench 5.

Such a row is whole: it names its image, its evaluation script and the parser of its log. Rows of older data sets have
none of the three, and are refused.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from polar_mitm.tasks.errors import ScenarioError, shown

SUFFIXES: Final = (".jsonl", ".json", ".parquet")

START: Final = ">>>>> Start Test Output"
END: Final = ">>>>> End Test Output"
"""What an evaluation script prints before and after the output of the tests; without it no log can be read."""

_SINCE_5: Final = frozenset({"image", "eval_script", "log_parser", "eval_type"})


def _from_text(value: Any) -> Any:
    """Data sets hold lists and mappings as JSON text too."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value else None
    except (ValueError, RecursionError):
        return value


type Line = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]
type Tests = Annotated[list[str], BeforeValidator(_from_text)]


class Row(BaseModel):
    """One instance. Columns that nothing here reads are in `model_extra`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    instance_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    problem_statement: Line
    image: Line
    """The instance's image, with the repository at `/testbed`."""
    eval_script: Line
    log_parser: Line
    """Its name in swebench's registry."""
    eval_type: Literal["pass_and_fail", "fail_only"]
    repo: str
    version: str
    FAIL_TO_PASS: Annotated[Tests, Field(min_length=1)]
    PASS_TO_PASS: Tests
    patch: str = ""
    """The reference solution, which only the oracle sees."""
    image_assets: Annotated[dict[str, Any] | None, BeforeValidator(_from_text)] = None

    def data(self) -> dict[str, Any]:
        """The row as a data set has it."""
        return self.model_dump(mode="json")


def is_one_mapping(path: Path) -> bool:
    """Whether a .json file is no array of rows: a scenario may be written as JSON."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return not file.read(4096).lstrip().startswith(b"[")


def read(path: Path) -> Iterator[tuple[int | None, Row]]:
    """The rows with their lines, which only JSON lines have. Raises ScenarioError, which names the place."""
    for line, number, fields in _raw(path):
        try:
            row = Row.model_validate(fields)
        except ValidationError as error:
            field, what = _problem(error, fields)
            row_of = "" if line else f"row {number}: "
            raise ScenarioError(path, line, field, row_of + what) from None
        if refused := _refused(row):
            raise ScenarioError(path, line, refused[0], f"{row.instance_id}: {refused[1]}")
        yield line, row


def _raw(path: Path) -> Iterator[tuple[int | None, int, Any]]:
    """Line, number and fields of each row."""
    match path.suffix:
        case ".jsonl":
            yield from ((line, number, row) for number, (line, row) in enumerate(_lines(path), 1))
        case ".json":
            rows = _json(path, None, _text(path))
            if not isinstance(rows, list):
                raise ScenarioError(path, None, "", "expected an array of rows")
            yield from ((None, number, row) for number, row in enumerate(rows, 1))
        case ".parquet":
            yield from ((None, number, row) for number, row in enumerate(_parquet(path), 1))
        case _:
            raise ScenarioError(path, None, "", f"expected a file of rows: {', '.join(SUFFIXES)}")


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    for line, text in enumerate(_text(path).split("\n"), 1):
        if text.strip():
            yield line, _json(path, line, text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(path, None, "", f"cannot be read: {error}") from error


def _json(path: Path, line: int | None, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(path, line, "", f"not JSON: {error}") from None


def _parquet(path: Path) -> Sequence[Any]:
    try:
        import pyarrow  # type: ignore[import-untyped]  # it has no types
        from pyarrow.parquet import read_table  # type: ignore[import-untyped]  # it has no types
    except ImportError as error:
        what = "Parquet needs the package pyarrow: install it beside polar, or write the rows as JSON lines"
        raise ScenarioError(path, None, "", what) from error
    try:
        rows: Sequence[Any] = read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ScenarioError(path, None, "", f"cannot be read: {error}") from error
    return rows


def _problem(error: ValidationError, fields: Any) -> tuple[str, str]:
    if not isinstance(fields, dict):
        return "", f"expected an object; got {shown(fields)}"
    missing = [str(one["loc"][0]) for one in error.errors() if one["type"] == "missing"]
    if "instance_id" in missing:
        return "", "expected a row of SWE-bench; for tasks of another kind write a scenario with tasks.file"
    if older := sorted(_SINCE_5 & set(missing)):
        what = "the data sets have had them since swebench 5, and rows without them cannot be graded"
        return "", f"it has no {', '.join(older)}: {what}"
    if missing:
        return missing[0], "expected, but it is not there"
    first = error.errors()[0]
    return ".".join(str(part) for part in first["loc"]), f"{first['msg']}; got {shown(first['input'])}"


def _refused(row: Row) -> tuple[str, str] | None:
    if any((row.image_assets or {}).values()):
        return "image_assets", "its tests compare pictures that lie elsewhere, which polar does not fetch"
    if START not in row.eval_script or END not in row.eval_script:
        return "eval_script", f"it does not print {START!r} and {END!r} around the tests, so no log can be read"
    return None
