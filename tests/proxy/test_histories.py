"""What makes two conversations one, and what does not."""

from dataclasses import replace
from typing import Any

import pytest

from polar_mitm.chat import (
    Assistant,
    ChatRequest,
    Image,
    Message,
    System,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    User,
)
from polar_mitm.proxy.histories import Frame, extended, same_arguments, same_reply, same_value

EDIT = Tool(
    "edit",
    "Edits.",
    {"type": "object", "properties": {"all": {"type": "boolean", "default": False}, "path": {"type": "string"}}},
)


def said(text: str = "", reasoning: str = "", *calls: tuple[str, str, str]) -> Assistant:
    return Assistant(text, reasoning, tuple(ToolCall(*call) for call in calls))


@pytest.mark.parametrize(
    ("sampled", "given"),
    [
        ('{"a":1}', '{"a": 1}'),
        ('{"a":1,"b":[true,null]}', '{"b": [true, null], "a": 1}'),
        ('{"a":1.0}', '{"a":1}'),
        ('{"a":1,"a":2}', '{"a": 2}'),
        ('{"a":"\\u00e9"}', '{"a":"é"}'),
        ("{", "{"),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_the_way_arguments_are_written_makes_no_difference(sampled: str, given: str) -> None:
    assert same_value(sampled, given)


@pytest.mark.parametrize(
    ("sampled", "given"),
    [
        ('{"a":1}', '{"a":2}'),
        ('{"a":1}', '{"a":true}'),
        ('{"a":0}', '{"a":false}'),
        ('{"a":"1"}', '{"a":1}'),
        ('{"a":1}', '{"a":1,"b":null}'),
        ('{"a":[1,2]}', '{"a":[2,1]}'),
        ('{"a":9007199254740993}', '{"a":9007199254740992}'),
        ("{", "{}"),
        ("[" * 5000, "[" * 5001),
    ],
)
def test_another_value_does(sampled: str, given: str) -> None:
    assert not same_value(sampled, given)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ('{"all": false, "path": "x"}', True),
        ('{"all": true, "path": "x"}', False),
        ('{"all": 0, "path": "x"}', False),
        ('{"all": false, "path": "y"}', False),
        ('{"all": false}', False),
        ('{"new": false, "path": "x"}', False),
        ('["x"]', False),
    ],
)
def test_a_default_that_the_client_filled_in_is_no_other_value(given: str, same: bool) -> None:
    assert same_arguments('{"path":"x"}', given, EDIT) == same
    assert not same_arguments('{"path":"x"}', given, None)


@pytest.mark.parametrize("parameters", [{}, {"properties": []}, {"properties": {"all": True}}])
def test_a_schema_without_defaults_gives_none(parameters: dict[str, Any]) -> None:
    assert not same_arguments('{"path":"x"}', '{"path":"x","all":false}', Tool("edit", "", parameters))


@pytest.mark.parametrize(
    ("sampled", "given"),
    [
        (said(" Hello.\n"), said("Hello.")),
        (said("Hello.", "Hm."), said("Hello.")),
        (said("Hello.", " Hm.\n"), said("Hello.", "Hm.")),
        (said("", "Hm."), said("Hm.")),
        (said("", "Hm. "), said("Hm.", "")),
        (said("", "", ("c1", "run", '{"a":1}')), said("", "", ("c1", "run", '{"a": 1}'))),
        (said("", "", ("c1", "run", "")), said("", "", ("c1", "run", "{}"))),
        (said("", "", ("c1", "run", "{a")), said("", "", ("c1", "run", '{"INVALID_JSON": "{a"}'))),
    ],
)
def test_a_reply_comes_back_as_apis_let_it(sampled: Assistant, given: Assistant) -> None:
    assert same_reply(sampled, given)


