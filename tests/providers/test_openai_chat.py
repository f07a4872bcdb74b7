"""OpenAI Chat Completions: what real harnesses send becomes exactly this Chat, and the official SDK reads the reply."""

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import APIError, AsyncOpenAI, BadRequestError, DefaultAsyncHttpxClient
from openai.pagination import SyncPage
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import polar_mitm.providers.openai_chat as openai_chat
from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatReply,
    ErrorKind,
    FinishReason,
    Image,
    Json,
    NotCarried,
    Sampling,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Usage,
    User,
    message_wire,
)
from polar_mitm.providers import sse
from polar_mitm.providers.base import Begun, ModelCard, Request, Route
from polar_mitm.providers.openai_chat import ChatAsk
from tests.providers.early import early
from tests.providers.served import replaced, served, size

pytestmark = pytest.mark.filterwarnings("error")

BASH: Json = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}
BASH_FUNCTION: Json = {"name": "bash", "description": "Run a command.", "parameters": BASH}
BASH_TOOL: Any = {"type": "function", "function": BASH_FUNCTION}
GO: Any = [{"role": "user", "content": "go"}]
HI: Json = {"role": "user", "content": "hi"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="

# As the model wrote it: spaces and an escape that no serialiser would bring back.
ARGUMENTS = '{"command":  "echo hello \\u003e out.txt"}'
TWO_CALLS = (ToolCall("call_1", "bash", ARGUMENTS), ToolCall("call_2", "bash", '{"command": "ls"}'))


def parse(headers: dict[str, str] | None = None, **body: Any) -> ChatAsk:
    request = Request("POST", "api.openai.com", "/v1/chat/completions", headers=headers or {})
    return openai_chat.parse(request, Route("generate"), {"model": "m1", "messages": [HI], **body})


def refused(**body: Any) -> CallError:
    with pytest.raises(CallError) as caught:
        parse(**body)
    assert caught.value.kind == "invalid_request"
    return caught.value


def not_carried(**body: Any) -> dict[str, str]:
    return {lost.field: lost.why for lost in parse(**body).chat.not_carried}


def reply(
    text: str = "",
    *,
    reasoning: str = "",
    calls: tuple[ToolCall, ...] = (),
    finish: FinishReason = "stop",
) -> ChatReply:
    return ChatReply("0a1b", 1764460800, text, reasoning, calls, finish, Usage(100, 20, 64, 7))


def frames(ask: ChatAsk, answer: ChatReply) -> list[Json]:
    sent = list(openai_chat.stream(ask, answer))
    assert sent.pop() == b"data: [DONE]\n\n"
    assert all(frame.startswith(b"data: {") and frame.endswith(b"}\n\n") for frame in sent)
    return [orjson.loads(frame.removeprefix(b"data: ")) for frame in sent]


def reassembled(chunks: list[Json]) -> Json:
    """The message that the chunks of a stream add up to."""
    message: Json = {"content": None}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for call in value:
                        calls = message.setdefault("tool_calls", [])
                        assert call.pop("index") == len(calls)
                        calls.append(call)
                elif isinstance(value, str):
                    message[name] = (message.get(name) or "") + value
                else:
                    message.setdefault(name, value)
    return message


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("POST", "/v1/chat/completions", True),
        ("HEAD", "/v1/models", False),
        ("POST", "/s/ses_1/v1/chat/completions", True),
        ("POST", "/compatible-mode/v1/chat/completions", True),
        ("POST", "/zen/v1/chat/completions/", True),
        ("GET", "/v1/chat/completions", False),
        ("POST", "/v1/completions", False),
        ("POST", "/v1/chat/completions/chatcmpl-1", False),
        ("POST", "/v1/responses", False),
    ],
)
def test_only_a_post_to_a_path_that_ends_in_chat_completions_is_a_call(method: str, path: str, known: bool) -> None:
    route = openai_chat.recognise(Request(method, "example.org", path))
    assert route == (Route("generate") if known else None)


@pytest.mark.parametrize(
    ("host", "path", "query", "headers", "model"),
    [
        ("api.openai.com", "/v1/models", {}, {}, None),
        ("h", "/s/ses_1/v1/models/", {}, {}, None),
        ("opencode.ai", "/zen/v1/models", {}, {}, None),
        ("h", "/v1/models/gpt-9", {}, {}, "gpt-9"),
        ("h", "/v1/models/org/gpt-9", {}, {}, "org/gpt-9"),
        ("h", "/v1/models/org%2Fgpt-9", {}, {}, "org/gpt-9"),
    ],
)
def test_the_model_list_is_known_by_its_path(
    host: str, path: str, query: dict[str, str], headers: dict[str, str], model: str | None
) -> None:
    assert openai_chat.recognise(Request("GET", host, path, query, headers)) == Route("models", model=model)


