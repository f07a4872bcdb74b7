"""Result rows for NeMo Gym: one contiguous chain of trained tokens and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar_mitm.trajectory.exporters import FORMATS, nemo_gym
from polar_mitm.trajectory.exporters.base import Session, Tally
from polar_mitm.trajectory.exporters.run import export
from polar_mitm.trajectory.trace import Lineage, Trace
from tests.trajectory.exporters.samples import PROMPT, masked, messages, session, trace, turn_of, without_traces


def written(folder: Path, *sessions: Session) -> list[dict[str, Any]]:
    out = folder / "out.jsonl"
    export(sessions, FORMATS["nemo-gym"], out)
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def tokens(row: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    items = (item for item in row["response"]["output"] if "generation_token_ids" in item)
    return [(item["prompt_token_ids"], item["generation_token_ids"]) for item in items]


def forced_inside() -> Trace:
    """One turn of six ids, of which a grammar imposed the third and fourth."""
    lists = {"response_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [1, 1, 0, 0, 1, 1], "logprobs": [-1.0] * 6}
    return trace(turns=1, **lists).model_copy(update={"turns": [turn_of("c", 0, 6)]})


def test_each_prompt_begins_with_all_tokens_before_it(tmp_path: Path) -> None:
    [row] = written(tmp_path, session())
    first = [100, 101, 102]
    assert tokens(row) == [(PROMPT, first), ([*PROMPT, *first, 510, 511], [110, 111, 112])]


def test_untrained_tokens_inside_a_turn_are_in_the_next_prompt(tmp_path: Path) -> None:
    [row] = written(tmp_path, session("ses_a", forced_inside()))
    assert tokens(row) == [(PROMPT, [1, 2]), ([*PROMPT, 1, 2, 3, 4], [5, 6])]


def test_turns_with_nothing_between_them_are_one_run(tmp_path: Path) -> None:
    [row] = written(tmp_path, session("ses_a", trace(context=0)))
    assert tokens(row) == [(PROMPT, [100, 101, 102, 110, 111, 112])]


def test_items_are_the_conversation_from_the_first_sampled_message(tmp_path: Path) -> None:
    [row] = written(tmp_path, session())
    assert [item["role"] for item in row["responses_create_params"]["input"]] == ["system", "user"]
    types = [item["type"] for item in row["response"]["output"]]
    assert types == ["reasoning", "message", "function_call", "function_call_output", "message"]


def test_a_turn_in_no_message_still_has_its_tokens(tmp_path: Path) -> None:
    joined = trace(turns=3, messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    [row] = written(tmp_path, session("ses_a", joined))
    assert [generated for _, generated in tokens(row)] == [[100, 101, 102], [110, 111, 112], [120, 121, 122]]


def test_other_chains_are_kept_beside_and_the_delivered_share_is_given(tmp_path: Path) -> None:
    sub = trace("ses_a", 1, turns=1, lineage=Lineage(kind="subagent", of_trace="ses_a/0", of_call="ses_a-0-0"))
    [row] = written(tmp_path, session("ses_a", trace("ses_a"), sub))
    assert row["delivered_fraction"] == 6 / 9
    [other] = row["other_traces"]
    assert (other["trace_id"], other["response_ids"], other["lineage"]["kind"]) == (
        "ses_a/1",
        [100, 101, 102],
        "subagent",
    )


@pytest.mark.parametrize(
    ("made", "kind", "reason"),
    [
        (masked(), "agent_timeout", "the session timed out"),
        (without_traces(), "polar:untrained", "no call was captured"),
        (session("ses_n", trace("ses_n", reward=None), reward=None), "polar:untrained", "no reward"),
    ],
)
def test_what_may_not_be_trained_says_so(made: Session, kind: str, reason: str, tmp_path: Path) -> None:
    [row] = written(tmp_path, made)
    assert (row["mask_sample"], row["failure_kind"], row["failure_reason"]) == (True, kind, reason)
    assert row["reward"] == 0.0


def test_a_masked_row_has_no_tokens_to_train_by_mistake(tmp_path: Path) -> None:
    [row] = written(tmp_path, masked())
    assert tokens(row) == [] and row["other_traces"] == []


def test_rows_are_numbered_in_their_group(tmp_path: Path) -> None:
    sessions = [session("ses_a"), session("ses_b", group_id="u"), masked("ses_c")]
    places = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in written(tmp_path, *sessions)]
    assert places == [(0, 0), (1, 0), (0, 1)]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=5), st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_whatever_is_trained_is_generated_once_in_its_context(turns: list[list[bool]], context: int) -> None:
    mask: list[int] = []
    spans = []
    for number, trained in enumerate(turns):
        mask += [0] * context if number else []
        spans.append(turn_of(f"c{number}", len(mask), len(mask) + len(trained)))
        mask += map(int, trained)
    ids = [100 + place for place in range(len(mask))]
    lists = {"response_ids": ids, "loss_mask": mask, "logprobs": [-1.0] * len(mask)}
    made = trace(turns=0, messages=messages(len(turns)), **lists).model_copy(update={"turns": spans})
    [row] = nemo_gym.rows(session("ses_a", made), Tally())
    generated: list[int] = []
    for prompt, sampled in tokens(row):
        assert prompt == PROMPT + ids[: ids.index(sampled[0])]
        generated += sampled
    assert generated == [token for token, trained in zip(ids, mask, strict=True) if trained]
