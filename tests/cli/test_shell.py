"""What every command shares: JSON of any value, the log as lines, and what a person pastes."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from polar_mitm.cli import harness
from polar_mitm.cli.doctor import _mark
from polar_mitm.cli.log_lines import LogLines
from polar_mitm.cli.run_task import _tell_more
from polar_mitm.cli.shell import print_json
from polar_mitm.cli.tables import many
from polar_mitm.harnesses import codex
from polar_mitm.harnesses.base import Installed
from polar_mitm.harnesses.paste import folded, lines_to_paste
from polar_mitm.rollout.doctor import Finding

ODD: list[Any] = [
    {"long": 2**70, "less": -(2**70)},
    {"half": "\ud800"},
    {"long": 2**70, "half": "\udfff"},
    {"long": 2**70, "inner": orjson.Fragment(b'{"a": 98765432109876543210}')},
    {"half": "\ud800", "inner": [orjson.Fragment(b"[1.5]")]},
]


@pytest.mark.parametrize("value", ODD)
def test_json_holds_integers_of_any_size_and_halves_of_pairs(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    print_json(value)
    told = json.loads(capsys.readouterr().out)
    assert set(told) == set(value)
    for name, content in value.items():
        if name == "inner":
            assert told[name] in ({"a": 98765432109876543210}, [[1.5]])
        else:
            assert told[name] == content


def test_a_log_line_is_as_long_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/a/very/long/path/" * 20
    LogLines().emit(logging.makeLogRecord({"msg": f"calls go to {path}", "levelno": logging.INFO}))
    LogLines().emit(logging.makeLogRecord({"msg": "x\x1b[31m", "levelno": logging.WARNING, "levelname": "WARNING"}))
    told, warned = capsys.readouterr().err.splitlines()
    assert told[8:] == f"  calls go to {path}"
    assert warned[8:] == "  warning: x\ufffd[31m"


def test_lines_to_paste_fit_a_terminal_and_are_one_command_to_a_shell() -> None:
    for name, line in lines_to_paste("http://127.0.0.1:53569", "http://127.0.0.1:36609", Path("/h/ca/mitm-ca.pem")):
        shown = folded(line)
        assert all(len(part) <= 80 for part in shown.splitlines()), (name, shown)
        counted = [
            subprocess.run(
                ["sh", "-c", f"set -- {text}\nprintf '%s\\n' \"$@\""], capture_output=True, check=True
            ).stdout
            for text in (line, shown.strip())
        ]
        assert counted[0] == counted[1] != b""


def test_what_cannot_be_anywhere_is_no_no() -> None:
    findings = [
        Finding("a", True, ""),
        Finding("a", False, ""),
        Finding("a", False, "", needed=True),
        Finding("a", False, "", possible=False),
    ]
    assert [_mark(finding)[-5:-3] for finding in findings] == ["ok", "no", "no", "--"]


def test_one_thing_is_not_several() -> None:
    assert (many(1, "row"), many(0, "row"), many(2000, "row")) == ("1 row", "0 rows", "2,000 rows")


def test_the_summary_of_a_set_names_what_comes_next(capsys: pytest.CaptureFixture[str]) -> None:
    _tell_more(Path("runs/it"), unfinished=False)
    told = capsys.readouterr().out
    assert all(command in told for command in ("polar traces runs/it", "polar calls runs/it", "polar export runs/it"))
    assert "--resume" not in told
    _tell_more(Path("runs/it"), unfinished=True)
    assert "--resume" in capsys.readouterr().out


def test_the_package_runs_as_polar() -> None:
    ran = subprocess.run([sys.executable, "-m", "polar_mitm", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: polar " in ran.stdout


def test_a_harness_is_listed_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "HARNESSES", {"codex": codex})
    monkeypatch.setattr(codex, "find", lambda: Installed("9.9.9", [], ["/there/my [node]", "cli.js"]))
    harness.list_harnesses()
    assert "'/there/my [node]' cli.js" in capsys.readouterr().out
    harness.list_harnesses(json=True)
    assert json.loads(capsys.readouterr().out)[0]["command"] == ["/there/my [node]", "cli.js"]
