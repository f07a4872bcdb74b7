"""The canonical row, as Parquet and as JSON lines: the same arrays, whatever the format."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from polar_mitm.trajectory.exporters import FORMATS
from polar_mitm.trajectory.exporters.base import Session
from polar_mitm.trajectory.exporters.run import export
from polar_mitm.trajectory.trace import Lineage
from tests.trajectory.exporters.samples import masked, session, trace, turn_of, without_traces

ARRAYS = {"prompt_ids": "int32", "response_ids": "int32", "loss_mask": "int8", "logprobs": "float"}


def parquet(folder: Path, *sessions: Session) -> pa.Table:
    out = folder / "out.parquet"
    export(sessions, FORMATS["parquet"], out)
    return pq.read_table(out)


def jsonl(folder: Path, *sessions: Session) -> list[dict[str, Any]]:
    out = folder / "out.jsonl"
    export(sessions, FORMATS["jsonl"], out)
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def float32(values: list[float]) -> list[float]:
    return pa.array(values, pa.float32()).to_pylist()


def test_arrays_have_the_promised_types_and_rewards_are_doubles(tmp_path: Path) -> None:
    columns = parquet(tmp_path, session()).schema
    assert {name: str(columns.field(name).type.value_type) for name in ARRAYS} == ARRAYS
    assert {str(columns.field(name).type) for name in ("reward", "weight", "advantage")} == {"double"}


def test_both_formats_hold_the_same_rows(tmp_path: Path) -> None:
    sub = trace("ses_b", 1, lineage=Lineage(kind="subagent", of_trace="ses_b/0", of_call="c"))
    sessions = [session(), session("ses_b", trace("ses_b"), sub), masked(), without_traces()]
    lines, table = jsonl(tmp_path, *sessions), parquet(tmp_path, *sessions).to_pylist()
    assert len(lines) == len(table) == 5
    for line, row in zip(lines, table, strict=True):
        assert float32(line.pop("logprobs")) == row.pop("logprobs")
        assert line == row


@given(
    st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 1), st.floats(-50, 0)),
        max_size=40,
    ),
    st.lists(st.integers(0, 2**31 - 1), max_size=40),
)
@settings(max_examples=50, deadline=None)
def test_what_is_read_back_is_what_was_built(
    tmp_path_factory: Any, tokens: list[tuple[int, int, float]], prompt: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("out")
    ids, mask, logprobs = ([token[place] for token in tokens] for place in range(3))
    fields = {"prompt_ids": prompt, "response_ids": ids, "loss_mask": mask, "logprobs": logprobs}
    made = session("ses_a", trace(**fields, turns=0))
    [line], [row] = jsonl(folder, made), parquet(folder, made).to_pylist()
    for held in (line, row):
        assert held["prompt_ids"] == prompt
        assert held["response_ids"] == ids
        assert held["loss_mask"] == mask
        assert float32(held["logprobs"]) == float32(logprobs)


def test_a_session_without_a_trace_keeps_its_place_with_an_empty_row(tmp_path: Path) -> None:
    [row] = jsonl(tmp_path, without_traces())
    assert (row["session_id"], row["group_id"], row["trace_id"]) == ("ses_0", "t", None)
    assert all(row[name] == [] for name in ARRAYS)
    assert (row["masked"], row["weight"], row["reward"]) == ("no call was captured", 0.0, None)


def test_a_masked_session_keeps_its_tokens_and_trains_none(tmp_path: Path) -> None:
    [row] = jsonl(tmp_path, masked())
    assert row["response_ids"] and sum(row["loss_mask"]) == 0
    assert (row["status"], row["masked"], row["weight"]) == ("timeout", "the session timed out", 0.0)


def test_policy_versions_are_ordered_as_people_count(tmp_path: Path) -> None:
    versions = ["step-9", "step-10", "step-9"]
    turns = [turn_of(f"c{place}", place, place + 1, policy_version=name) for place, name in enumerate(versions)]
    lists = {"response_ids": [1, 2, 3], "loss_mask": [1, 1, 1], "logprobs": [-1.0] * 3}
    [row] = jsonl(tmp_path, session("ses_a", trace(turns=0, **lists).model_copy(update={"turns": turns})))
    assert row["policy_versions"] == ["step-9", "step-10"]
    assert (row["policy_version_min"], row["policy_version_max"]) == ("step-9", "step-10")


def test_the_traces_reward_comes_before_the_sessions(tmp_path: Path) -> None:
    own = trace("ses_a", reward=0.25, rewards={"style": 0.5})
    inherits = trace("ses_a", 1, reward=None)
    first, second = jsonl(tmp_path, session("ses_a", own, inherits, reward=1.0, rewards={"tests": 1.0}))
    assert (first["reward"], first["rewards"]) == (0.25, [{"name": "style", "value": 0.5}])
    assert (second["reward"], second["rewards"]) == (1.0, [{"name": "tests", "value": 1.0}])


def test_messages_with_half_an_emoji_survive_in_both_formats(tmp_path: Path) -> None:
    broken = [{"role": "user", "content": "caf\u00e9 \ud83d \U0001f600", "\udc00": 2**70}]
    made = session("ses_a", trace(messages=broken))
    [line], [row] = jsonl(tmp_path, made), parquet(tmp_path, made).to_pylist()
    assert json.loads(line["messages"]) == json.loads(row["messages"]) == broken


def test_row_groups_are_written_as_tokens_add_up(tmp_path: Path) -> None:
    ids = list(range(600_000))
    lists = {"response_ids": ids, "loss_mask": [1] * len(ids), "logprobs": [-0.5] * len(ids)}
    sessions = (session(f"ses_{n}", trace(f"ses_{n}", turns=0, **lists)) for n in range(4))
    export(sessions, FORMATS["parquet"], tmp_path / "out.parquet")
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups == 2


def test_the_documentation_names_every_field(tmp_path: Path) -> None:
    docs = (Path(__file__).parents[3] / "docs" / "exporters.md").read_text(encoding="utf-8")
    _, _, table = docs.partition("## The canonical row")
    table, _, _ = table.partition("\n## ")
    named = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    [row] = jsonl(tmp_path, session())
    assert re.findall(r"`(\w+)`", " ".join(named)) == list(row)
