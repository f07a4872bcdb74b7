"""`type: answer`: the harness's final text against the expected one, without a program."""

import asyncio
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from polar_mitm.json_text import dumps, loads
from polar_mitm.tasks.evaluators.base import Evaluation, EvaluatorFields, Finished

_NUMBER: Final = re.compile(r"(?<!\w)[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")

SEARCH_S: Final = 20.0
_SEARCH: Final = "import json, re, sys; found = re.search(*json.load(sys.stdin.buffer)); print(int(found is not None))"


class Answer(EvaluatorFields):
    type: Literal["answer"]
    expected: Annotated[str, StringConstraints(min_length=1)] | None = None
    expected_field: Annotated[str, StringConstraints(min_length=1)] | None = None
    """The field of the task's line in its task set that holds what is expected, in place of `expected`."""
    match: Literal["exact", "regex", "number"] = "exact"
    """`exact`: equal but for blanks around it. `regex`: found anywhere. `number`: the last number of the text."""
    tolerance: Annotated[float, Field(ge=0)] = 1e-6
    """Of `number`: absolute, and relative to the expected one."""

    async def evaluate(self, finished: Finished) -> Evaluation:
        text = finished.answer.read_text(encoding="utf-8", errors="replace")
        expected = self.expected if self.expected is not None else self._of(finished.task)
        if expected is None:
            return Evaluation.failed(f"the task has no expected answer in its field {self.expected_field!r}")
        if problem := self._problem(expected):
            return Evaluation.failed(problem)
        try:
            return Evaluation.of("answer", float(await self._matches(text, expected)))
        except TimeoutError:
            return Evaluation.failed(f"the expression took longer than {SEARCH_S:g} s on the harness's final text")

    def problems(self, task_folder: Path) -> Sequence[tuple[str, str]]:
        if (self.expected is None) == (self.expected_field is None):
            return [("expected", "expected one of expected and expected_field")]
        problem = self._problem(self.expected) if self.expected is not None else None
        return [("expected", problem)] if problem else []

    def problem_with(self, task: Mapping[str, Any]) -> tuple[str, str] | None:
        if self.expected_field is None:
            return None
        expected = self._of(task)
        if expected is None:
            known = ", ".join(task) or "none"
            what = f"expected the answer (evaluator.expected_field); the fields are {known}"
        else:
            what = self._problem(expected) or ""
        return (self.expected_field, what) if what else None

    def _of(self, task: Mapping[str, Any]) -> str | None:
        value = task.get(self.expected_field or "")
        return None if value is None or isinstance(value, dict | list) else str(value)

    def _problem(self, expected: str) -> str | None:
        match self.match:
            case "regex":
                try:
                    re.compile(expected)
                except re.error as error:
                    return f"expected a regular expression: {error}"
            case "number" if _last_number(expected) is None:
                return f"expected a number; got {expected!r}"
        return None

    async def _matches(self, text: str, expected: str) -> bool:
        """Raises TimeoutError."""
        match self.match:
            case "exact":
                return text.strip() == expected.strip()
            case "regex":
                return await _found(expected, text)
            case "number":
                got, wanted = _last_number(text), _last_number(expected)
                assert wanted is not None
                return got is not None and math.isclose(got, wanted, rel_tol=self.tolerance, abs_tol=self.tolerance)


async def _found(expression: str, text: str) -> bool:
    """In a process of its own: nothing ends a search in this one, and a text can make it last for ever."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _SEARCH), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(SEARCH_S):
            told, _ = await process.communicate(dumps([expression, text]))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return bool(loads(told))


def _last_number(text: str) -> float | None:
    """Thousands may be set off by commas; a sentence's full stop after it is no part of it."""
    found = [match.group() for match in _NUMBER.finditer(text)]
    return float(found[-1].replace(",", "")) if found else None
