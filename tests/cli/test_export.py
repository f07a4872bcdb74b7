"""`polar export` on a run's folder: what it writes, what it says, how it ends."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from polar_mitm.capture.folder import SessionFolder
from polar_mitm.cli import app
from polar_mitm.trajectory.exporters import FORMATS
from polar_mitm.trajectory.run import build_run
from tests.loaders.runs import MASKED, write_run
from tests.trajectory.sessions import World


def polar(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_format_writes_the_run_and_says_what_is_in_it(name: str, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    result = polar(run, "--format", name, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["format"], found["out"], found["sessions"], found["models"]) == (name, str(out), 10, ["tiny"])
    assert found["masked"] == dict.fromkeys(MASKED.values(), 1)
    trained = sum(trace.trained for trajectory in build_run(run) for trace in trajectory.traces)
    assert found["trained_tokens"] == trained > 0
    assert out.exists()


def test_rows_hold_what_the_builder_made(run: Path, tmp_path: Path) -> None:
    assert polar(run, "-f", "parquet", "-o", tmp_path / "x").exit_code == 0
    rows = {row["trace_id"]: row for row in pq.read_table(tmp_path / "x").to_pylist()}
    traces = [trace for trajectory in build_run(run) for trace in trajectory.traces]
    for trace in traces:
        row = rows.pop(trace.trace_id)
        assert (row["prompt_ids"], row["response_ids"]) == (trace.prompt_ids, trace.response_ids)
        assert (row["loss_mask"], row["advantage"], row["weight"]) == (trace.loss_mask, trace.advantage, trace.weight)
        assert row["logprobs"] == pytest.approx(trace.logprobs)
    assert list(rows) == [None], "the session without a call keeps its place"


def test_the_output_lies_in_the_folder_unless_another_place_is_named(tmp_path: Path) -> None:
    write_run(tmp_path)
    for name, form in FORMATS.items():
        assert polar(tmp_path, "-f", name).exit_code == 0
        assert (tmp_path / form.output).exists()
    again = polar(tmp_path, "-f", "jsonl")
    assert again.exit_code == 2
    assert f"polar: {tmp_path / 'traces.jsonl'} exists: add --overwrite" in again.stderr
    assert polar(tmp_path, "-f", "jsonl", "--overwrite").exit_code == 0


def test_the_summary_is_one_line_and_notes(run: Path, tmp_path: Path) -> None:
    result = polar(run, "-f", "trl", "-o", tmp_path / "x")
    [line] = result.stdout.splitlines()
    assert line.startswith(f"{tmp_path / 'x'}: ") and " rows of 10 sessions, " in line
    assert "  masked, 1 session: timeout: it took 10 s" in result.stderr.splitlines()
    assert "  left out: 1 sessions without a sampled token" in result.stderr.splitlines()


def test_one_session_can_be_exported_alone(run: Path, tmp_path: Path) -> None:
    polar(run / "ses_fix_0", "-f", "jsonl", "-o", tmp_path / "x")
    assert {row["session_id"] for row in lines(tmp_path / "x")} == {"ses_fix_0"}


def test_the_builders_options_reach_the_builder(run: Path, tmp_path: Path) -> None:
    def rows(*options: str) -> list[dict[str, Any]]:
        assert polar(run / "ses_fix_1", "-f", "jsonl", "-o", tmp_path / "x", "--overwrite", *options).exit_code == 0
        return lines(tmp_path / "x")

    assert len(rows()) > 1, "the arguments come back re-rendered"
    assert len(rows("--builder", "per_request")) == 3
    [whole] = rows("--rewritten", "substitute")
    assert (whole["rewritten"], whole["exact"]) == ("substitute", False)


def test_advantages(run: Path, tmp_path: Path) -> None:
    def found(kind: str) -> list[float | None]:
        assert polar(run, "-f", "jsonl", "-o", tmp_path / kind, "--advantages", kind).exit_code == 0
        rows = [
            row for row in lines(tmp_path / kind) if row["trace_id"] in ("ses_fix_0/0", "ses_fix_2/0", "ses_late/0")
        ]
        return [row["advantage"] for row in rows]

    assert found("loo") == [0.75, 0.0, None]
    assert found("standard") == [1.0, 0.0, None]
    assert found("none") == [None, None, None]


def test_sessions_without_a_reward_are_kept_when_asked(run: Path, tmp_path: Path) -> None:
    result = polar(run / "ses_open", "-f", "jsonl", "-o", tmp_path / "x", "--keep-unrewarded", "--json")
    found = json.loads(result.stdout)
    assert (found["masked"], found["without_reward"]) == ({}, 1) and found["trained_tokens"]


def test_nothing_to_train_on_is_said(run: Path, tmp_path: Path) -> None:
    result = polar(run / "ses_late", "-f", "jsonl", "-o", tmp_path / "x")
    assert result.exit_code == 0
    assert "  there is no token to train on in it" in result.stderr.splitlines()


def test_an_unknown_format_lists_those_that_there_are(run: Path) -> None:
    result = polar(run, "-f", "csv")
    assert result.exit_code == 2
    words = " ".join(result.stderr.replace("│", " ").split())
    assert "'csv' is not one of parquet, jsonl, trl, verl, slime, nemo-gym, atif" in words


def test_a_folder_without_sessions_is_bad_usage(tmp_path: Path) -> None:
    result = polar(tmp_path, "-f", "jsonl")
    assert result.exit_code == 2
    assert (
        result.stderr == f"polar: there is no session under {tmp_path}: name a session's folder, or a folder of them\n"
    )


def test_a_file_is_no_folder_of_sessions(run: Path) -> None:
    result = polar(run / "ses_fix_0" / "calls.jsonl", "-f", "jsonl")
    words = " ".join(result.stderr.replace("│", " ").split())
    assert result.exit_code == 2 and "is a file" in words


def test_a_newer_schema_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    folder = SessionFolder(World().write(tmp_path))
    text = folder.record.read_text(encoding="utf-8")
    folder.record.write_text(text.replace('"schema": 1', '"schema": 99'), encoding="utf-8")
    result = polar(tmp_path, "-f", "jsonl")
    assert result.exit_code == 2
    assert "schema version 99" in result.stderr and "install a newer polar-mitm" in result.stderr
    assert not (tmp_path / "traces.jsonl").exists()


def test_a_session_that_cannot_be_read_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    write_run(tmp_path)
    calls = SessionFolder(tmp_path / "ses_write_0").calls
    calls.write_bytes(b"nonsense\n" + calls.read_bytes())
    result = polar(tmp_path, "-f", "parquet")
    assert result.exit_code == 1
    assert f"{calls}, line 1" in result.stderr
    assert not (tmp_path / "traces.parquet").exists()
    assert not list(tmp_path.glob(".*"))


def test_models_are_not_mixed_unless_named(tmp_path: Path) -> None:
    for name, model in (("ses_a", "tiny"), ("ses_b", "large")):
        world = World(session_id=name)
        talk = world.talk()
        call = world.answer(talk)
        assert call.engine
        call.engine.model = model
        world.write(tmp_path)
    result = polar(tmp_path, "-f", "trl")
    assert result.exit_code == 2 and "large, tiny" in result.stderr
    assert polar(tmp_path, "-f", "trl", "--model", "tiny").exit_code == 0
    [row] = pq.read_table(tmp_path / "trl.parquet").to_pylist()
    assert (row["session_id"], row["model"]) == ("ses_a", "tiny")


def test_one_row_is_not_several(tmp_path: Path) -> None:
    world = World(session_id="ses_1")
    world.answer(world.talk(), "Yes.")
    told = " ".join(polar(world.write(tmp_path / "run"), "--format", "jsonl").stdout.split())
    assert ": 1 row of 1 session, " in told