@pytest.mark.parametrize(
    "request_",
    [
        Request("GET", "generativelanguage.googleapis.com", "/v1/models"),
        Request("GET", "h", "/v1beta/models"),
        Request("GET", "h", "/v1/models", headers={"x-goog-api-key": "k"}),
        Request("GET", "h", "/v1/models", {"key": "k"}),
        Request("GET", "h", "/v1/models", {"client_version": "0.171.0"}),
        Request("GET", "chatgpt.com", "/backend-api/codex/models"),
        Request("GET", "h", "/v1/files"),
    ],
)
def test_a_list_in_another_shape_is_not_ours(request_: Request) -> None:
    assert openai_chat.recognise(request_) is None


def test_the_official_sdk_reads_the_model_list_and_any_model_is_there_by_any_name() -> None:
    cards = [ModelCard("tiny", 4096)]
    page = SyncPage[Model].model_validate(openai_chat.models(Route("models"), cards), strict=True)
    assert [model.id for model in page.data] == ["tiny"]
    model = Model.model_validate(openai_chat.models(Route("models", model="gpt-9"), cards), strict=True)
    assert (model.id, model.object) == ("gpt-9", "model")


def test_what_this_api_does_not_have_is_not_found() -> None:
    with pytest.raises(CallError, match="token count"):
        openai_chat.count(parse(), 7)
    with pytest.raises(CallError, match="fixed answers"):
        openai_chat.fixed(Request("GET", "h", "/"))


