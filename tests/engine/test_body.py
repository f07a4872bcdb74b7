from typing import Any

import pytest

from polar_mitm.chat import (
    ChatRequest,
    Image,
    NotCarried,
    Sampling,
    Text,
    Thinking,
    Tool,
    ToolChoice,
    ToolResult,
    User,
)
from polar_mitm.engine.body import IMAGE_PLACEHOLDER, Outgoing, compose, has_images

HELLO = (User((Text("Hello"),)),)
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL = Tool("run", "Run it")
STRICT = Tool("run", "Run it", strict=True)


def composed(request: ChatRequest, **options: Any) -> Outgoing:
    return compose(request, model="tiny", **{"overrides": {}, **options})


def lost(outgoing: Outgoing) -> list[str]:
    return [note.field for note in outgoing.not_carried]


def test_every_request_asks_for_token_data_and_no_stream() -> None:
    outgoing = composed(ChatRequest(HELLO))
    assert outgoing.body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": False,
        "logprobs": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    assert (outgoing.forced, outgoing.sampling, outgoing.not_carried) == (False, {}, ())


def test_sampling_goes_out_as_asked_except_the_seed() -> None:
    asked = Sampling(
        max_tokens=9,
        temperature=0.0,
        top_p=0.5,
        top_k=0,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        seed=0,
        stop=("a",),
    )
    outgoing = composed(ChatRequest(HELLO, sampling=asked))
    assert outgoing.sampling == {
        "max_tokens": 9, "temperature": 0.0, "top_p": 0.5, "top_k": -1,
        "presence_penalty": 0.1, "frequency_penalty": 0.2, "stop": ["a"],
    }  # fmt: skip
    assert lost(outgoing) == ["seed"]


def test_the_likeliest_token_alone_is_asked_for_in_vllms_words() -> None:
    outgoing = composed(ChatRequest(HELLO, sampling=Sampling(top_p=0, top_k=40)))
    assert (outgoing.sampling, lost(outgoing)) == ({"top_k": 1}, [])


def test_stop_strings_beyond_what_the_engine_takes_are_noted() -> None:
    outgoing = composed(ChatRequest(HELLO, sampling=Sampling(stop=("a", "b", "c"))))
    assert outgoing.with_stops(3) is outgoing
    assert (outgoing.with_stops(2).body["stop"], lost(outgoing.with_stops(2))) == (["a", "b"], ["stop"])
    assert composed(ChatRequest(HELLO), overrides={"stop": "x"}).stops == ["x"]


