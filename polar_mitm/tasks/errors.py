"""The complaint about a file of a task that cannot be used."""

from pathlib import Path

from polar_mitm.errors import BadInput


class ScenarioError(BadInput):
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


def shown(value: object) -> str:
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