def test_a_second_turn_as_pi_sends_it_becomes_this_chat() -> None:
    ask = parse(
        model="local/m1",
        messages=[
            {"role": "system", "content": "You are pi."},
            {"role": "user", "content": [{"type": "text", "text": "make out.txt"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "I should use bash.",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": ARGUMENTS}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "done"},
        ],
        tools=[{"type": "function", "function": {**BASH_FUNCTION, "strict": False}}],
        stream=True,
        stream_options={"include_usage": True},
        store=False,
        max_completion_tokens=4096,
        temperature=0.5,
    )
    assert ask.model == "local/m1"
    assert (ask.stream, ask.include_usage) == (True, True)
    assert ask.chat.messages == (
        System("You are pi."),
        User((Text("make out.txt"),)),
        Assistant("", "I should use bash.", (ToolCall("call_1", "bash", ARGUMENTS),)),
        ToolResult("call_1", (Text("done"),)),
    )
    assert ask.chat.tools == (Tool("bash", "Run a command.", BASH, False),)
    assert ask.chat.sampling == Sampling(max_tokens=4096, temperature=0.5)
    assert ask.chat.not_carried == ()


def test_a_qwen_code_request_at_dashscope_keeps_its_ids_and_says_what_was_dropped() -> None:
    ask = parse(
        messages=[
            {
                "role": "system",
                "content": [{"type": "text", "text": "You are Qwen.", "cache_control": {"type": "ephemeral"}}],
            },
            HI,
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": [
                {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        tools=[{**BASH_TOOL, "cache_control": {"type": "ephemeral"}}],
        metadata={"sessionId": "s-1", "promptId": "p-1"},
        preserve_thinking=True,
        headers={"x-client-request-id": "r-1", "authorization": "Bearer secret"},
    )  # fmt: skip
    assert ask.harness_ids == {"x-client-request-id": "r-1", "sessionId": "s-1", "promptId": "p-1"}
    assert ask.chat.messages[0] == System("You are Qwen.")
    assert ask.chat.messages[-1] == ToolResult("c1", (Text("a"), Text("b")))
    assert ask.chat.not_carried == (
        NotCarried("metadata", "nothing is stored at the service"),
        NotCarried("preserve_thinking", "the chat template decides which past reasoning it shows"),
    )


def test_P076_leading_system_and_developer_messages_are_one_first_system_message() -> None:
    messages = [{"role": "system", "content": "one"}, {"role": "developer", "content": "two"}, HI]
    assert parse(messages=messages).chat.messages == (System("one\n\ntwo"), User((Text("hi"),)))


def test_P007_a_system_message_in_the_middle_stays_there_as_a_user_message() -> None:
    messages = [HI, {"role": "assistant", "content": "yes"}, {"role": "system", "content": "be brief"}, HI]
    hi = User((Text("hi"),))
    folded = User((Text("<system>\nbe brief\n</system>"),))
    assert parse(messages=messages).chat.messages == (hi, Assistant("yes"), folded, hi)


some_message = st.sampled_from(
    [
        HI,
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "assistant", "content": "a", "reasoning": "r"},
        {"role": "tool", "tool_call_id": "c", "content": "t"},
    ]
)


@given(st.lists(some_message, min_size=4, max_size=8))
def test_P147_appending_messages_never_changes_what_came_before(messages: list[Json]) -> None:
    whole = parse(messages=[HI, *messages]).chat.messages
    for count in range(1, len(messages)):
        shorter = parse(messages=[HI, *messages[:count]]).chat.messages
        assert whole[: len(shorter)] == shorter


def test_P115_reasoning_is_read_under_both_of_its_names() -> None:
    for name in ("reasoning", "reasoning_content"):
        messages = [HI, {"role": "assistant", "content": "4", name: "2+2"}]
        assert parse(messages=messages).chat.messages[1] == Assistant("4", "2+2")


def test_P148_argument_strings_pass_through_byte_for_byte_in_both_directions() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": ARGUMENTS}}
    ask = parse(messages=[HI, {"role": "assistant", "tool_calls": [call]}])
    assert ask.chat.messages[1] == Assistant(tool_calls=(ToolCall("c", "bash", ARGUMENTS),))
    answer = reply(calls=(ToolCall("c", "bash", ARGUMENTS),), finish="tool_calls")
    assert openai_chat.render(ask, answer)["choices"][0]["message"]["tool_calls"] == [call]
    assert reassembled(frames(ask, answer))["tool_calls"] == [call]


def test_parts_keep_their_order_and_an_image_its_bytes() -> None:
    content = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "high"}},
        {"type": "text", "text": "b"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,aGk=", "filename": "b.txt"}},
    ]
    chat = parse(messages=[{"role": "user", "content": content}]).chat
    stand_ins = (
        Text("[an audio recording, which cannot be shown here]"),
        Text("[the file 'a.pdf', which cannot be shown here]"),
        Text("<file name='b.txt'>\nhi\n</file>"),
    )
    assert chat.messages == (User((Text("a"), Image(PIXEL), Text("b"), *stand_ins)),)
    assert {lost.field for lost in chat.not_carried} == {
        "messages.*.content.*.image_url.detail",
        "messages.*.content.*.input_audio",
        "messages.*.content.*.file",
    }


def test_an_image_by_address_leaves_a_trace_for_the_model_and_the_record_because_nothing_is_fetched() -> None:
    url = "https://example.org/cat.png"
    content = [{"type": "image_url", "image_url": image} for image in ({"url": url}, {"url": url}, url)]
    asked = parse(messages=[{"role": "user", "content": content}]).chat
    assert asked.messages == (User((Text("[an image, which cannot be shown here]"),) * 3),)
    why = "an image by address: nothing is fetched from the network"
    assert asked.not_carried == (
        NotCarried("messages.*.content.*.image_url.url", why, times=2),
        NotCarried("messages.*.content.*.image_url", why),
    )
    content = [{"type": "image_url", "image_url": {"url": "cat.png"}}]
    assert refused(messages=[{"role": "user", "content": content}]).param == "messages.0.content.0.image_url.url"


def test_an_empty_text_part_adds_nothing_to_the_prompt() -> None:
    content: list[Json] = [{"type": "text", "text": text} for text in ("", "a", "", "b", "")]
    (message,) = parse(messages=[{"role": "user", "content": content}]).chat.messages
    assert message_wire(message) == {"role": "user", "content": "a\nb"}
    content.append({"type": "image_url", "image_url": {"url": PIXEL}})
    (message,) = parse(messages=[{"role": "user", "content": content}]).chat.messages
    assert [part["type"] for part in message_wire(message)["content"]] == ["text", "text", "image_url"]


def test_what_stands_beside_a_call_of_the_history_is_noted_unless_it_says_nothing() -> None:
    function = {"name": "bash", "arguments": ARGUMENTS}
    parsed = {**function, "parsed_arguments": {"command": "echo hello > out.txt"}}
    kept_of_a_stream = {"id": "c", "index": 0, "type": "function", "function": parsed}
    assistant: Json = {"role": "assistant", "content": None, "annotations": [], "tool_calls": [kept_of_a_stream]}
    assistant["parsed"] = {"a": 1}
    assert not_carried(messages=[HI, assistant, {"role": "tool", "tool_call_id": "c", "content": "ok"}]) == {}
    signed = {**kept_of_a_stream, "extra_content": {"google": {}}, "function": {**function, "why": "x"}}
    lost = not_carried(messages=[HI, {**assistant, "tool_calls": [signed]}])
    assert {"messages.*.tool_calls.*.extra_content", "messages.*.tool_calls.*.function.why"} <= lost.keys()


def test_messages_that_hold_nothing_are_refused_by_name() -> None:
    assert refused(messages=[{"role": "user", "content": ""}]).message == "messages: there is no content in any message"


def test_a_refusal_in_the_history_is_the_text_the_assistant_said() -> None:
    messages = [HI, {"role": "assistant", "content": None, "refusal": "I will not."}]
    assert parse(messages=messages).chat.messages[1] == Assistant("I will not.")


def test_a_custom_tool_call_in_the_history_becomes_a_function_call_with_one_string() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "é\n"}}
    assistant = parse(messages=[HI, {"role": "assistant", "tool_calls": [call]}]).chat.messages[1]
    assert assistant == Assistant(tool_calls=(ToolCall("c", "patch", '{"input": "é\\n"}'),))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role"),
        ({"messages": [HI, {"role": "ctx", "content": "x"}]}, "messages.1.role"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages.0.tool_calls.0.id",
        ),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages.0.function_call"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.0.function.parameters"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.function.name"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 1e300}, "seed"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a", 1]}, "stop.1"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_a_wrong_request_is_refused_by_the_path_of_the_field_at_fault(body: Json, param: str) -> None:
    error = refused(**body)
    assert error.param == param
    assert param in error.message


