"""What `polar export` writes, read by the programs that it is for. Each runs in its own environment."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.loaders.conftest import Load
from tests.loaders.runs import MASKED, TASKS, VOCABULARY

pytestmark = pytest.mark.live

type Exported = Callable[[str], Path]

DOCS = Path(__file__).parents[2] / "docs" / "exporters.md"
ARRAYS = {"prompt_ids": "int32", "response_ids": "int32", "loss_mask": "int8", "logprobs": "float32"}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_datasets_loads_parquet_with_the_promised_types(exported: Exported, load: Load, tmp_path: Path) -> None:
    file = exported("parquet")
    read = json.loads(load("trl", "read_datasets.py", "parquet", file, tmp_path))
    assert {name: read["features"][name] for name in ARRAYS} == {
        name: f"List(Value('{kind}'))" for name, kind in ARRAYS.items()
    }
    assert read["rows"] == pq.read_table(file).to_pylist()


def test_datasets_loads_jsonl_with_the_same_arrays(exported: Exported, load: Load, tmp_path: Path) -> None:
    read = json.loads(load("trl", "read_datasets.py", "json", exported("jsonl"), tmp_path))
    written = lines(exported("jsonl"))
    assert len(read["rows"]) == len(written) > len(TASKS) * 3
    for row, line in zip(read["rows"], written, strict=True):
        assert {name: row[name] for name in (*ARRAYS, "reward", "messages")} == {
            name: line[name] for name in (*ARRAYS, "reward", "messages")
        }


def test_trl_trains_two_steps_on_the_documented_example(exported: Exported, load: Load, tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    [program] = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    example.write_text(program, encoding="utf-8")
    load("trl", "train_trl.py", example, exported("trl"), VOCABULARY, tmp_path)
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["steps"] == 2
    assert math.isfinite(report["loss"]) and report["moved"] > 0
    rows = [row for row in pq.read_table(exported("trl")).to_pylist() if row["main"]]
    known = {tuple(row["prompt_ids"] + row["completion_ids"]): row for row in rows}
    for batch in report["batches"]:
        for place, advantage in enumerate(batch["advantages"]):
            prompt = cut(batch["prompt_ids"][place], batch["prompt_mask"][place])
            shown = batch["completion_mask"][place]
            row = known[tuple(prompt + cut(batch["completion_ids"][place], shown))]
            assert cut(batch["tool_mask"][place], shown) == row["env_mask"]
            assert cut(batch["sampling_per_token_logps"][place], shown) == pytest.approx(row["logprobs"])
            assert row["reward"] is not None or advantage == 0


def cut(values: list[Any], mask: list[int]) -> list[Any]:
    """Without padding."""
    return [value for value, shown in zip(values, mask, strict=True) if shown]


def test_nemo_gym_reads_each_row_as_one_contiguous_chain(exported: Exported, load: Load) -> None:
    read = json.loads(load("nemo-gym", "check_nemo_gym.py", exported("nemo-gym")))
    rows = lines(exported("nemo-gym"))
    assert [row["mask_sample"] for row in read] == [row["session_id"] in MASKED for row in rows]
    traces = {row["trace_id"]: row for row in lines(exported("jsonl"))}
    for row, seen in zip(rows, read, strict=True):
        trace = traces[row["trace_id"]]
        trained = [
            (token, logprob)
            for token, mask, logprob in zip(trace["response_ids"], trace["loss_mask"], trace["logprobs"], strict=True)
            if mask
        ]
        generated = [message for message in seen["message_log"] if message["role"] == "assistant"]
        assert [token for message in generated for token in message["token_ids"]] == [token for token, _ in trained]
        assert [value for message in generated for value in message["generation_logprobs"]] == [
            value for _, value in trained
        ]
        whole = [token for message in seen["message_log"] for token in message["token_ids"]]
        assert whole == (trace["prompt_ids"] + trace["response_ids"])[: len(whole)]
    assert any(row["other_traces"] and row["delivered_fraction"] < 1 for row in rows)


def test_harbor_finds_nothing_wrong_with_any_document(exported: Exported, load: Load) -> None:
    found = json.loads(load("harbor", "check_harbor.py", exported("atif")))
    assert {name: errors for name, errors in found.items() if errors} == {}
    assert {"ses_fix_0.json", "ses_fix_1.cont-1.json", "ses_none.json"} <= set(found)


def test_harbor_would_find_something(exported: Exported, load: Load, tmp_path: Path) -> None:
    document = json.loads((exported("atif") / "ses_fix_0.json").read_text(encoding="utf-8"))
    document["steps"][0]["step_id"] = 7
    (tmp_path / "bad.json").write_text(json.dumps(document), encoding="utf-8")
    found = json.loads(load("harbor", "check_harbor.py", tmp_path))
    assert "expected 1 (sequential from 1), got 7" in found["bad.json"][0]
