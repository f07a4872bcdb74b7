"""The rows that trainers take: what each has room for, and what a masked session looks like in it."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest

from polar_mitm.trajectory.exporters import FORMATS
from polar_mitm.trajectory.exporters.base import Session, Tally
from polar_mitm.trajectory.exporters.run import export
from polar_mitm.trajectory.trace import Lineage
from tests.trajectory.exporters.samples import masked, session, trace, turn_of, without_traces

SCHEMAS = Path(__file__).parents[2] / "loaders" / "schemas"
TRAINERS = ("trl", "verl", "slime")


def written(folder: Path, name: str, *sessions: Session) -> tuple[list[dict[str, Any]], Tally]:
    form = FORMATS[name]
    out = folder / f"out{form.suffix}"
    tally = export(sessions, form, out)
    if form.suffix == ".parquet":
        return pq.read_table(out).to_pylist(), tally
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()], tally


def side(session_id: str) -> Any:
    """A title: nothing of it is trained."""
    return trace(session_id, 1, turns=1, masked=True, lineage=Lineage(kind="side"))


@pytest.mark.parametrize("name", ["verl", "slime"])
def test_rows_are_as_the_recorded_schema_says(name: str, tmp_path: Path) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    rows, _ = written(tmp_path, name, session(), session("ses_b", trace("ses_b"), side("ses_b")), masked())
    for row in rows:
        jsonschema.validate(row, schema)


@pytest.mark.parametrize("name", ["verl", "slime"])
def test_the_recorded_schema_refuses_what_the_trainer_would(name: str, tmp_path: Path) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    [row], _ = written(tmp_path, name, session())
    for key in schema["required"]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({field: value for field, value in row.items() if field != key}, schema)


@pytest.mark.parametrize("name", TRAINERS)
def test_traces_without_a_trained_token_are_left_out_and_counted(name: str, tmp_path: Path) -> None:
    rows, tally = written(tmp_path, name, session("ses_b", trace("ses_b"), side("ses_b")), without_traces())
    assert len(rows) == 1
    assert +tally.left_out == {"traces without a trained token": 1, "sessions without a sampled token": 1}


@pytest.mark.parametrize("name", TRAINERS)
def test_a_session_without_a_trained_token_keeps_its_place_and_its_reward(name: str, tmp_path: Path) -> None:
    rows, tally = written(tmp_path, name, session("ses_a"), session("ses_b", side("ses_b"), side("ses_b")), masked())
    assert [row["reward_score" if name == "verl" else "reward"] for row in rows[:2]] == [1.0, 1.0]
    assert (len(rows), tally.places) == (3, 1)
    assert +tally.left_out == {"further traces of sessions without a trained token": 1}


@pytest.mark.parametrize(("name", "mask"), [("trl", "env_mask"), ("verl", "response_mask"), ("slime", "loss_mask")])
def test_a_masked_session_keeps_one_row_with_a_mask_of_zeros(name: str, mask: str, tmp_path: Path) -> None:
    traces = [trace("ses_m", number, turns=2 - number, masked=True) for number in range(2)]
    [row], _ = written(tmp_path, name, masked("ses_m", *traces))
    assert row[mask] == [0] * 8


def test_trl_has_one_main_row_a_session_and_no_reward_for_a_masked_one(tmp_path: Path) -> None:
    sub = trace("ses_a", 1, turns=3, lineage=Lineage(kind="subagent", of_trace="ses_a/0"))
    rows, _ = written(tmp_path, "trl", session("ses_a", trace("ses_a"), sub), masked())
    assert [(row["trace_id"], row["main"], row["reward"]) for row in rows] == [
        ("ses_a/0", True, 1.0),
        ("ses_a/1", False, 1.0),
        ("ses_m/0", True, None),
    ]
    assert all(row["completion_ids"] and row["prompt"] == "t" for row in rows)


def test_verl_masks_by_zero_reward_so_that_it_is_not_scored_again(tmp_path: Path) -> None:
    rows, _ = written(tmp_path, "verl", session(reward=0.5, rewards={}), masked())
    assert [row["reward_score"] for row in rows] == [1.0, 0.0]
    assert rows[0]["num_turns"] == 4, "user, assistant, tool, assistant"


def test_slimes_samples_of_a_session_share_its_rollout_id(tmp_path: Path) -> None:
    sub = trace("ses_a", 1, lineage=Lineage(kind="subagent", of_trace="ses_a/0"))
    other = session("ses_c", trace("ses_c"), group_id="u")
    rows, _ = written(tmp_path, "slime", session("ses_a", trace("ses_a"), sub), session("ses_b"), other)
    places = [(row["group_index"], row["index"], row["rollout_id"]) for row in rows]
    assert places == [(0, 0, 0), (0, 1, 0), (0, 2, 1), (1, 3, 2)]


@pytest.mark.parametrize(
    ("fields", "finish", "status"),
    [
        ({}, "stop", "completed"),
        ({}, "length", "truncated"),
        ({"status": "failed", "masked": "it failed"}, "stop", "failed"),
        ({"status": "timeout", "masked": "late"}, "length", "aborted"),
    ],
)
def test_slimes_status(fields: dict[str, str], finish: str, status: str, tmp_path: Path) -> None:
    last = [turn_of("c", 0, 3, finish_reason=finish)]
    made = trace(turns=1, masked="masked" in fields).model_copy(update={"turns": last})
    [row], _ = written(tmp_path, "slime", session("ses_a", made, **fields))
    assert (row["status"], row["remove_sample"]) == (status, "masked" in fields)
    assert row["tokens"][-row["response_length"] :] == made.response_ids


def test_a_row_says_where_it_comes_from(tmp_path: Path) -> None:
    made = trace(weight=0.5, advantage=-1.5)
    for name in TRAINERS:
        [row], _ = written(tmp_path / name, name, session("ses_a", made))
        place = row.get("extra_fields") or row.get("metadata") or row
        assert (place["trace_id"], place["rollout_id"]) == ("ses_a/0", "ses_a")
        assert (place["weight"], place["advantage"], place["policy_version_max"]) == (0.5, -1.5, "v1")