def test_every_sampling_field_is_carried() -> None:
    ask = parse(
        max_tokens=10,
        max_completion_tokens=20.0,
        temperature=0,
        top_p=0.9,
        top_k=40,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        seed=-7,
        stop="END",
        parallel_tool_calls=False,
    )
    assert ask.chat.sampling == Sampling(20, 0.0, 0.9, 40, -0.5, 0.25, -7, ("END",))
    assert ask.chat.parallel_tool_calls is False
    assert parse(stop=["a", "b"]).chat.sampling.stop == ("a", "b")


def test_structured_output_carries_the_schema() -> None:
    assert parse(response_format={"type": "text"}).chat.json_schema is None
    assert parse(response_format={"type": "json_object"}).chat.json_schema == {}
    schema = {"name": "answer", "schema": BASH, "strict": True}
    assert parse(response_format={"type": "json_schema", "json_schema": schema}).chat.json_schema == BASH


@pytest.mark.parametrize(
    ("choice", "meaning"),
    [
        (None, ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "bash"}}, ToolChoice("named", "bash")),
    ],
)
def test_the_tool_choice_is_carried(choice: object, meaning: ToolChoice) -> None:
    assert parse(tools=[BASH_TOOL], tool_choice=choice).chat.tool_choice == meaning


def test_allowed_tools_carry_their_mode_and_say_that_the_list_was_dropped() -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "bash"}}]}
    chat = parse(tools=[BASH_TOOL], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}).chat
    assert chat.tool_choice == ToolChoice("required")
    assert [lost.field for lost in chat.not_carried] == ["tool_choice.allowed_tools.tools"]


def test_P011_a_tool_that_is_no_client_tool_is_left_out_and_recorded() -> None:
    chat = parse(tools=[BASH_TOOL, {"type": "web_search"}]).chat
    assert [tool.name for tool in chat.tools] == ["bash"]
    assert [lost.field for lost in chat.not_carried] == ["tools.web_search"]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "web_search"}},
        {"type": "function", "function": {"name": "web_search"}},
        {"type": "web_search"},
    ],
)
def test_P012_forcing_a_tool_that_was_left_out_is_refused(choice: Json) -> None:
    assert "cannot be forced" in refused(tools=[BASH_TOOL, {"type": "web_search"}], tool_choice=choice).message


