"""Anthropic Messages: what a request means, and what a reply looks like, down to the official SDK reading it."""

import json
from typing import Any

import anthropic as sdk
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar_mitm.chat import (
    Assistant,
    CallError,
    ChatReply,
    ChatRequest,
    Image,
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
from polar_mitm.providers import anthropic, anthropic_messages
from polar_mitm.providers.anthropic_reply import AnthropicAsk
from polar_mitm.providers.base import Ask, Request, Route
from tests.providers.served import replaced, served, size

READ_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "Read", "description": "Reads a file", "input_schema": READ_SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
PIXEL = "iVBORw0KGgo="


def parse(body: Any, headers: dict[str, str] | None = None) -> Ask:
    return anthropic.parse(Request("POST", "api.anthropic.com", "/v1/messages", {}, headers or {}), ROUTE, body)


ROUTE = Route("generate")


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "claude-opus-5-5", "max_tokens": 1024, "messages": list(messages), **fields}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if content and isinstance(content[0], str) else list(content)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(call_id: str, name: str = "Read", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def image() -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


def chat(*messages: Any, **fields: Any) -> ChatRequest:
    return parse(body(*messages, **fields)).chat


CLAUDE_CODE: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "system": [
        text("x-anthropic-billing-header: cc_version=2.1.332.4f1; cc_entrypoint=sdk-cli; cch=a1b2c;"),
        {**text("You are Claude Code."), "cache_control": {"type": "ephemeral", "scope": "global"}},
        text("Be brief."),
    ],
    "messages": [
        user(text("Read a.py and b.py")),
        {"role": "system", "content": [text("Working directory: /srv/repo")]},
        assistant(
            {"type": "thinking", "thinking": "Two files.", "signature": "c2ln"},
            text("Reading."),
            use("toolu_1", path="a.py"),
            use("toolu_2", path="b.py", limit=3),
        ),
        user(
            result("toolu_1", "print(1)"),
            {**result("toolu_2", [text("no such file")], is_error=True), "cache_control": {"type": "ephemeral"}},
        ),
    ],
    "tools": [READ, {**READ, "name": "DeferredToolPlaceholder", "defer_loading": True}],
    "metadata": {"user_id": json.dumps({"device_id": "d1", "account_uuid": "", "session_id": "0b8e"})},
    "max_tokens": 128000,
    "thinking": {"type": "adaptive", "display": "updates"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}


def test_a_claude_code_request_becomes_this_chat() -> None:
    ask = parse(CLAUDE_CODE, {"x-claude-code-session-id": "0b8e", "x-api-key": "sk-secret"})
    assert ask == AnthropicAsk(
        chat=ChatRequest(
            messages=(
                System("You are Claude Code.\n\nBe brief."),
                User((Text("Read a.py and b.py"), Text("<system>\nWorking directory: /srv/repo\n</system>"))),
                Assistant(
                    "Reading.",
                    "Two files.",
                    (
                        ToolCall("toolu_1", "Read", '{"path": "a.py"}'),
                        ToolCall("toolu_2", "Read", '{"path": "b.py", "limit": 3}'),
                    ),
                ),
                ToolResult("toolu_1", (Text("print(1)"),)),
                ToolResult("toolu_2", (Text("no such file"),)),
            ),
            tools=(Tool("Read", "Reads a file", READ_SCHEMA),),
            sampling=Sampling(max_tokens=128000),
            thinking=Thinking(enabled=True, effort="high"),
            not_carried=(
                NotCarried("context_management", "the conversation is never edited on the way to the model"),
                NotCarried(
                    "thinking.display", "thinking is always shown whole, so that it comes back as it was sampled"
                ),
                NotCarried(
                    "system.*",
                    "changes with every request: x-anthropic-billing-header: cc_version=2.1.332.4f1; "
                    "cc_entrypoint=sdk-cli; cch=a1b2c;",
                ),
                NotCarried(
                    "tools.DeferredToolPlaceholder", "DeferredToolPlaceholder: deferred until a tool search finds it"
                ),
            ),
        ),
        model="claude-opus-5-5",
        stream=True,
        harness_ids={"x-claude-code-session-id": "0b8e", "session_id": "0b8e"},
    )


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/s/ses_1/v1/messages", "/anthropic/v1/messages"])
def test_a_post_to_messages_is_a_call_under_any_prefix(path: str) -> None:
    assert anthropic.recognise(Request("POST", "127.0.0.1", path, {"beta": "true"})) == ROUTE


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/messages"),
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/xmessages"),
        ("POST", "/v1/messages/"),
        ("POST", "/v1/chat/completions"),
    ],
)
def test_other_paths_and_methods_are_not_recognised(method: str, path: str) -> None:
    assert anthropic.recognise(Request(method, "api.anthropic.com", path)) is None


