"""`type: python`: a function of the task's own judges the workspace.

`function: checks.py:grade` names a file beside the scenario, `function: package.module:grade` a module that polar's
Python can import. It runs in a sandbox of the harness's kind, in a copy of the workspace, and is called with one
mapping: `workspace` and `answer_file` (paths), `answer` (text), `session` (id), `exit_code`, `valid_calls`, and `task`,
the task's line of its task set. It returns
a number, or a mapping of names to numbers in which `reward` is the reward, or else their mean is. What it raises, and
what is no finite number, is an error of the evaluation.
"""

import json
import math
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from polar_mitm.tasks.evaluators import program
from polar_mitm.tasks.evaluators.base import Evaluation, EvaluatorFields, Finished

_CALLER: Final = """\
import importlib, importlib.util, json, os, sys
place, name, session, mark = sys.argv[1:5]
about = json.loads(session)
with open(os.environ["POLAR_ANSWER"], encoding="utf-8", errors="replace") as file:
    about["answer"] = file.read()
with open(os.environ["POLAR_TASK"], encoding="utf-8") as file:
    about["task"] = json.load(file)
about |= {"answer_file": os.environ["POLAR_ANSWER"], "workspace": os.getcwd(), "session": os.environ["POLAR_SESSION"]}
if place.endswith(".py"):
    spec = importlib.util.spec_from_file_location("task_evaluator", place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, os.path.dirname(place))
    spec.loader.exec_module(module)
else:
    module = importlib.import_module(place)
print(f"\\n{mark}{json.dumps(getattr(module, name)(about))}")
"""


class Python(EvaluatorFields):
    type: Literal["python"]
    function: Annotated[str, StringConstraints(pattern=r"^[^:]+:[A-Za-z_]\w*$")]
    timeout_s: Annotated[float, Field(gt=0)] = 60

    async def evaluate(self, finished: Finished) -> Evaluation:
        place, name = self.function.split(":")
        folders = [Path(sys.prefix), Path(sys.base_prefix)]
        if place.endswith(".py"):
            place = str((finished.task_folder / place).resolve())
            folders.append(Path(place).parent)
        about = json.dumps({"exit_code": finished.exit_code, "valid_calls": finished.valid_calls})
        mark = f"{finished.session_id}:"
        judged = await program.run(
            [sys.executable, "-I", "{home}/call.py", place, name, about, mark],
            finished,
            timeout_s=self.timeout_s,
            files={"call.py": _CALLER},
            read_only=folders,
        )
        if isinstance(judged, Evaluation):
            return judged
        if judged.code != 0:
            last = judged.output.strip().rpartition("\n")[2]
            return Evaluation.failed(f"{self.function} failed: {last}", judged.output)
        return _read(judged.stdout.rpartition(mark)[2], self.function, judged.output)

    def problems(self, task_folder: Path) -> Sequence[tuple[str, str]]:
        place = self.function.partition(":")[0]
        if place.endswith(".py"):
            found = (task_folder / place).is_file()
        else:
            try:
                found = find_spec(place) is not None
            except (ImportError, ValueError):
                found = False
        return () if found else [("function", f"expected FILE.py:NAME or MODULE:NAME; there is no {place}")]


def _read(returned: str, function: str, output: str) -> Evaluation:
    try:
        value = json.loads(returned)
    except ValueError:
        return Evaluation.failed(f"{function} ended its process before it returned", output)
    named = value if isinstance(value, dict) else {"python": value}
    numbers = {name: number for name, number in named.items() if isinstance(number, int | float)}
    if not numbers or len(numbers) < len(named) or not all(map(math.isfinite, numbers.values())):
        return Evaluation.failed(f"{function} returned {returned.strip()[:200]}, which is no finite reward", output)
    return Evaluation.named({name: float(number) for name, number in numbers.items()}, output)