PATCH: Any = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "*** Begin Patch"'}},
    },
}


def test_P052_P056_a_custom_tool_is_a_function_of_one_string_with_its_grammar_and_may_be_forced() -> None:
    chat = parse(tools=[PATCH], tool_choice={"type": "custom", "custom": {"name": "patch"}}).chat
    [tool] = chat.tools
    assert tool.description == (
        "Edits files.\n\nGive the raw text as the string `input`.\n\n"
        'The text must match this lark grammar:\nstart: "*** Begin Patch"'
    )
    assert tool.parameters["required"] == ["input"]
    assert chat.tool_choice == ToolChoice("named", "patch")
    assert chat.not_carried == ()


def test_a_function_and_a_custom_tool_may_share_a_name() -> None:
    function = {"type": "function", "function": {"name": "patch", "description": "Of paths."}}
    made = [
        {"id": "c1", "type": "function", "function": {"name": "patch", "arguments": "{}"}},
        {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "x"}},
    ]
    answers = [{"role": "tool", "tool_call_id": name, "content": "ok"} for name in ("c1", "c2")]
    history = [HI, {"role": "assistant", "tool_calls": made}, *answers]
    forced = {"type": "custom", "custom": {"name": "patch"}}
    ask = parse(tools=[function, PATCH], messages=history, tool_choice=forced)
    assert [tool.name for tool in ask.chat.tools] == ["patch", "patch_2"]
    assert ask.chat.tool_choice == ToolChoice("named", "patch_2")
    assert isinstance(ask.chat.messages[1], Assistant)
    assert [call.name for call in ask.chat.messages[1].tool_calls] == ["patch", "patch_2"]
    calls = (ToolCall("c1", "patch", "{}"), ToolCall("c2", "patch_2", '{"input": "x"}'))
    assert openai_chat.render(ask, reply(calls=calls))["choices"][0]["message"]["tool_calls"] == made


def test_of_two_declarations_of_one_tool_the_last_counts() -> None:
    first, second = ({"type": "function", "function": {"name": "a", "description": text}} for text in "xy")
    chat = parse(tools=[first, second, second]).chat
    assert [(tool.name, tool.description) for tool in chat.tools] == [("a", "y")]
    assert [(lost.field, lost.times) for lost in chat.not_carried] == [("tools.a", 1)]


