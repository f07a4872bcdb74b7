"""`type: answer`: the harness's final text against the expected one, without a program."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from polar_mitm.tasks.evaluators.base import Evaluation, EvaluatorFields, Finished

_NUMBER: Final = re.compile(r"(?<!\w)[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")


class Answer(EvaluatorFields):
    type: Literal["answer"]
    expected: Annotated[str, StringConstraints(min_length=1)]
    match: Literal["exact", "regex", "number"] = "exact"
    """`exact`: equal but for blanks around it. `regex`: found anywhere. `number`: the last number of the text."""
    tolerance: Annotated[float, Field(ge=0)] = 1e-6
    """Of `number`: absolute, and relative to the expected one."""

    async def evaluate(self, finished: Finished) -> Evaluation:
        text = finished.answer.read_text(encoding="utf-8", errors="replace")
        return Evaluation.of("answer", float(self._matches(text)))

    def problems(self, task_folder: Path) -> Sequence[tuple[str, str]]:
        match self.match:
            case "regex":
                try:
                    re.compile(self.expected)
                except re.error as error:
                    return [("expected", f"expected a regular expression: {error}")]
            case "number" if _last_number(self.expected) is None:
                return [("expected", f"expected a number; got {self.expected!r}")]
        return ()

    def _matches(self, text: str) -> bool:
        match self.match:
            case "exact":
                return text.strip() == self.expected.strip()
            case "regex":
                return re.search(self.expected, text) is not None
            case "number":
                got, wanted = _last_number(text), _last_number(self.expected)
                assert wanted is not None
                return got is not None and math.isclose(got, wanted, rel_tol=self.tolerance, abs_tol=self.tolerance)


def _last_number(text: str) -> float | None:
    """Thousands may be set off by commas; a sentence's full stop after it is no part of it."""
    found = [match.group() for match in _NUMBER.finditer(text)]
    return float(found[-1].replace(",", "")) if found else None