@pytest.mark.parametrize(
    ("sampled", "given"),
    [
        (said("Hello."), said("Hello!")),
        (said("Hello.", "Hm."), said("Hello.", "Ha.")),
        (said("Hello.", ""), said("Hello.", "Ha.")),
        (said("a", "b"), said("ba")),
        (said("", "", ("c1", "run", "{}")), said("", "", ("c2", "run", "{}"))),
        (said("", "", ("c1", "run", "{}")), said("", "", ("c1", "ran", "{}"))),
        (said("", "", ("c1", "run", "{}")), said("", "", ("c1", "run", '{"a": 1}'))),
        (said("", "", ("c1", "run", "{}")), said("")),
        (said(""), said("", "", ("c1", "run", "{}"))),
        (said("a", "", ("c1", "run", "{}")), said("", "", ("c1", "run", "{}"))),
        (said("", "Hm.", ("c1", "run", "{}")), said("Hm.", "", ("c1", "run", "{}"))),
    ],
)
def test_a_reply_that_came_back_changed_is_another(sampled: Assistant, given: Assistant) -> None:
    assert not same_reply(sampled, given)


def test_arguments_that_were_mended_for_the_client_come_back_mended() -> None:
    sampled, given = said("", "", ("c1", "patch", "not JSON")), said("", "", ("c1", "patch", '{"input": "not JSON"}'))
    assert not same_reply(sampled, given)
    assert same_reply(sampled, given, repaired=True)
    assert not same_reply(sampled, said("x", "", ("c1", "patch", "{}")), repaired=True)


CONVERSATION: tuple[Message, ...] = (
    System("Be brief."),
    User((Text("Hi."), Image("data:a"))),
    said("Hello.", "Hm.", ("c1", "run", "{}")),
    ToolResult("c1", (Text("ok"),)),
)


def digest(*messages: Message) -> bytes:
    key = Frame.of(ChatRequest(messages)).start
    for message in messages:
        key = extended(key, message)
    return key


@pytest.mark.parametrize(
    "other",
    [
        (System("Be brief!"), *CONVERSATION[1:]),
        (CONVERSATION[0], User((Text("Hi."), Image("data:b"))), *CONVERSATION[2:]),
        (CONVERSATION[0], User((Text("Hi."), Text("data:a"))), *CONVERSATION[2:]),
        (*CONVERSATION[:2], said("Hello.", "", ("c1", "run", "[]")), CONVERSATION[3]),
        (*CONVERSATION[:3], ToolResult("c2", (Text("ok"),))),
        (*CONVERSATION[:3], ToolResult("c1", (Text("o"), Text("k")))),
        (*CONVERSATION[:3], User((Text("ok"),))),
        CONVERSATION[:3],
        (),
    ],
)
def test_conversations_that_differ_anywhere_have_other_digests(other: tuple[Message, ...]) -> None:
    assert digest(*other) != digest(*CONVERSATION)


def test_thoughts_and_blanks_around_a_reply_make_no_other_conversation() -> None:
    others = (*CONVERSATION[:2], said(" Hello.", "", ("c1", "run", "{}")), CONVERSATION[3])
    assert digest(*others) == digest(*CONVERSATION)


def test_halves_of_characters_can_be_told_apart() -> None:
    assert digest(User((Text("\ud83d"),))) != digest(User((Text("\ud83c"),)))


def test_tools_thinking_and_the_system_text_are_what_a_prompt_begins_with() -> None:
    chat = ChatRequest(CONVERSATION, tools=(EDIT,))
    frame = Frame.of(chat)
    assert Frame.of(replace(chat, tools=(replace(EDIT, strict=True),))) == frame
    assert Frame.of(replace(chat, messages=(*CONVERSATION, User((Text("more"),))))) == frame
    assert Frame.of(replace(chat, tools=())).tools != frame.tools
    assert Frame.of(replace(chat, tools=(replace(EDIT, description="Edits!"),))).tools != frame.tools
    assert Frame.of(replace(chat, thinking=Thinking(enabled=False))).thinking != frame.thinking
    assert Frame.of(replace(chat, thinking=Thinking(budget=100))) == frame
    assert Frame.of(replace(chat, messages=CONVERSATION[1:])).system != frame.system