def test_P054_P057_a_custom_call_goes_back_as_one_with_its_raw_text_and_says_what_was_mended() -> None:
    patch = "*** Begin Patch\n*** End Patch"
    ask = parse(tools=[PATCH, BASH_TOOL])
    calls = (
        ToolCall("c1", "patch", orjson.dumps({"input": patch}).decode()),
        ToolCall("c2", "patch", orjson.dumps({"input": f"```\n{patch}\n```"}).decode()),
        ToolCall("c3", "bash", ""),
    )
    custom = {"type": "custom", "custom": {"name": "patch", "input": patch}}
    shown = [
        {"id": "c1", **custom},
        {"id": "c2", **custom},
        {"id": "c3", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
    ]
    answer = reply(calls=calls)
    assert openai_chat.render(ask, answer)["choices"][0]["message"]["tool_calls"] == shown
    assert reassembled(frames(ask, answer))["tool_calls"] == shown
    assert openai_chat.repairs(ask, answer) == (
        "patch: the text was taken out of what was wrapped around it",
        "bash: a call without arguments was given an empty object",
    )
    assert openai_chat.repairs(ask, reply("x", calls=calls[:1])) == ()


@pytest.mark.parametrize(
    ("asked", "meaning"),
    [
        ({"reasoning_effort": "high"}, Thinking(True, "high")),
        ({"reasoning_effort": "none"}, Thinking(False)),
        ({"enable_thinking": True}, Thinking(True)),
        ({"chat_template_kwargs": {"enable_thinking": False}}, Thinking(False)),
        ({"thinking": {"type": "disabled"}}, Thinking(False)),
        ({"reasoning": {"effort": "low"}}, Thinking(True, "low")),
        ({}, Thinking()),
    ],
)
def test_the_wish_to_think_is_read_in_every_form_that_harnesses_send(asked: Json, meaning: Thinking) -> None:
    assert parse(**asked).chat.thinking == meaning


def test_of_the_templates_settings_those_that_are_not_used_are_reported() -> None:
    assert not_carried(chat_template_kwargs={"enable_thinking": False}) == {}
    lost = not_carried(chat_template_kwargs={"enable_thinking": False, "custom": 1})
    assert lost == {"chat_template_kwargs.custom": "unknown field"}


def test_sound_cannot_be_asked_for() -> None:
    assert refused(modalities=["text", "audio"]).param == "modalities"


def test_fields_that_ask_for_what_happens_anyway_are_not_reported() -> None:
    assert not_carried(n=1, logprobs=False, store=False, service_tier="auto", user=None, logit_bias={}) == {}


def test_fields_that_are_dropped_are_reported_with_the_reason() -> None:
    dropped = not_carried(n=2, logprobs=True, reasoning_effort="high", prompt_cache_key="k", min_p=0.1)
    assert dropped == {
        "n": "one reply is sampled",
        "logprobs": "log-probabilities go to the call record, not to the client",
        "min_p": "unknown field",
    }
    assert parse(prompt_cache_key="k").harness_ids == {"prompt_cache_key": "k"}


# One of everything, so that junk in any one place meets the code that reads that place.
EVERYTHING: Json = {
    "model": "m1",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "name": "n", "content": [
            {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
            {"type": "image_url", "image_url": PIXEL}, {"type": "file", "file": {}}]},
        {"role": "assistant", "content": None, "refusal": "no", "reasoning_content": "r", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
            {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "x"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "t"}]},
        {"role": "developer", "content": "d"},
    ],
    "tools": [BASH_TOOL, {"type": "custom", "custom": {"name": "patch", "format": {
        "type": "grammar", "grammar": {"syntax": "lark", "definition": "*** Begin Patch"}}}}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    "stream_options": {"include_usage": True},
    "metadata": {"sessionId": "s"},
    "functions": [],
    "function_call": "auto",
    "thinking": {"type": "enabled"},
    "reasoning": {"effort": "low"},
    "chat_template_kwargs": {"enable_thinking": True},
    "modalities": ["text"],
    "stop": ["x"],
    "seed": 1,
    "top_k": 1,
    "top_p": 0.5,
    "n": 1,
    "stream": True,
    "max_tokens": 5,
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
}  # fmt: skip
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.just("function"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "name", "text"]), inner),
    max_leaves=4,
)
places = st.integers(0, size(EVERYTHING) - 1)


@settings(max_examples=400, deadline=None)
@given(places, junk, places, junk)
def test_parse_raises_nothing_but_call_errors_and_what_it_takes_can_be_answered(
    first: int, one: object, second: int, other: object
) -> None:
    body = replaced(replaced(EVERYTHING, first, one), second, other)
    try:
        ask = openai_chat.parse(Request("POST", "h", "/v1/chat/completions"), Route("generate"), body)
    except CallError as error:
        assert error.kind == "invalid_request"
    else:
        assert ask.chat.messages
        assert frames(ask, reply("x", calls=TWO_CALLS))


def test_one_of_everything_is_taken() -> None:
    chat = openai_chat.parse(Request("POST", "h", "/v1/chat/completions"), Route("generate"), EVERYTHING).chat
    assert [type(message).__name__ for message in chat.messages] == [
        "System",
        "User",
        "Assistant",
        "ToolResult",
        "ToolResult",
        "User",
    ]
    assert [tool.name for tool in chat.tools] == ["bash", "patch"]


def test_a_text_reply_is_exactly_this_json() -> None:
    assert openai_chat.render(parse(model="gpt-x"), reply("Done.")) == {
        "id": "chatcmpl-0a1b",
        "object": "chat.completion",
        "created": 1764460800,
        "model": "gpt-x",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Done.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 64},
            "completion_tokens_details": {"reasoning_tokens": 7},
        },
    }


def test_a_reply_of_calls_alone_has_null_content_and_its_reasoning() -> None:
    [choice] = openai_chat.render(parse(), reply(reasoning="hm", calls=TWO_CALLS))["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": ARGUMENTS}},
            {"id": "call_2", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}},
        ],
    }


@pytest.mark.parametrize(
    ("engine", "calls", "told"),
    [
        ("stop", (), "stop"),
        ("stop", TWO_CALLS, "tool_calls"),
        ("tool_calls", TWO_CALLS, "tool_calls"),
        ("tool_calls", (), "stop"),
        ("length", (), "length"),
        ("length", TWO_CALLS, "length"),
        ("content_filter", (), "content_filter"),
        ("abort", (), "stop"),
    ],
)
def test_P087_the_finish_reason_says_length_before_it_says_tool_calls(
    engine: FinishReason, calls: tuple[ToolCall, ...], told: str
) -> None:
    answer = reply("x", calls=calls, finish=engine)
    assert openai_chat.render(parse(), answer)["choices"][0]["finish_reason"] == told
    assert frames(parse(), answer)[-1]["choices"][0]["finish_reason"] == told