# --- conversation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [[text("go on"), result("t1"), result("t2")], [result("t1"), text("go on"), result("t2")]],
)
def test_P001_tool_results_come_first_then_the_other_parts_in_order(content: list[Any]) -> None:
    messages = chat(user("hi"), assistant(use("t1"), use("t2")), user(*content)).messages
    assert messages[2:] == (
        ToolResult("t1", (Text("ok"),)),
        ToolResult("t2", (Text("ok"),)),
        User((Text("go on"),)),
    )


def test_P002_user_messages_that_a_client_left_apart_are_one_turn_with_results_first() -> None:
    messages = chat(user("hi"), assistant(use("t1")), user(text("new"), image()), user(result("t1"))).messages
    assert messages[2:] == (
        ToolResult("t1", (Text("ok"),)),
        User((Text("new"), Image(f"data:image/png;base64,{PIXEL}"))),
    )


def test_P004_an_image_inside_a_tool_result_is_kept_in_order() -> None:
    content = [text("before"), image(), text("after")]
    messages = chat(user("hi"), assistant(use("t1")), user(result("t1", content))).messages
    assert messages[2] == ToolResult("t1", (Text("before"), Image(f"data:image/png;base64,{PIXEL}"), Text("after")))


@pytest.mark.parametrize(
    "source", [{"type": "url", "url": "https://example.com/a.png"}, {"type": "file", "file_id": "file_1"}]
)
def test_an_image_that_would_have_to_be_fetched_leaves_a_trace_for_the_model_and_the_record(source: Any) -> None:
    asked = chat(user(text("see"), {"type": "image", "source": source}))
    assert asked.messages == (User((Text("see"), Text(anthropic_messages.UNREADABLE_IMAGE))),)
    why = f"an image by {source['type']}: nothing is fetched from the network"
    assert asked.not_carried == (NotCarried("messages.*.content.*.source", why),)


def test_each_thing_that_could_not_be_read_is_counted_under_its_own_reason() -> None:
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
    stored = {"type": "document", "source": {"type": "file", "file_id": "f"}}
    fetched = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    asked = chat(user(pdf, pdf, fetched, stored), assistant(use("t")), user(result("t", [pdf, fetched])))
    assert {(lost.field, lost.why, lost.times) for lost in asked.not_carried} == {
        ("messages.*.content.*.source", "a document by base64: the model reads text and images only", 2),
        ("messages.*.content.*.source", "a document by file: the model reads text and images only", 1),
        ("messages.*.content.*.source", "an image by url: nothing is fetched from the network", 1),
        ("messages.*.content.*.content.*.source", "a document by base64: the model reads text and images only", 1),
        ("messages.*.content.*.content.*.source", "an image by url: nothing is fetched from the network", 1),
    }


def test_an_empty_text_block_adds_nothing_to_the_prompt() -> None:
    parts = (text(""), text("a"), text(""), text("b"), text(""))
    asked = chat(user(*parts), assistant(*parts, use("t")), user(result("t", [*parts])), system=[*parts])
    assert [message_wire(message)["content"] for message in asked.messages] == ["a\n\nb", "a\nb", "a\nb", "a\nb"]
    middle = {"role": "system", "content": [*parts]}
    assert chat(user("hi"), middle).messages == (User((Text("hi"), Text("<system>\na\n\nb\n</system>"))),)
    (message,) = chat(user(*parts, image())).messages
    assert [part["type"] for part in message_wire(message)["content"]] == ["text", "text", "image_url"]


def test_a_user_turn_that_thousands_of_empty_answers_interrupt_is_one_message() -> None:
    (message,) = chat(*[user("a"), {"role": "assistant", "content": []}] * 30_000).messages
    assert message == User((Text("a"),) * 30_000)


def test_citations_of_a_system_text_are_noted_like_those_of_others() -> None:
    asked = chat(user("hi"), system=[{**text("Top."), "citations": [{"type": "char_location"}]}])
    assert asked.not_carried == (NotCarried("system.*.citations", "the model is not asked to cite"),)


def test_P006_P007_a_system_message_in_the_middle_is_folded_into_the_user_turn_where_it_stands() -> None:
    reminder = {"role": "system", "content": "Be careful."}
    messages = chat(user("hi"), assistant(text("yo")), reminder, user("go"), reminder, system="Top.").messages
    folded = Text("<system>\nBe careful.\n</system>")
    assert messages == (
        System("Top."),
        User((Text("hi"),)),
        Assistant("yo"),
        User((folded, Text("go"), folded)),
    )


def test_system_messages_that_lead_join_the_system_prompt() -> None:
    lead = {"role": "system", "content": [text("Date: today.")]}
    assert chat(lead, lead, user("hi"), system="Top.").messages == (
        System("Top.\n\nDate: today.\n\nDate: today."),
        User((Text("hi"),)),
    )


def test_a_system_message_reads_the_same_as_a_string_and_as_a_list() -> None:
    as_string, as_list = ({"role": "system", "content": content} for content in ("S", [text("S")]))
    assert chat(user("hi"), as_string).messages == chat(user("hi"), as_list).messages


