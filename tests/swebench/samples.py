"""Rows and logs in the form of swebench 5; what is in them is filler."""

from typing import Any

FIXED = "tests/test_sum.py::test_sum"
KEPT = ("tests/test_sum.py::test_zero", "tests/test_sum.py::test_order[a-b]")

EVAL = """#!/bin/bash
set -uxo pipefail
cd /testbed
git apply -v - <<'EOF_TESTS'
{test_patch}EOF_TESTS
: '>>>>> Start Test Output'
{tests}
: '>>>>> End Test Output'
git checkout -- .
"""


def row(**changes: Any) -> dict[str, Any]:
    """Of a made-up instance. Lists are JSON text, as in the published data sets."""
    return {
        "instance_id": "filler__sum-1",
        "repo": "filler/sum",
        "version": "1.0",
        "base_commit": "0" * 40,
        "problem_statement": "The sum of two numbers is their difference.\n",
        "hints_text": "",
        "patch": "",
        "test_patch": "",
        "image": "filler/sweb.eval.x86_64.filler_1776_sum-1:latest",
        "FAIL_TO_PASS": f'["{FIXED}"]',
        "PASS_TO_PASS": f'["{KEPT[0]}", "{KEPT[1]}"]',
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "eval_script": EVAL.format(test_patch="", tests="pytest -rA tests/test_sum.py"),
    } | changes


def log(*lines: str, code: int | None = 0, end: bool = True) -> str:
    """What an evaluation script printed, with these lines for the tests' own."""
    text = "+ cd /testbed\n+ : '>>>>> Start Test Output'\n+ pytest -rA tests/test_sum.py\n"
    text += "".join(f"{line}\n" for line in lines)
    if end:
        text += "+ : '>>>>> End Test Output'\n"
    return text + (f">>>>> Test Exit Code: {code}\n" if end and code is not None else "")
