"""A data row of NeMo Gym's as a request, and the check of the chain that goes back."""

from typing import Any

import pytest

from polar_mitm.client.gym import BrokenChain, RowRefused, one_chain, task_request

DEFAULTS = {"scenario": "hello", "changes": {"harness": "pi", "sampling": {"top_p": 0.5}}}


def row(params: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"responses_create_params": params} | more


def test_a_row_becomes_a_task_of_one_sample() -> None:
    given = row(
        {
            "input": [
                {"role": "system", "content": "Be short."},
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "Mend"}, {"type": "input_text", "text": "it."}],
                },
            ],
            "temperature": 0.8,
            "max_output_tokens": 64,
            "parallel_tool_calls": True,
            "tools": [{"type": "function", "name": "look"}],
        },
        polar={"changes": {"sandbox": "host"}, "priority": 2},
        answer="4",
        _ng_task_index=7,
        _ng_rollout_index=1,
        agent_ref={"name": "polar_agent"},
    )
    request, left = task_request(given, DEFAULTS, group="gym-a")
    assert request.model_dump(exclude_unset=True) == {
        "scenario": "hello",
        "instruction": "Mend\nit.",
        "changes": {
            "harness": "pi",
            "sandbox": "host",
            "extra_instructions": "Be short.",
            "sampling": {"top_p": 0.5, "temperature": 0.8, "max_tokens": 64},
        },
        "data": {"answer": "4"},
        "num_samples": 1,
        "group_id": "gym-a-7",
        "metadata": {"_ng_task_index": 7, "_ng_rollout_index": 1},
        "priority": 2,
    }
    assert left == ["tools"]


def test_an_empty_input_leaves_the_scenarios_own_instruction() -> None:
    request, left = task_request(row({"input": []}), DEFAULTS, group="g")
    assert (request.instruction, request.group_id, left) == (None, "g", [])


@pytest.mark.parametrize(
    ("given", "defaults", "says"),
    [
        (row({"input": [{"role": "assistant", "content": "Yes."}]}), DEFAULTS, "send user messages only"),
        (row({"input": [{"type": "function_call", "name": "f"}]}), DEFAULTS, "'function_call'"),
        (row({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), DEFAULTS, "only text"),
        (row({"input": "Do it."}), {}, "polar.scenario"),
        (row({"input": "Do it."}, polar={"sandbox": "host"}), DEFAULTS, "sandbox: Extra inputs"),
    ],
)
def test_a_row_that_no_session_can_be_made_of_is_refused(
    given: dict[str, Any], defaults: dict[str, Any], says: str
) -> None:
    with pytest.raises(RowRefused, match=says):
        task_request(given, defaults, group="g")


def item(prompt: list[int], generated: list[int], logprobs: list[float] | None = None) -> dict[str, Any]:
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": generated,
        "generation_log_probs": [-0.5] * len(generated) if logprobs is None else logprobs,
    }


def result(*items: dict[str, Any], masked: bool = False) -> dict[str, Any]:
    return {"session_id": "ses_1", "mask_sample": masked, "response": {"output": [*items]}}


@pytest.mark.parametrize(
    "good",
    [
        result(item([1, 2], [3]), {"type": "function_call_output"}, item([1, 2, 3, 4], [5])),
        result(masked=True),
    ],
)
def test_a_contiguous_chain_passes(good: dict[str, Any]) -> None:
    one_chain(good)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (result(item([1, 2], [3]), item([1, 2, 9, 4], [5])), "item 1 does not continue the 3 tokens"),
        (result(item([1, 2], [3]), item([1, 2], [3])), "item 1 does not continue"),
        (result(item([1, 2], [3]), item([1, 2, 3], [4])), "item 1 does not continue"),
        (result(item([1], [2, 3], [-0.5])), "one log-probability"),
        (result(item([1], [2], [float("nan")])), "one log-probability"),
        (result(), "not masked and has no generated token"),
    ],
)
def test_anything_else_is_an_error(bad: dict[str, Any], says: str) -> None:
    with pytest.raises(BrokenChain, match=says):
        one_chain(bad)