def test_a_stream_is_exactly_these_chunks() -> None:
    chunks = frames(parse(), reply("Done.", reasoning="hm", calls=TWO_CALLS))
    assert {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        ("chatcmpl-0a1b", "chat.completion.chunk", 1764460800, "m1")
    }
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"reasoning_content": "hm"},
        {"content": "Done."},
        {"tool_calls": [
            {"index": 0, "id": "call_1", "type": "function", "function": {"name": "bash", "arguments": ARGUMENTS}}]},
        {"tool_calls": [
            {"index": 1, "id": "call_2", "type": "function",
             "function": {"name": "bash", "arguments": '{"command": "ls"}'}}]},
        {},
    ]  # fmt: skip
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 5 + ["tool_calls"]


replies = st.builds(
    reply,
    st.text(max_size=20),
    reasoning=st.text(max_size=10),
    calls=st.sampled_from([(), TWO_CALLS, TWO_CALLS[:1]]),
    finish=st.sampled_from(["stop", "length"]),
)


@given(replies)
def test_P090_P091_the_chunks_of_a_stream_add_up_to_the_plain_reply(answer: ChatReply) -> None:
    chunks = frames(parse(), answer)
    assert reassembled(chunks) == openai_chat.render(parse(), answer)["choices"][0]["message"]


def test_P083_no_usage_is_sent_to_a_client_that_did_not_ask() -> None:
    assert all(chunk["choices"] and "usage" not in chunk for chunk in frames(parse(stream=True), reply("x")))


def test_P085_usage_comes_in_one_last_chunk_without_choices_and_is_null_before() -> None:
    *earlier, last = frames(parse(stream=True, stream_options={"include_usage": True}), reply("x"))
    assert all(chunk["usage"] is None for chunk in earlier)
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["total_tokens"]) == (100, 120)


def test_P137_keepalives_are_the_chunk_that_begins_the_answer_and_chunks_that_add_nothing() -> None:
    """Qwen Code takes no comment for a sign of life; clients look at the first of the choices without asking."""
    whole, kept = chunks_of(parse(), reply("Hi"), 0), chunks_of(parse(), reply("Hi"), 3)
    deltas = [chunk["choices"][0]["delta"] for chunk in kept]
    assert deltas[:3] == [{"role": "assistant", "content": None, "refusal": None}, {}, {}]
    assert deltas[3] == {"content": "", "refusal": None}
    assert kept[4:] == whole[1:]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in (*whole, *kept)}) == 1


def chunks_of(ask: ChatAsk, answer: ChatReply, keepalives: int) -> list[Json]:
    frames = early(openai_chat, ask, answer, keepalives).split(b"\n\n")
    return [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames if frame.startswith(b"data: {")]


@pytest.mark.parametrize(
    ("kind", "param", "status", "type_", "code"),
    [
        ("invalid_request", "messages.0", 400, "invalid_request_error", None),
        ("unauthorized", None, 401, "invalid_request_error", "invalid_api_key"),
        ("not_found", None, 404, "invalid_request_error", None),
        ("not_found", "model", 404, "invalid_request_error", "model_not_found"),
        ("too_large", None, 413, "invalid_request_error", None),
        ("unsupported_encoding", None, 415, "invalid_request_error", None),
        ("overloaded", None, 503, "server_error", None),
        ("engine", None, 502, "server_error", None),
        ("timeout", None, 504, "server_error", None),
        ("no_model", None, 404, "invalid_request_error", "model_not_found"),
        ("internal", None, 500, "server_error", None),
    ],
)
def test_an_error_has_this_status_and_body(
    kind: ErrorKind, param: str | None, status: int, type_: str, code: str | None
) -> None:
    body = {"error": {"message": "why", "type": type_, "param": param, "code": code}}
    assert openai_chat.error(CallError(kind, "why", param=param)) == (status, body)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (
            (70010, 65536),
            "This model's maximum context length is 65536 tokens. However, your messages resulted in 70010 tokens: "
            "your input exceeds the context window of this model. Please reduce the length of the messages.",
        ),
        (
            None,
            "This model's maximum context length is exceeded: "
            "your input exceeds the context window of this model. Please reduce the length of the messages.",
        ),
    ],
)
def test_a_full_context_is_told_in_the_words_that_clients_look_for(over: tuple[int, int] | None, words: str) -> None:
    error = CallError("context_overflow", "why", over=over)
    told = {"message": words, "type": "invalid_request_error", "param": None, "code": "context_length_exceeded"}
    assert openai_chat.error(error) == (400, {"error": told})
    assert openai_chat.stream_error(parse(), error, Begun("b", 1), 1) == sse.event({"error": told})