def test_results_come_in_the_order_of_their_calls_for_templates_that_tell_them_apart_by_nothing_else() -> None:
    asked = chat(user("hi"), assistant(use("t1"), use("t2")), user(result("t2", "two"), result("t1", "one")))
    assert asked.messages[2:] == (ToolResult("t1", (Text("one"),)), ToolResult("t2", (Text("two"),)))


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        (
            (user("hi"), assistant(use("t1"), use("t2")), user(result("t2"))),
            "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: t1.",
        ),
        (
            (user("hi"), assistant(use("t1")), user("never mind"), assistant(text("ok")), user(result("t1"))),
            "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: t1.",
        ),
        (
            (user("hi"), assistant(text("ok")), user(result("t1"))),
            "messages.2: unexpected `tool_use_id` found in `tool_result` blocks: t1.",
        ),
        (
            (user("hi"), assistant(use("t1")), user(result("t1"), result("t1"))),
            "messages.2: each tool_use must have a single result. Found multiple `tool_result` blocks with id: t1",
        ),
        (
            (user("hi"), assistant(use("t1"), use("t1")), user(result("t1"))),
            "messages.1: `tool_use` ids must be unique",
        ),
        ((user(), assistant(text("ok")), user("go")), "messages.0: user messages must have non-empty content"),
    ],
)
def test_a_conversation_that_anthropic_refuses_is_refused_in_its_words(conversation: Any, message: str) -> None:
    with pytest.raises(CallError) as caught:
        chat(*conversation)
    assert (caught.value.kind, caught.value.message[: len(message)]) == ("invalid_request", message)


def test_an_answer_without_anything_in_it_is_no_turn_and_the_user_goes_on() -> None:
    thought_elsewhere = {"type": "redacted_thinking", "data": "xyz"}
    asked = chat(user("hi"), assistant(thought_elsewhere), user(text("go"), image()))
    assert asked.messages == (User((Text("hi"), Text("go"), Image(f"data:image/png;base64,{PIXEL}"))),)


def test_a_user_turn_of_which_nothing_can_be_read_says_so() -> None:
    asked = chat(user("hi"), assistant(text("yo")), user({"type": "container_upload", "file_id": "f"}))
    assert asked.messages[2] == User((Text(anthropic_messages.LEFT_OUT),))
    assert [lost.field for lost in asked.not_carried] == ["messages.*.content.*.container_upload"]


def test_a_summary_that_stands_for_an_earlier_conversation_reaches_the_model() -> None:
    summary = {"type": "compaction", "content": "We fixed a.py.", "signature": "c2ln"}
    asked = chat(assistant(summary), user("go on"))
    assert asked.messages == (Assistant("We fixed a.py."), User((Text("go on"),)))
    assert asked.not_carried == ()


@pytest.mark.parametrize("suffix", ["cch=0a1b2;", "cch=fffff; cc_version=2.1.332.9e2;"])
def test_P008_P009_the_whole_billing_line_is_stripped_from_the_system_prompt(suffix: str) -> None:
    line = f"x-anthropic-billing-header: cc_entrypoint=cli; {suffix}"
    for system in ([text(line), text("Top.")], f"{line}\nTop."):
        assert chat(user("hi"), system=system).messages[0] == System("Top.")


def test_P009_the_same_words_elsewhere_stay() -> None:
    line = "x-anthropic-billing-header: cch=0a1b2;"
    messages = chat(user(line), assistant(use("t")), user(result("t", line)), system=f"Top.\n{line}").messages
    assert messages[0] == System(f"Top.\n{line}")
    assert messages[1] == User((Text(line),))
    assert messages[3] == ToolResult("t", (Text(line),))


@pytest.mark.parametrize(
    ("block", "parts"),
    [
        (result("t", "", is_error=True), (Text("error"),)),
        ({"type": "tool_result", "tool_use_id": "t", "is_error": True}, (Text("error"),)),
        (result("t", "no such file", is_error=True), (Text("no such file"),)),
        (result("t", ""), (Text(""),)),
        ({"type": "tool_result", "tool_use_id": "t"}, ()),
    ],
)
def test_a_failed_tool_call_without_a_word_says_error_and_other_results_stay_as_they_are(
    block: Any, parts: Any
) -> None:
    assert chat(user("hi"), assistant(use("t")), user(block)).messages[2] == ToolResult("t", parts)


def test_redacted_thinking_and_server_tool_blocks_are_left_out_and_noted() -> None:
    asked = chat(
        user("hi"),
        assistant(
            {"type": "redacted_thinking", "data": "xyz"},
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            text("found"),
        ),
        user("go"),
    )
    assert asked.messages[1] == Assistant("found")
    assert asked.not_carried == (
        NotCarried("messages.*.content.*.data", "only Anthropic's servers can read redacted thinking"),
        NotCarried("messages.*.content.*.server_tool_use", "nothing here runs Anthropic's server tools"),
        NotCarried("messages.*.content.*.web_search_tool_result", "nothing here runs Anthropic's server tools"),
    )


