"""Run by the Python of swebench's environment: a list of questions as JSON on standard input, their answers on output.

`{"row": ...}` asks how the row's tests are run, `{"row": ..., "patch": TEXT or null, "log": PATH}` for a log's report.
Nothing here imports polar.
"""

import contextlib
import json
import sys
from typing import Any


def main() -> None:
    questions = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        answers = [_report(one) if "log" in one else _run(one["row"]) for one in questions]
    json.dump(answers, sys.stdout)


def _run(row: dict[str, Any]) -> dict[str, Any]:
    from swebench.harness.constants import APPLY_PATCH_FAIL
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.run_evaluation import GIT_APPLY_CMDS
    from swebench.harness.utils import make_test_spec
    from swebench.image_builder.constants import CONTAINER_USER, CONTAINER_WORKDIR

    return {
        "eval_script": make_test_spec(row).eval_script,
        "apply": GIT_APPLY_CMDS,
        "not_applied": APPLY_PATCH_FAIL,
        "user": CONTAINER_USER,
        "workdir": CONTAINER_WORKDIR,
        "has_parser": row["log_parser"] in PARSER_REGISTRY,
    }


def _report(question: dict[str, Any]) -> dict[str, Any]:
    from swebench.harness.grading import get_eval_report
    from swebench.harness.utils import make_test_spec

    row = question["row"]
    prediction = {"instance_id": row["instance_id"], "model_patch": question["patch"], "model_name_or_path": "polar"}
    report: dict[str, Any] = get_eval_report(
        make_test_spec(row), prediction, question["log"], include_tests_status=True
    )
    return report


if __name__ == "__main__":
    main()
