"""Which requests are turns and which are side requests: by headers that say so, or by several signs that agree.

The bodies have the shape of real ones; their texts are filler.
"""

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from polar_mitm.chat import (
    Assistant,
    ChatRequest,
    Message,
    Sampling,
    System,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    User,
)
from polar_mitm.providers import Ask, Request
from polar_mitm.proxy.kinds import Opening, classify
from polar_mitm.proxy.sessions import Step
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, CHAT, GOOGLE, RESPONSES, TOOL, streamed, with_tool
from tests.proxy.asks import Ask as Sent

FILLER = "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor "
SYSTEM = System(FILLER * 30)
TOOLS = (Tool("shell"), Tool("read"))
TASK = User((Text("fix it"),))
CALLED = (Assistant("", "", (ToolCall("c1", "shell", "{}"),)), ToolResult("c1", (Text("done"),)))
SUMMARISE = FILLER * 6 + "Write a summary of this conversation. " + FILLER


def ask(
    *messages: Message, tools: tuple[Tool, ...] = TOOLS, model: str = "m-9", compacts: bool = False, **chat: Any
) -> Ask:
    return Ask(ChatRequest(messages, tools=tools, **chat), model, stream=True, compacts=compacts)


def said(text: str) -> User:
    return User((Text(text),))


FIRST = ask(SYSTEM, TASK)
MAIN = Opening.of(FIRST.chat)