def test_P030_thinking_that_was_rendered_is_read_back_unchanged() -> None:
    reply = a_reply(text="Hi", reasoning="Let me think.\n")
    rendered = anthropic.render(ASK, reply)
    assert chat(user("hi"), assistant(*rendered["content"]), user("go")).messages[1] == Assistant(
        "Hi", "Let me think.\n"
    )


def test_a_document_of_text_is_read_and_another_one_leaves_a_trace_for_the_model_and_the_record() -> None:
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hello"}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
    asked = chat(user(plain, pdf))
    assert asked.messages == (User((Text("hello"), Text(anthropic_messages.UNREADABLE_DOCUMENT))),)
    assert [lost.field for lost in asked.not_carried] == ["messages.*.content.*.source"]


def test_the_title_and_context_of_a_document_come_before_its_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "hello"}
    block = {"type": "document", "title": "T", "context": "from 1999", "source": source, "citations": {"enabled": True}}
    asked = chat(user(block))
    assert asked.messages == (User((Text("T\nfrom 1999"), Text("hello"))),)
    assert asked.not_carried == (NotCarried("messages.*.content.*.citations", "the model is not asked to cite"),)


def test_a_search_result_is_its_title_its_source_and_its_texts() -> None:
    block = {"type": "search_result", "title": "T", "source": "https://e.org", "content": [text("a"), text("b")]}
    assert chat(user(block)).messages == (User((Text("T\nhttps://e.org\na\nb"),)),)


def test_an_answer_that_the_client_began_is_noted_as_not_continued() -> None:
    asked = chat(user("hi"), assistant(text("The answer is (")))
    assert asked.messages[-1] == Assistant("The answer is (")
    assert [lost.field for lost in asked.not_carried] == ["messages"]


# --- tools ------------------------------------------------------------------------------------------------------------


def test_P011_a_hosted_tool_that_is_only_listed_is_left_out_and_noted() -> None:
    asked = chat(user("hi"), tools=[SEARCH, READ, {**READ, "type": "custom", "name": "Read2", "strict": True}])
    assert asked.tools == (Tool("Read", "Reads a file", READ_SCHEMA), Tool("Read2", "Reads a file", READ_SCHEMA, True))
    assert [lost.field for lost in asked.not_carried] == ["tools.web_search"]


@pytest.mark.parametrize("choice", [{"type": "tool", "name": "web_search"}, {"type": "any"}])
def test_P012_P014_a_hosted_tool_that_is_forced_is_refused(choice: Any) -> None:
    with pytest.raises(CallError, match=r"tool_choice.*web_search_20250305.*nothing here runs it") as caught:
        chat(user("hi"), tools=[SEARCH], tool_choice=choice)
    assert caught.value.kind == "invalid_request"


def test_P036_a_deferred_tool_is_given_to_the_model_once_a_tool_result_refers_to_it() -> None:
    deferred = {**READ, "name": "Monitor", "defer_loading": True}
    found = user(result("t", [{"type": "tool_reference", "tool_name": "Monitor"}]))
    conversation = (user("hi"), assistant(use("t", "ToolSearch", query="monitor")), found)
    assert [tool.name for tool in chat(user("hi"), tools=[READ, deferred]).tools] == ["Read"]
    asked = chat(*conversation, tools=[READ, deferred])
    assert [tool.name for tool in asked.tools] == ["Read", "Monitor"]
    assert asked.messages[2] == ToolResult("t", (Text("Tool loaded: Monitor"),))
    assert asked.not_carried == ()


def test_a_tool_added_in_the_middle_of_the_conversation_is_given_to_the_model() -> None:
    deferred = {**READ, "name": "Monitor", "defer_loading": True}
    change = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "Monitor"}}
    asked = chat(user("hi"), {"role": "system", "content": [change]}, tools=[deferred])
    assert [tool.name for tool in asked.tools] == ["Monitor"]
    assert asked.messages == (User((Text("hi"),)),)


def test_P039_in_every_tool_turn_an_assistant_message_has_text_or_calls_and_ids_stay_as_they_are() -> None:
    turns = [message for n in range(3) for message in (assistant(use(f"toolu_{n}")), user(result(f"toolu_{n}")))]
    wires = [message_wire(message) for message in chat(user("hi"), *turns, assistant(), user("go")).messages]
    assert [wire["role"] for wire in wires] == ["user", *["assistant", "tool"] * 3, "user"]
    said = [wire for wire in wires if wire["role"] == "assistant"]
    assert [wire["tool_calls"][0]["id"] for wire in said] == ["toolu_0", "toolu_1", "toolu_2"]
    assert [wire["tool_call_id"] for wire in wires if wire["role"] == "tool"] == ["toolu_0", "toolu_1", "toolu_2"]
    assert all(isinstance(wire["content"], str) for wire in wires)


def test_P037_a_beta_header_alone_changes_no_tool() -> None:
    headers = {"anthropic-beta": "advanced-tool-use-2025-11-20,tool-search-tool-2025-10-19"}
    assert parse(body(user("hi"), tools=[READ]), headers).chat.tools == (Tool("Read", "Reads a file", READ_SCHEMA),)


