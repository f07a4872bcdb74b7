"""What six real harnesses send, recorded by `record.py`, as polar reads it."""

import json
from itertools import pairwise

import pytest

from polar_mitm.chat import Assistant, CallError, System, ToolChoice, ToolResult, User, text_of
from polar_mitm.providers import PROVIDERS
from tests.wire.filler import filler, is_filler
from tests.wire.fixtures import EXPECTED, Fixture, fixtures, offered, scenes, summary
from tests.wire.scrub import HEADERS, SECRET, SECRETS, header_prose, prose

ALL = fixtures()
THREADS = [fixture for fixture in ALL if "thread" in fixture.body]
TRIGGERS = [fixture for fixture in ALL if fixture.id.endswith("-remote-compaction-compaction")]
SERVED = [fixture for fixture in ALL if fixture not in THREADS]


def each(fixtures: list[Fixture]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fixture", fixtures, ids=lambda fixture: fixture.id)


PROVIDER_OF = {"messages": "anthropic", "completions": "openai-chat", "responses": "openai-responses"}
HARNESSES = ("claude-code", "codex", "gemini-cli", "opencode", "pi", "qwen-code")

# A conversation that was compacted begins anew. Some harnesses have it summed up as a text under another system text.
REWRITTEN = {"compaction"}


@pytest.mark.parametrize("harness", HARNESSES)
def test_the_first_and_the_second_turn_of_every_harness_are_recorded(harness: str) -> None:
    labels = {fixture.data["label"] for fixture in ALL if fixture.data["harness"] == harness}
    assert {"turn-1", "turn-2"} <= labels


@each(ALL)
def test_no_fixture_holds_a_harness_prose(fixture: Fixture) -> None:
    assert prose(fixture.data["body"]) == []
    assert prose(fixture.data["query"]) == []
    assert header_prose(fixture.data["headers"]) == []


@each(ALL)
def test_no_fixture_holds_a_secret(fixture: Fixture) -> None:
    headers = fixture.data["headers"]
    assert {headers[name].removeprefix("Bearer ") for name in SECRETS & headers.keys()} <= {SECRET}


def test_prose_is_found_wherever_it_is() -> None:
    assert prose({"a": [{"b": "Use this tool."}]}) == ["Use this tool."]
    assert prose({"a": '{"b": "Use this tool."}'}) == ["Use this tool."]
    assert prose({"Use this tool.": 1}) == ["Use this tool."]
    assert prose({"a": filler("Use this tool.")}) == []
    assert header_prose({"x-note": "Use this tool."}) == ["Use this tool."]


def test_filler_is_as_long_as_the_text_and_on_the_same_lines() -> None:
    text = "Use this tool.\n\n  - It reads a file.\n<name>of a thing</name>\n"
    made = filler(text)
    assert [len(line) for line in made.split("\n")] == [len(line) for line in text.split("\n")]
    assert made.startswith(filler("Use this tool.")) and "\n  " in made
    assert "<name>" in made and "</name>" in made
    assert is_filler(made) and not is_filler(text)


def test_filler_is_the_same_on_another_day_in_another_session() -> None:
    first, second = "Today is 2026-11-30, id 3fa85f64a1b2.", "Today is 2027-01-02, id 0123abcd4567."
    assert filler(first) == filler(second)
    assert filler("Use this tool.") != filler("Ask this user.")


def test_every_header_that_polar_reads_is_recorded() -> None:
    assert {name for provider in PROVIDERS for name in provider.SESSION_HEADERS} - HEADERS == set()


@each(ALL)
def test_the_path_says_which_provider_it_is_and_that_a_reply_is_wanted(fixture: Fixture) -> None:
    provider, route = fixture.route()
    assert PROVIDER_OF.get(fixture.request.path.rpartition("/")[2], "google") == provider.NAME
    assert route.action == "generate"


@each(SERVED)
def test_every_tool_call_is_answered_once_and_in_order(fixture: Fixture) -> None:
    messages = fixture.ask().chat.messages
    for index, message in enumerate(messages):
        if isinstance(message, Assistant) and message.tool_calls:
            answers = messages[index + 1 : index + 1 + len(message.tool_calls)]
            assert [answer.call_id for answer in answers if isinstance(answer, ToolResult)] == [
                call.id for call in message.tool_calls
            ]
    calls = [call for message in messages if isinstance(message, Assistant) for call in message.tool_calls]
    assert len(calls) == sum(isinstance(message, ToolResult) for message in messages)
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)


@each(SERVED)
def test_no_turn_is_empty(fixture: Fixture) -> None:
    messages = fixture.ask().chat.messages
    assert any(isinstance(message, User) for message in messages)
    for message in messages:
        match message:
            case System(text):
                assert text.strip()
            case User(parts):
                assert text_of(parts).strip()
            case Assistant():
                assert message.text or message.tool_calls
            case ToolResult():
                pass  # a command that prints nothing


@each([fixture for fixture in SERVED if fixture not in TRIGGERS])
def test_every_tool_that_was_offered_is_there_or_noted(fixture: Fixture) -> None:
    chat = fixture.ask().chat
    given = {tool.name for tool in chat.tools}
    noted = " ".join(f"{lost.field} {lost.why}" for lost in chat.not_carried)
    lost = [
        name
        for name in offered(fixture.body)
        if not any(tool == name or tool.endswith(f"_{name}") for tool in given) and name not in noted
    ]
    assert lost == []


@each(ALL)
def test_polar_understands_it_as_reviewed(fixture: Fixture) -> None:
    """expected.json is written by `python -m tests.wire.record --summaries`, and read by a person in the diff."""
    assert summary(fixture) == json.loads(EXPECTED.read_bytes())[fixture.id]


@each(THREADS)
def test_a_message_thread_is_refused_in_the_words_that_make_pi_send_all_again(fixture: Fixture) -> None:
    with pytest.raises(CallError, match=r"^thread: "):
        fixture.ask()


def test_pi_sends_the_whole_conversation_after_that() -> None:
    labels = [fixture.data["label"] for fixture in ALL if fixture.data["scene"] == "threads-refused"]
    assert labels == ["refused", "turn-1", "turn-2"]


@each(TRIGGERS)
def test_a_compaction_trigger_asks_for_a_summary_with_no_tool_to_call(fixture: Fixture) -> None:
    ask = fixture.ask()
    assert ask.compacts and ask.chat.tools and ask.chat.tool_choice == ToolChoice("none")
    assert isinstance(ask.chat.messages[-1], User)


def test_nothing_is_expected_of_fixtures_that_are_gone() -> None:
    assert json.loads(EXPECTED.read_bytes()).keys() == {fixture.id for fixture in ALL}


@pytest.mark.parametrize("scene", list(scenes()))
def test_a_turn_never_changes_what_came_before_it(scene: str) -> None:
    for earlier, later in pairwise(scenes()[scene]):
        if earlier.data["label"] in REWRITTEN:
            continue
        before, after = earlier.ask().chat, later.ask().chat
        if later.data["label"] in REWRITTEN and after.messages[0] != before.messages[0]:
            continue
        assert after.messages[: len(before.messages)] == before.messages
        assert len(after.messages) > len(before.messages)
        if later.data["label"] not in REWRITTEN:
            assert after.tools == before.tools