def kind(asked: Ask, main: Opening | None = MAIN, **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    found, reason = classify(Request("POST", "h", "/v1/x", headers=named), asked, main)
    assert reason
    return found


TURNS = {
    "first": ask(SYSTEM, TASK),
    "second": ask(SYSTEM, TASK, *CALLED),
    "with another task of the user": ask(SYSTEM, said("now this")),
    "after a compaction": ask(SYSTEM, said(FILLER * 20)),
    "with more tools than before": ask(SYSTEM, TASK, *CALLED, tools=(*TOOLS, Tool("write"))),
    "about titles, with tools": ask(System("Give titles. " + FILLER), TASK, User((Text("a"), Text("b")))),
    "that asks for a summary at once": ask(SYSTEM, said(SUMMARISE)),
    "in which a person asks briefly for a summary": ask(SYSTEM, TASK, *CALLED, said("Summarise the history of it.")),
    "with a tool result about a summary": ask(
        SYSTEM, TASK, CALLED[0], ToolResult("c1", (Text(SUMMARISE),))
    ),
    "with structured output and tools": ask(SYSTEM, TASK, json_schema={"type": "object"}),
    "with a small limit": ask(SYSTEM, TASK, sampling=Sampling(max_tokens=256)),
    "with a small model": ask(SYSTEM, TASK, model="gpt-9-mini"),
}  # fmt: skip


@pytest.mark.parametrize("asked", TURNS.values(), ids=TURNS)
def test_a_turn_is_no_side_request(asked: Ask) -> None:
    assert kind(asked) == "turn"
    assert kind(asked, main=None) == "turn"


@pytest.mark.parametrize(
    "asked",
    [
        ask(said("hello"), tools=()),
        ask(SYSTEM, said("hello"), tools=()),
        ask(said("hello"), tools=(), json_schema={"type": "object"}),
        ask(System("Write a title."), said("hello"), tools=(), json_schema={"properties": 5}),
        ask(System("Write a title for this."), said("hello"), tools=()),
        ask(said("hello"), Assistant("hi"), said(FILLER), tools=()),
    ],
    ids=["bare", "system", "schema", "no schema", "title", "history"],
)
def test_a_chat_without_tools_is_a_turn_on_one_sign_alone(asked: Ask) -> None:
    assert kind(asked, main=None) == "turn"


TITLE = System("You write a title. " + FILLER)


@pytest.mark.parametrize(
    "asked",
    [
        ask(TITLE, said(FILLER), TASK, tools=()),  # opencode on chat
        ask(TITLE, User((Text(FILLER), Text("fix it"))), tools=()),  # opencode on Anthropic: the turns are merged
        ask(TITLE, TASK, tools=(), sampling=Sampling(max_tokens=100)),
        ask(TITLE, TASK, tools=(), model="claude-haiku-9"),
        ask(TITLE, TASK, tools=(), json_schema={"type": "object", "properties": {"title": {"type": "string"}}}),
    ],
    ids=["two texts", "two parts", "small answer", "small model", "schema"],  # the last is Claude Code's, in a terminal
)
def test_P161_a_title_request_is_told_by_its_shape_before_and_after_the_first_turn(asked: Ask) -> None:
    assert kind(asked, main=None) == kind(asked) == "title"


def test_a_verdict_of_a_small_model_under_a_schema_is_a_classifier() -> None:
    asked = ask(SYSTEM, TASK, tools=(), json_schema={"type": "object"}, model="gemini-9-flash-lite")
    assert kind(asked, main=None) == kind(asked) == "classifier"
    # The served model's name in place of the small one's: then the session's turns tell.
    assert kind(replace(asked, model="tiny")) == "classifier"


@pytest.mark.parametrize(
    "headers",
    [
        {"x_claude_code_agent_id": "a1"},
        {"x_claude_code_request_class": "subagent"},
        {"x_claude_1p_request_class": "blocking-subagent"},
        {"x_openai_subagent": "collab_spawn"},
        {"x_codex_parent_thread_id": "t1"},
        {"x_parent_session_id": "s1"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_a_sub_agent_says_so_in_its_headers(headers: dict[str, str]) -> None:
    assert kind(FIRST, **headers) == kind(FIRST, main=None, **headers) == "subagent"


@pytest.mark.parametrize(
    "headers",
    [
        {"x_claude_code_request_class": "main"},
        {"x_claude_1p_request_class": "main"},
        {"x_openai_subagent": ""},
        {"x_codex_turn_metadata": '{"request_kind": "turn"}'},
        {"x_codex_turn_metadata": "not json"},
        {"x_codex_turn_metadata": "[1]"},
        {"x_codex_turn_metadata": '{"request_kind": 1}'},
    ],
)
def test_headers_that_say_turn_or_nothing_make_no_side_request(headers: dict[str, str]) -> None:
    assert kind(FIRST, **headers) == "turn"


def test_marks_in_the_body_count_like_headers() -> None:
    assert kind(replace(FIRST, harness_ids={"x-openai-subagent": "review"})) == "subagent"


def test_P015_a_sub_agent_without_a_mark_is_told_by_system_text_tools_and_task_together() -> None:
    other = ask(System("other " + FILLER), said("look there"), tools=(Tool("grep"),))
    grown = ask(*other.chat.messages, *CALLED, tools=other.chat.tools)
    assert kind(other) == kind(grown) == "subagent"
    assert kind(other, main=None) == "turn"
    for chat in (
        replace(other.chat, tools=TOOLS),
        replace(other.chat, messages=(SYSTEM, said("look there"))),
        replace(other.chat, messages=(System("other " + FILLER), TASK)),
    ):
        assert kind(replace(other, chat=chat)) == "turn"


def test_an_agent_that_looks_through_the_conversation_with_some_of_its_tools_is_none_of_its_turns() -> None:
    other = ask(System("remember " + FILLER), TASK, Assistant("Done."), said(FILLER), tools=TOOLS[:1])  # Qwen Code
    assert kind(other) == "subagent"
    for chat in (
        replace(other.chat, tools=TOOLS),
        replace(other.chat, tools=(Tool("shell"), Tool("write"))),
        replace(other.chat, messages=(SYSTEM, *other.chat.messages[1:])),
        replace(other.chat, messages=other.chat.messages[:2]),
    ):
        assert kind(replace(other, chat=chat)) == "turn"


@pytest.mark.parametrize(
    ("asked", "headers"),
    [
        (ask(SYSTEM, TASK, *CALLED, compacts=True), {}),
        (ask(SYSTEM, TASK, *CALLED), {"x_codex_turn_metadata": '{"request_kind": "compaction"}'}),
        (ask(SYSTEM, TASK, *CALLED), {"x_openai_subagent": "compact"}),
        (ask(SYSTEM, TASK, *CALLED, said(SUMMARISE), tools=()), {}),  # Codex: an ordinary request without tools
        (ask(SYSTEM, TASK, *CALLED, said("Write a handoff summary."), tools=()), {}),
        (ask(SYSTEM, TASK, *CALLED, said(SUMMARISE)), {}),  # Claude Code: a block after the tool results
        (ask(SYSTEM, TASK, Assistant("x"), User((Text("go on"), Text(SUMMARISE)))), {}),  # and after the user's words
        (ask(SYSTEM, TASK, *CALLED, said(SUMMARISE)), {"x_claude_code_agent_id": "a1"}),  # a sub-agent's own
    ],
)
def test_P159_a_compaction_is_told_by_what_the_request_says_or_by_how_its_conversation_ends(
    asked: Ask, headers: dict[str, str]
) -> None:
    assert kind(asked, **headers) == "compaction"


ABOUT_SUMMARIES = System("You summarise. " + FILLER + " Read the conversation and write its summary.")


@pytest.mark.parametrize(
    "asked",
    [
        ask(ABOUT_SUMMARIES, said("<conversation>\n" + FILLER), tools=()),  # pi, opencode
        ask(
            System(FILLER), TASK, *CALLED, said("First, reason. Then, generate it."), tools=()
        ),  # Qwen Code, Gemini CLI
        ask(System(FILLER), said("It was summed up before."), *CALLED, said("Again."), tools=()),
    ],
    ids=["one text", "messages", "the second one of a session"],
)
def test_P159_a_compaction_by_another_system_text_is_told_from_the_sessions_turns(asked: Ask) -> None:
    assert kind(asked) == "compaction"
    assert kind(asked, main=None) == "turn"
    assert kind(replace(asked, chat=replace(asked.chat, tools=TOOLS))) != "compaction"
    assert kind(asked, main=replace(MAIN, tools=frozenset())) == "turn"
    assert kind(replace(asked, chat=replace(asked.chat, messages=(SYSTEM, *asked.chat.messages[1:])))) == "turn"


def test_P028_a_request_for_one_token_is_a_probe() -> None:
    assert kind(ask(SYSTEM, TASK, sampling=Sampling(max_tokens=1))) == "probe"
    assert kind(ask(SYSTEM, TASK, sampling=Sampling(max_tokens=2))) == "turn"


def test_the_reason_names_every_sign() -> None:
    asked = ask(TITLE, said(FILLER), TASK, tools=(), model="gpt-9-nano", sampling=Sampling(max_tokens=40))
    assert classify(Request("POST", "h", "/"), asked, None) == (
        "title",
        "no tools, no history, a system text about titles; several user texts in a row; a small answer asked for; "
        "a small model (gpt-9-nano)",
    )


# Through the proxy


def body(sent: Sent, **fields: Any) -> Sent:
    return replace(sent, body={**sent.body, **fields})


def chat(*messages: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in messages]


OPENCODE_TITLE = body(CHAT, messages=chat(("system", TITLE.text), ("user", FILLER), ("user", "Say hello.")))
GEMINI_CLASSIFIER = replace(
    body(
        GOOGLE,
        systemInstruction={"parts": [{"text": FILLER}]},
        generationConfig={
            "responseMimeType": "application/json",
            "responseJsonSchema": {"type": "object", "properties": {"complexity_score": {"type": "integer"}}},
        },
    ),
    target="/v1beta/models/gemini-9-flash-lite:generateContent",
)
CLAUDE_AGENT = replace(
    body(with_tool(ANTHROPIC), system=FILLER), headers={**ANTHROPIC.headers, "X-Claude-Code-Agent-Id": "a1"}
)
CODEX_COMPACTION = body(
    RESPONSES,
    input=[
        {"role": "user", "content": "Say hello."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
        {"role": "user", "content": SUMMARISE},
    ],
)
PROBE = body(ANTHROPIC, max_tokens=1)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (with_tool(CHAT), "turn"),
        (OPENCODE_TITLE, "title"),
        (GEMINI_CLASSIFIER, "classifier"),
        (CLAUDE_AGENT, "subagent"),
        (CODEX_COMPACTION, "compaction"),
        (PROBE, "probe"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_the_kind_and_its_reason_are_on_the_record_and_in_the_flow(
    sent: Sent, expected: str, stage: Staged
) -> None:
    async with stage() as on:
        got = await on.post(sent)
        assert got.status == 200, got.body
        (call,) = on.calls()
        assert call.origin.kind == expected
        assert call.origin.kind_reason
        (flow,) = on.flows()
        assert flow.comment.startswith(f"{expected} ")


async def test_side_requests_take_no_step_of_a_script(stage: Staged) -> None:
    forced = Reply("", tool_calls=[(TOOL, '{"cmd": "ls"}')])
    async with stage(Reply(), Reply(), Reply(), forced) as on:
        session = on.open_session(script=(Step(TOOL, {"cmd": "ls"}),))
        for side in (OPENCODE_TITLE, CLAUDE_AGENT, with_tool(CODEX_COMPACTION)):
            assert (await on.post(side, session=session)).status == 200
        assert (await on.post(with_tool(ANTHROPIC), session=session)).status == 200
        assert ["structured_outputs" in request for request in on.fake.requests] == [False, False, False, True]
        assert [call.origin.kind for call in on.calls(session)] == ["title", "subagent", "compaction", "turn"]


@pytest.mark.parametrize("harness", ["qwen-code", None])
async def test_an_unmarked_sub_agent_is_told_only_where_the_session_is_one_run_of_one_harness(
    harness: str | None, stage: Staged
) -> None:
    other = body(with_tool(CHAT, "look"), messages=chat(("system", FILLER), ("user", "Look there.")))
    async with stage() as on:
        session = on.open_session(identity={"harness": harness})
        for sent in (with_tool(CHAT), other):
            assert (await on.post(sent, session=session)).status == 200
        assert [call.origin.kind for call in on.calls(session)] == ["turn", "subagent" if harness else "turn"]


async def test_a_side_request_that_comes_first_and_gives_no_sign_is_not_what_turns_are_held_against(
    stage: Staged,
) -> None:
    unsigned = body(CHAT, messages=chat(("system", FILLER), ("user", "Look there.")))
    async with stage() as on:
        session = on.open_session(identity={"harness": "claude-code"})
        for sent in (unsigned, with_tool(CHAT), with_tool(CHAT)):
            assert (await on.post(sent, session=session)).status == 200
        assert [call.origin.kind for call in on.calls(session)] == ["turn", "turn", "turn"]


async def test_a_sub_agent_and_the_main_turn_at_once_are_told_apart(stage: Staged) -> None:
    async with stage(Reply(delay_s=0.1)) as on:
        main = with_tool(streamed(ANTHROPIC))
        await asyncio.gather(on.post(main), on.post(CLAUDE_AGENT), on.post(main))
        assert sorted(call.origin.kind for call in on.calls()) == ["subagent", "turn", "turn"]
        assert orjson.loads(on.session.log.folder.calls.read_bytes().splitlines()[0])["origin"]["kind_reason"]