def test_tool_names_are_unique() -> None:
    tools = [{"name": "Read", "input_schema": {"type": "object"}}] * 2
    with pytest.raises(CallError, match=r"tools: Tool names must be unique\.") as caught:
        parse(body({"role": "user", "content": "hi"}, tools=tools))
    assert caught.value.kind == "invalid_request"


@pytest.mark.parametrize(
    ("choice", "wanted", "parallel"),
    [
        (None, ToolChoice(), None),
        ({"type": "auto"}, ToolChoice(), None),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any", "disable_parallel_tool_use": False}, ToolChoice("required"), True),
        ({"type": "tool", "name": "Read", "disable_parallel_tool_use": True}, ToolChoice("named", "Read"), False),
        ({"type": "none"}, ToolChoice("none"), None),
    ],
)
def test_every_tool_choice_has_its_counterpart(choice: Any, wanted: ToolChoice, parallel: bool | None) -> None:
    asked = chat(user("hi"), tools=[READ], tool_choice=choice)
    assert (asked.tool_choice, asked.parallel_tool_calls) == (wanted, parallel)


def test_examples_of_a_tools_input_stand_at_the_end_of_its_description() -> None:
    asked = chat(
        user("hi"),
        tools=[{**READ, "input_examples": [{"path": "a.py"}], "allowed_callers": ["code_execution_20250825"]}],
    )
    assert asked.tools == (Tool("Read", 'Reads a file\nExamples of input:\n{"path": "a.py"}', READ_SCHEMA),)
    assert asked.not_carried == (NotCarried("tools.*.allowed_callers", "nothing here runs Anthropic's server tools"),)


# --- other fields -----------------------------------------------------------------------------------------------------


def test_sampling_and_stop_sequences_are_carried() -> None:
    asked = chat(user("hi"), temperature=0, top_p=0.5, top_k=40, stop_sequences=["END", "\n\n"])
    assert asked.sampling == Sampling(1024, 0.0, 0.5, 40, stop=("END", "\n\n"))


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": READ_SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": READ_SCHEMA}},
    ],
)
def test_a_structured_output_schema_is_carried(fields: Any) -> None:
    asked = chat(user("hi"), **fields)
    assert asked.json_schema == READ_SCHEMA
    assert asked.not_carried == ()


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking()),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, Thinking(True, None, 2048)),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, Thinking(True, "max")),
        ({"thinking": {"type": "disabled"}}, Thinking(False)),
        ({"thinking": {"type": "between_tools"}, "output_config": {"effort": "low"}}, Thinking(False, "low")),
        ({"output_config": {"effort": "medium"}}, Thinking(None, "medium")),
    ],
)
def test_how_much_to_think_is_carried(fields: Any, thinking: Thinking) -> None:
    asked = chat(user("hi"), **fields)
    assert (asked.thinking, asked.not_carried) == (thinking, ())


def test_an_unknown_way_to_think_is_refused() -> None:
    with pytest.raises(CallError, match=r"^thinking\.type: unknown type 'deep'"):
        chat(user("hi"), thinking={"type": "deep"})


def test_what_only_anthropics_servers_do_is_noted_with_its_reason() -> None:
    asked = chat(
        user("hi"),
        container="c1",
        mcp_servers=[{"type": "url", "url": "https://e.org", "name": "e"}],
        context_management={"edits": [{"type": "clear_thinking_20251015"}]},
        output_config={"task_budget": {"type": "tokens", "total": 1}},
        tool_choice={"type": "auto", "mood": "good"},
    )
    assert {lost.field: lost.why for lost in asked.not_carried} == {
        "container": "nothing here runs Anthropic's server tools",
        "mcp_servers": "nothing here connects to MCP servers; a client's own MCP tools are plain tools",
        "context_management": "the conversation is never edited on the way to the model",
        "tool_choice.mood": "not a field that this API is known to have",
        "output_config.task_budget": "the engine does not tell a model of a budget over several calls",
    }


def test_a_server_side_compaction_is_refused_as_where_the_beta_is_off() -> None:
    with pytest.raises(CallError, match=r"^compaction: Extra inputs are not permitted$"):
        chat(user("hi"), compaction={"type": "summarize"})


@pytest.mark.parametrize(
    ("user_id", "session"),
    [
        ('{"device_id": "d", "session_id": "0b8e"}', {"session_id": "0b8e"}),
        (
            "user_9f_account__session_0b8e1c2d-1111-2222-3333-444455556666",
            {"session_id": "0b8e1c2d-1111-2222-3333-444455556666"},
        ),
        ("someone", {}),
        ("[1]", {}),
        ('{"session_id": 7}', {}),
    ],
)
def test_the_session_in_the_metadata_is_found(user_id: str, session: dict[str, str]) -> None:
    assert parse(body(user("hi"), metadata={"user_id": user_id})).harness_ids == session