def test_the_sessions_policy_wins_and_what_it_replaced_is_said() -> None:
    asked = Sampling(temperature=0.2, top_p=1.0)
    outgoing = composed(
        ChatRequest(HELLO, sampling=asked), overrides={"temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 7}
    )
    assert outgoing.sampling == {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    assert lost(outgoing) == ["seed", "temperature"]
    assert outgoing.not_carried[1].why.endswith("sends 1.0 in place of 0.2")


@pytest.mark.parametrize("field", ["messages", "tools", "stream", "return_token_ids", "n", "structured_outputs"])
def test_a_policy_cannot_replace_what_is_not_sampling(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        composed(ChatRequest(HELLO), overrides={field: 1})


def test_an_open_choice_turns_no_grammar_on() -> None:
    outgoing = composed(ChatRequest(HELLO, tools=(STRICT, TOOL), parallel_tool_calls=False))
    assert outgoing.body["tool_choice"] == "auto"
    assert "parallel_tool_calls" not in outgoing.body
    assert all("strict" not in tool["function"] for tool in outgoing.body["tools"])
    assert lost(outgoing) == ["tools.strict"]
    assert not outgoing.forced


@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        (ToolChoice("required"), "required"),
        (ToolChoice("named", "run"), {"type": "function", "function": {"name": "run"}}),
    ],
)
def test_a_forced_call_is_marked_forced_and_keeps_its_strictness(choice: ToolChoice, wire: object) -> None:
    request = ChatRequest(HELLO, tools=(STRICT,), tool_choice=choice, parallel_tool_calls=False, json_schema=SCHEMA)
    outgoing = composed(request)
    assert outgoing.body["tool_choice"] == wire
    assert outgoing.body["parallel_tool_calls"] is False
    assert outgoing.body["tools"][0]["function"]["strict"] is True
    assert "response_format" not in outgoing.body
    assert lost(outgoing) == ["json_schema"]
    assert outgoing.forced


def test_a_schema_becomes_a_response_format_and_is_marked_forced() -> None:
    outgoing = composed(ChatRequest(HELLO, json_schema=SCHEMA))
    assert outgoing.body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert (outgoing.forced, lost(outgoing)) == (True, [])
    assert composed(ChatRequest(HELLO, json_schema={})).body["response_format"] == {"type": "json_object"}


def test_a_choice_of_words_is_a_grammar_and_is_marked_forced() -> None:
    outgoing = composed(ChatRequest(HELLO, choices=("a", "b")))
    assert outgoing.body["structured_outputs"] == {"choice": ["a", "b"]}
    assert (outgoing.forced, lost(outgoing)) == (True, [])
    forced = composed(ChatRequest(HELLO, tools=(TOOL,), tool_choice=ToolChoice("required"), choices=("a",)))
    assert lost(forced) == ["choices"]


def test_tools_beside_a_schema_are_said_to_be_out_of_reach() -> None:
    assert lost(composed(ChatRequest(HELLO, tools=(TOOL,), json_schema=SCHEMA))) == ["tools"]


def test_a_script_wins_over_every_other_form() -> None:
    request = ChatRequest(HELLO, tools=(STRICT,), tool_choice=ToolChoice("required"), json_schema=SCHEMA)
    outgoing = composed(request, force_regex="ok")
    assert outgoing.body["structured_outputs"] == {"regex": "ok"}
    assert outgoing.body["tool_choice"] == "auto"
    assert "response_format" not in outgoing.body
    assert "strict" not in outgoing.body["tools"][0]["function"]
    assert sorted(lost(outgoing)) == ["json_schema", "tool_choice", "tools.strict"]
    assert outgoing.forced


def test_a_turn_without_calls_says_so_only_where_one_was_asked_for() -> None:
    asked = composed(ChatRequest(HELLO, tools=(TOOL,), tool_choice=ToolChoice("required")), tool_choice_none=True)
    assert (asked.body["tool_choice"], lost(asked), asked.forced) == ("none", ["tool_choice"], False)
    assert lost(composed(ChatRequest(HELLO, tools=(TOOL,)), tool_choice_none=True)) == []


def test_a_call_cannot_be_forced_without_tools() -> None:
    outgoing = composed(ChatRequest(HELLO, tool_choice=ToolChoice("required")))
    assert ("tool_choice" in outgoing.body, lost(outgoing), outgoing.forced) == (False, ["tool_choice"], False)


def test_images_give_way_to_a_line_of_text_where_the_model_takes_none() -> None:
    picture = Image("data:image/png;base64,AAAA")
    request = ChatRequest((User((Text("look"), picture)), ToolResult("c", (picture, picture))))
    assert has_images(request)
    assert composed(request).body["messages"][0]["content"][1]["type"] == "image_url"

    outgoing = composed(request, text_only=True)
    assert [message["content"] for message in outgoing.body["messages"]] == [
        f"look\n{IMAGE_PLACEHOLDER}",
        f"{IMAGE_PLACEHOLDER}\n{IMAGE_PLACEHOLDER}",
    ]
    assert outgoing.not_carried == (
        NotCarried("images", "3 replaced by a line of text: the served model takes text only"),
    )
    assert lost(composed(ChatRequest(HELLO), text_only=True)) == []


def test_within_lowers_max_tokens_and_remembers_what_was_asked() -> None:
    outgoing = composed(ChatRequest(HELLO, sampling=Sampling(max_tokens=128_000)))
    assert (outgoing.within(8192).max_tokens, outgoing.within(8192).asked_max_tokens) == (8192, 128_000)
    assert outgoing.within(None) is outgoing
    assert outgoing.within(200_000) is outgoing


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (Thinking(), {}),
        (Thinking(enabled=False), {"chat_template_kwargs": {"enable_thinking": False}}),
        (Thinking(enabled=True), {"chat_template_kwargs": {"enable_thinking": True}}),
        (Thinking(effort="low"), {"reasoning_effort": "low"}),
        (Thinking(effort="none"), {"reasoning_effort": "none"}),
        # A word that vLLM's field does not take would fail the whole request.
        (Thinking(effort="ultra"), {"chat_template_kwargs": {"reasoning_effort": "ultra"}}),
        (
            Thinking(enabled=False, effort="high"),
            {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"},
        ),
    ],
)
def test_thinking_is_asked_of_the_template_and_only_where_the_client_spoke_of_it(
    asked: Thinking, sent: dict[str, Any]
) -> None:
    outgoing = composed(ChatRequest(HELLO, thinking=asked))
    assert (outgoing.sampling, outgoing.not_carried) == (sent, ())


def test_a_thinking_budget_is_not_sent_for_it_is_kept_by_tokens_that_nobody_sampled() -> None:
    outgoing = composed(ChatRequest(HELLO, thinking=Thinking(budget=1024)))
    assert (outgoing.sampling, lost(outgoing)) == ({}, ["thinking.budget"])


def test_the_sessions_policy_on_thinking_wins() -> None:
    policy = {"chat_template_kwargs": {"enable_thinking": True}}
    outgoing = composed(ChatRequest(HELLO, thinking=Thinking(enabled=False)), overrides=policy)
    assert (outgoing.sampling, lost(outgoing)) == (policy, ["chat_template_kwargs"])


@pytest.mark.parametrize(
    ("asked", "template"),
    [
        (Thinking(), None),
        (Thinking(effort="low"), {"reasoning_effort": "low", "enable_thinking": True}),
        (Thinking(effort="none"), {"reasoning_effort": "none", "enable_thinking": False}),
        (Thinking(enabled=False, effort="low"), {"reasoning_effort": "low", "enable_thinking": False}),
    ],
)
def test_a_prompt_is_counted_from_what_it_is_rendered_from(asked: Thinking, template: dict[str, Any] | None) -> None:
    outgoing = composed(ChatRequest(HELLO, tools=(TOOL,), thinking=asked, sampling=Sampling(max_tokens=5)))
    expected = {"model": "tiny", "messages": outgoing.body["messages"], "tools": outgoing.body["tools"]}
    assert outgoing.prompt == (expected if template is None else {**expected, "chat_template_kwargs": template})
