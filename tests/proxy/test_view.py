"""What a person sees of a call in mitmweb and the console: one line and a mark."""

import pytest
from mitmproxy.test import tflow
from mitmproxy.utils import emoji

from polar_mitm.capture.record import Built, Call, Failure
from polar_mitm.proxy.view import annotate, built, comment, mark
from tests.capture.samples import assistant, make_call, user


def call(**response: object) -> Call:
    made = make_call("call_1", prompt_ids=[1, 2, 3], response_ids=[7, 8])
    assert made.response
    made.identity.session_id = "ses_0123456789abcdef"
    made.response = made.response.model_copy(update=response)
    return made


def test_a_comment_begins_with_tokens_and_logprob_for_the_column_is_narrow() -> None:
    plain = call(logprobs=[-0.25, -0.5], finish_reason="stop")
    assert comment(plain) == "turn 1 3→2 -0.38 stop · ses_0123456789abcdef"


def test_a_comment_counts_the_turns_of_the_conversation_and_names_a_side_request() -> None:
    second = call(finish_reason="stop")
    second.request.messages = [user("Hi."), assistant("Hello."), user("Go.")]
    assert comment(second).startswith("turn 2 ")
    second.origin.kind = "title"
    assert comment(second).startswith("title ")


def test_a_comment_leaves_forced_tokens_out_of_the_mean() -> None:
    assert comment(call(logprobs=[-9.0, -0.5], forced=[(0, 1)])).startswith("turn 1 3→2 -0.50 ")
    assert comment(call(logprobs=[-9.0, -0.5], forced=[(0, 2)])).startswith("turn 1 3→2 - ")


def test_how_a_prompt_went_to_the_engine_is_said() -> None:
    made = call()
    assert made.engine
    assert built(made) == "as messages, which the engine rendered"
    made.engine.tokens, made.built = "exact", None
    assert built(made) == "as token ids, all of them rendered"
    made.built = Built(why="the tools changed")
    assert built(made) == "as token ids, all of them rendered: the tools changed"
    made.built = Built(from_call_id="call_0", ids=1200)
    assert built(made) == "as token ids, the first 1,200 those of call_0, as they were sampled"


def test_a_comment_names_the_reward_where_it_is_known() -> None:
    assert comment(call(), reward=0.5) == "turn 1 3→2 -0.25 stop · reward 0.5 · ses_0123456789abcdef"


def test_a_comment_names_the_tools_that_were_called() -> None:
    tools = [{"id": str(n), "type": "function", "function": {"name": f"t{n}", "arguments": "{}"}} for n in range(2)]
    assert " t0, t1 · " in comment(call(tool_calls=tools, finish_reason="tool_calls"))


def test_a_comment_on_a_failure_says_whose_and_what() -> None:
    failed = call()
    failed.error = Failure(what="no luck", kind="engine", fault="engine", status=502)
    assert comment(failed) == "engine: no luck"


def test_a_comment_copes_with_an_answer_without_tokens_and_with_none() -> None:
    assert comment(call(logprobs=[], response_ids=[])).startswith("turn 1 3→0 - ")
    unanswered = call()
    unanswered.response = None
    assert comment(unanswered) == "no answer"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, ":green_circle:"),
        ({"forced": [(0, 2)]}, ":large_blue_circle:"),
    ],
)
def test_a_mark_says_how_good_the_call_is(change: dict[str, object], name: str) -> None:
    assert mark(call(**change)) == name


def test_a_failure_is_red_and_an_invalid_record_yellow_whatever_else_they_are() -> None:
    invalid = call(forced=[(0, 2)])
    invalid.checks.valid = False
    assert mark(invalid) == ":yellow_circle:"
    invalid.error = Failure(what="no luck", kind="engine", fault="engine")
    assert mark(invalid) == ":red_circle:"


def test_every_mark_is_one_that_mitmproxy_can_show() -> None:
    for name in (":green_circle:", ":large_blue_circle:", ":yellow_circle:", ":red_circle:"):
        assert name in emoji.emoji


def test_a_flow_carries_the_record_as_json_that_reads_back_equal() -> None:
    flow, recorded = tflow.tflow(), call()
    annotate(flow, recorded)
    assert Call.model_validate_json(flow.metadata["polar"]) == recorded
    assert (flow.comment, flow.marked) == (comment(recorded), mark(recorded))