def test_every_unknown_field_is_noted_and_the_meaningless_ones_are_not() -> None:
    asked = chat(
        user("hi"), stream=False, cache_control={"type": "ephemeral"}, service_tier="auto", speed="fast", hurry=1
    )
    assert [lost.field for lost in asked.not_carried] == ["speed", "hurry"]


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_a_message_thread_is_refused_in_the_words_that_make_pi_send_everything(thread: Any) -> None:
    with pytest.raises(CallError) as caught:
        parse(body(user("hi"), thread=thread))
    assert caught.value.message == "thread: Extra inputs are not permitted"
    assert anthropic.error(caught.value)[1]["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }
    assert caught.value.kind == "invalid_request"


@pytest.mark.parametrize(
    ("wrong", "param", "message"),
    [
        (body(), "messages", "messages: at least one message is required"),
        (body(user("hi"), model=None), "model", "model: field required"),
        (body(user("hi"), max_tokens=-1), "max_tokens", "max_tokens: must be at least 0 and fit into 64 bits"),
        (body(user("hi"), max_tokens=True), "max_tokens", "max_tokens: expected an integer, got a boolean"),
        (body({"role": "ctx", "content": ""}), "messages.0.role", "messages.0.role: unknown role 'ctx'"),
        (body(user("hi"), {"role": "user"}), "messages.1.content", "messages.1.content: field required"),
        (
            body(user("hi"), user(text("a"), {"type": "hologram"})),
            "messages.1.content.1.type",
            "messages.1.content.1.type: unknown block type 'hologram'",
        ),
        (
            body(user("hi"), assistant({**use("t"), "input": "x"})),
            "messages.1.content.0.input",
            "messages.1.content.0.input: expected an object, got a string",
        ),
        (body(user("hi"), system=[image()]), "system.0.type", "system.0.type: unknown block type 'image'"),
        (body(user("hi"), tools=[{"name": "x"}]), "tools.0.input_schema", "tools.0.input_schema: field required"),
        (
            body(user("hi"), tools=[READ], tool_choice={"type": "tool", "name": "Rd"}),
            "tool_choice.name",
            "tool_choice.name: tool 'Rd' is not in `tools`",
        ),
        ([], None, "the request body must be a JSON object, not a list"),
    ],
)
def test_a_wrong_request_is_refused_by_the_path_of_the_field_at_fault(wrong: Any, param: str, message: str) -> None:
    with pytest.raises(CallError) as caught:
        parse(wrong)
    assert caught.value.kind == "invalid_request"
    assert caught.value.param == param
    assert caught.value.message.startswith(message)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
@settings(deadline=None)
def test_any_json_is_parsed_or_refused_with_a_call_error(value: Any) -> None:
    try:
        parse(value)
    except CallError as error:
        assert error.kind == "invalid_request"


def test_a_request_nested_deeper_than_any_stack_is_refused() -> None:
    nested: Any = "x"
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(CallError, match="nested deeper than 200 levels"):
        chat(user("hi"), assistant(use("t", deep=nested)))


FULL = {
    **CLAUDE_CODE,
    "messages": [
        *CLAUDE_CODE["messages"],
        user(image(), {"type": "search_result", "title": "T", "source": "s", "content": [text("x")]}),
    ],
    "tools": [READ, SEARCH],
    "tool_choice": {"type": "tool", "name": "Read", "disable_parallel_tool_use": True},
    "temperature": 1,
    "stop_sequences": ["a"],
    "output_config": {"format": {"type": "json_schema", "schema": READ_SCHEMA}},
}


@given(st.integers(0, size(FULL) - 1), json_values)
@settings(deadline=None, max_examples=400)
def test_a_request_with_any_one_value_replaced_is_parsed_or_refused_with_a_call_error(at: int, value: Any) -> None:
    try:
        ask = parse(replaced(FULL, at, value))
    except CallError as error:
        assert error.kind == "invalid_request"
        assert error.message
    else:
        assert isinstance(ask, Ask)


# --- replies ----------------------------------------------------------------------------------------------------------

ASK = AnthropicAsk(ChatRequest(()), "claude-opus-5-5", stream=True)


def a_reply(
    text: str = "",
    reasoning: str = "",
    tool_calls: tuple[ToolCall, ...] = (),
    finish: Any = "stop",
    stop_sequence: str | None = None,
) -> ChatReply:
    usage = Usage(prompt_tokens=1200, completion_tokens=34, cached_tokens=1000)
    return ChatReply("00ff", 1764460800, text, reasoning, tool_calls, finish, usage, stop_sequence)


CALLS = (
    ToolCall("call_00ff00", "Bash", '{"command": "echo \\"hé\\" > out.txt",  "timeout":5}'),
    ToolCall("call_00ff01", "Read", '{"path": "a.py"}'),
)
REPLY = a_reply("Writing.", "Think.", CALLS, "tool_calls")
SIGNATURE = "RuMMi1Ypognv31ZMPcaKO7N9pBcGyT0ktmSuegaaxDQ="
RENDERED: dict[str, Any] = {
    "id": "msg_00ff",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5-5",
    "content": [
        {"type": "thinking", "thinking": "Think.", "signature": SIGNATURE},
        {"type": "text", "text": "Writing."},
        {
            "type": "tool_use",
            "id": "call_00ff00",
            "name": "Bash",
            "input": {"command": 'echo "hé" > out.txt', "timeout": 5},
        },
        {"type": "tool_use", "id": "call_00ff01", "name": "Read", "input": {"path": "a.py"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "stop_details": None,
    "usage": {
        "input_tokens": 1200,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 34,
    },
}


def test_a_reply_is_rendered_as_this_message() -> None:
    assert anthropic.render(ASK, REPLY) == RENDERED


def events(reply: ChatReply) -> list[tuple[str, Any]]:
    framed = b"".join(anthropic.stream(ASK, reply)).decode()
    assert framed.endswith("\n\n")
    pairs = [event.split("\n") for event in framed[:-2].split("\n\n")]
    assert all(name.startswith("event: ") and data.startswith("data: ") for name, data in pairs)
    return [(name[7:], orjson.loads(data[6:])) for name, data in pairs]


def test_a_stream_has_every_event_in_order_and_names_each_on_its_event_line() -> None:
    names = [name for name, _ in events(REPLY)]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    thinking = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    assert names == ["message_start", *thinking, *block * 3, "message_delta", "message_stop"]
    assert all(name == data["type"] for name, data in events(REPLY))


def test_P016_P017_P020_a_call_streams_an_empty_input_and_then_its_arguments_once() -> None:
    opened = [data["content_block"] for name, data in events(REPLY) if name == "content_block_start"]
    assert opened[2] == {"type": "tool_use", "id": "call_00ff00", "name": "Bash", "input": {}}
    assert opened[3] == {"type": "tool_use", "id": "call_00ff01", "name": "Read", "input": {}}


def test_P019_the_argument_text_is_streamed_byte_for_byte() -> None:
    deltas = [data for name, data in events(REPLY) if name == "content_block_delta"]
    streamed = [data["delta"]["partial_json"] for data in deltas if data["delta"]["type"] == "input_json_delta"]
    assert streamed == [call.arguments for call in CALLS]


@pytest.mark.parametrize("arguments", ["", " ", "null", "{}"])
def test_a_call_without_arguments_has_an_empty_object(arguments: str) -> None:
    reply = a_reply(tool_calls=(ToolCall("call_1", "Bash", arguments),))
    assert anthropic.render(ASK, reply)["content"] == [use("call_1", "Bash")]
    assert [data["delta"]["partial_json"] for name, data in events(reply) if name == "content_block_delta"] == ["{}"]


def test_P022_the_first_event_has_the_true_prompt_count() -> None:
    started = events(REPLY)[0][1]["message"]
    assert started["usage"]["input_tokens"] == 1200
    assert (started["content"], started["stop_reason"]) == ([], None)


def test_P024_cached_tokens_are_not_taken_off_the_prompt_count() -> None:
    usage = anthropic.render(ASK, REPLY)["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 1200


def test_P031_a_stop_sequence_is_named() -> None:
    reply = a_reply("one", stop_sequence="END")
    assert anthropic.render(ASK, reply)["stop_reason"] == "stop_sequence"
    assert anthropic.render(ASK, reply)["stop_sequence"] == "END"
    assert events(reply)[-2][1]["delta"] == {
        "stop_reason": "stop_sequence",
        "stop_sequence": "END",
        "stop_details": None,
    }


@pytest.mark.parametrize("arguments", ['{"command": "ls', "[1]", '"x"', '{"a": NaN}', "[" * 300 + "]" * 300])
def test_P032_a_call_without_a_json_object_is_a_call_that_the_harness_can_answer(arguments: str) -> None:
    reply = a_reply("Hm.", tool_calls=(ToolCall("call_1", "Bash", arguments), CALLS[1]), finish="tool_calls")
    rendered = anthropic.render(ASK, reply)
    marked = use("call_1", "Bash", INVALID_JSON=arguments)
    assert rendered["content"] == [text("Hm."), marked, use("call_00ff01", path="a.py")]
    assert rendered["stop_reason"] == "tool_use"
    deltas = [data["delta"] for name, data in events(reply) if name == "content_block_delta"]
    assert orjson.loads(deltas[1]["partial_json"]) == {"INVALID_JSON": arguments}
    assert chat(user("hi"), assistant(marked), user(result("call_1", "InputValidationError"))).messages[1:] == (
        Assistant("", "", (ToolCall("call_1", "Bash", json.dumps({"INVALID_JSON": arguments})),)),
        ToolResult("call_1", (Text("InputValidationError"),)),
    )


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (a_reply("Hi"), "end_turn"),
        (a_reply(), "end_turn"),
        (a_reply("Hi", finish="length"), "max_tokens"),
        (a_reply("Hi", finish="abort"), "max_tokens"),
        (a_reply("Hi", finish="content_filter"), "refusal"),
        (a_reply("Hi", finish="tool_calls"), "end_turn"),
        (a_reply(reasoning="Only thoughts."), "end_turn"),
        (a_reply("Hi", tool_calls=CALLS), "tool_use"),
        (a_reply("Hi", tool_calls=CALLS, finish="length"), "max_tokens"),
        (a_reply("Hi", tool_calls=CALLS, stop_sequence="x"), "tool_use"),
    ],
)
def test_P033_P087_the_stop_reason_tells_calls_from_cut_off_answers(reply: ChatReply, reason: str) -> None:
    assert anthropic.render(ASK, reply)["stop_reason"] == reason


def test_an_empty_reply_has_no_content_block() -> None:
    assert anthropic.render(ASK, a_reply())["content"] == []


@pytest.mark.parametrize(
    ("kind", "status", "type_"),
    [
        ("invalid_request", 400, "invalid_request_error"),
        ("unauthorized", 401, "authentication_error"),
        ("not_found", 404, "not_found_error"),
        ("too_large", 413, "request_too_large"),
        ("unsupported_encoding", 415, "invalid_request_error"),
        ("overloaded", 529, "overloaded_error"),
        ("engine", 500, "api_error"),
        ("timeout", 504, "timeout_error"),
        ("no_model", 404, "not_found_error"),
        ("internal", 500, "api_error"),
    ],
)
def test_every_error_has_its_status_and_type(kind: Any, status: int, type_: str) -> None:
    wanted = (status, {"type": "error", "error": {"type": type_, "message": "m"}})
    assert anthropic.error(CallError(kind, "m")) == wanted


@pytest.mark.parametrize("message", ["5000 tokens > 4096 maximum", "prompt is too long: 5000 tokens > 4096 maximum"])
def test_a_full_context_is_told_in_the_words_that_clients_look_for(message: str) -> None:
    status, told = anthropic.error(CallError("context_overflow", message))
    assert (status, told["error"]) == (
        400,
        {"type": "invalid_request_error", "message": "prompt is too long: 5000 tokens > 4096 maximum"},
    )


# --- the official SDK -------------------------------------------------------------------------------------------------


def client(url: str) -> sdk.AsyncAnthropic:
    return sdk.AsyncAnthropic(base_url=url, api_key="sk-ant-x", max_retries=0)


ASKED: Any = {"model": "claude-opus-5-5", "max_tokens": 1024, "messages": [user("hi")], "tools": [READ]}


@pytest.mark.filterwarnings("error")
async def test_the_sdk_reads_a_json_reply_as_it_was_rendered() -> None:
    async with served(anthropic, REPLY) as server, client(server.url) as anthropic_sdk:
        message = await anthropic_sdk.messages.create(**ASKED)
    assert message.to_dict() == RENDERED


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "reply", [REPLY, a_reply(), a_reply("é" * 40, stop_sequence="END"), a_reply(tool_calls=CALLS[:1])]
)
async def test_the_sdk_reassembles_a_stream_cut_at_every_byte_into_the_same_message(reply: ChatReply) -> None:
    async with (
        served(anthropic, reply) as server,
        client(server.url) as anthropic_sdk,
        anthropic_sdk.messages.stream(**ASKED) as stream,
    ):
        message = await stream.get_final_message()
    assert message.to_dict() == anthropic.render(ASK, reply)


@pytest.mark.filterwarnings("error")
async def test_a_second_turn_by_the_sdk_gives_back_the_calls_that_it_was_sent() -> None:
    async with served(anthropic, REPLY, a_reply("Done.")) as server, client(server.url) as anthropic_sdk:
        first = await anthropic_sdk.messages.create(**ASKED)
        history = [*ASKED["messages"], first.to_param(), user(result("call_00ff01", "b"), result("call_00ff00", "a"))]
        await anthropic_sdk.messages.create(**{**ASKED, "messages": history})
    assert server.asks[1].chat.messages[1:] == (
        Assistant(
            "Writing.",
            "Think.",
            (
                ToolCall("call_00ff00", "Bash", '{"command": "echo \\"hé\\" > out.txt", "timeout": 5}'),
                CALLS[1],
            ),
        ),
        ToolResult("call_00ff00", (Text("a"),)),
        ToolResult("call_00ff01", (Text("b"),)),
    )


@pytest.mark.filterwarnings("error")
async def test_the_sdk_raises_the_error_that_ends_a_stream() -> None:
    async with served(anthropic, CallError("overloaded", "no room")) as server, client(server.url) as anthropic_sdk:
        with pytest.raises(sdk.APIStatusError, match="no room"):
            async with anthropic_sdk.messages.stream(**ASKED) as stream:
                await stream.get_final_message()


@pytest.mark.filterwarnings("error")
async def test_the_sdk_raises_its_own_class_for_an_error_reply() -> None:
    async with served(anthropic, CallError("overloaded", "no room")) as server, client(server.url) as anthropic_sdk:
        with pytest.raises(sdk.InternalServerError, match="no room") as caught:
            await anthropic_sdk.messages.create(**ASKED)
    assert caught.value.status_code == 529