def test_P075_an_error_ends_a_stream_without_saying_done() -> None:
    frame = openai_chat.stream_error(parse(), CallError("engine", "gone"), Begun("b", 1), 1)
    assert frame == b'data: {"error":{"message":"gone","type":"server_error","param":null,"code":null}}\n\n'


def sdk(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="key", max_retries=0, http_client=DefaultAsyncHttpxClient(trust_env=False))


WHOLE = reply("Done.", reasoning="hm", calls=TWO_CALLS, finish="tool_calls")
ANSWERS = [WHOLE, reply("only text"), reply(calls=TWO_CALLS[:1]), reply("cut", finish="length")]


async def test_the_official_sdk_reads_a_reply_and_sends_it_back_as_history() -> None:
    async with served(openai_chat, WHOLE, WHOLE) as server, sdk(server.url) as client:
        first = await client.chat.completions.create(model="m1", messages=GO, tools=[BASH_TOOL])
        ChatCompletion.model_validate(first.model_dump(warnings="error"), strict=True)
        assert first.choices[0].message.tool_calls is not None
        assert [call.id for call in first.choices[0].message.tool_calls] == ["call_1", "call_2"]
        assert first.usage is not None
        assert first.usage.prompt_tokens_details is not None
        assert first.usage.prompt_tokens_details.cached_tokens == 64

        said: Any = first.choices[0].message
        results: Any = [{"role": "tool", "tool_call_id": id_, "content": "ok"} for id_ in ("call_1", "call_2")]
        await client.chat.completions.create(model="m1", messages=[*GO, said, *results], tools=[BASH_TOOL])
        assert server.asks[1].chat.messages == (
            User((Text("go"),)),
            Assistant("Done.", "hm", TWO_CALLS),
            ToolResult("call_1", (Text("ok"),)),
            ToolResult("call_2", (Text("ok"),)),
        )
        assert server.asks[1].chat.not_carried == ()


@pytest.mark.parametrize("answer", ANSWERS)
async def test_the_official_sdk_assembles_a_stream_into_the_plain_reply(answer: ChatReply) -> None:
    async with served(openai_chat, answer, answer, answer) as server, sdk(server.url) as client:
        chunks = await client.chat.completions.create(model="m1", messages=GO, stream=True)
        async for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk.model_dump(warnings="error"), strict=True)

        async with client.chat.completions.stream(
            model="m1", messages=GO, stream_options={"include_usage": True}
        ) as stream:
            await stream.until_done()
            streamed = stream.current_completion_snapshot  # the final one, which the SDK withholds when it was cut
        plain = await client.chat.completions.create(model="m1", messages=GO)

    def shown(completion: ChatCompletion) -> Json:
        shown = completion.model_dump(warnings="error", exclude_none=True)
        for call in shown["choices"][0]["message"].get("tool_calls", ()):
            call.pop("index", None)  # what the SDK leaves behind of a stream's chunks
        return {name: value for name, value in shown.items() if name != "object"}

    assert shown(streamed) == shown(plain)


async def test_the_official_sdk_raises_the_error_of_a_refused_call_and_of_a_stream_that_fails_late() -> None:
    async with served(openai_chat, CallError("engine", "the engine is gone")) as server, sdk(server.url) as client:
        with pytest.raises(BadRequestError) as refusal:
            await client.chat.completions.create(model="m1", messages=[])
        assert (refusal.value.param, refusal.value.type) == ("messages", "invalid_request_error")

        chunks = await client.chat.completions.create(model="m1", messages=GO, stream=True)
        with pytest.raises(APIError, match="the engine is gone"):
            async for chunk in chunks:
                assert chunk.choices[0].delta.content is None  # a keep-alive
