"""Conversations of any size in each provider's own form, and replies of any size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from polar_mitm.chat import ChatReply, Json, ToolCall, Usage
from polar_mitm.providers import Provider, Request, anthropic, google, openai_chat, openai_responses
from tests.proxy.asks import SCHEMA

# Escapes, a quote and letters of several bytes, in the proportions of source code with some prose.
FILLER = 'def run(cmd: str) -> str:\n    """Führt es aus."""\n    return os.popen(f"{cmd} 2>&1").read()  # ≥ 1 line\n'

type Call = tuple[str, str]
"""Its id, and the text that is its argument as well as its result."""


def text(size: int) -> str:
    """Filler of so many characters."""
    return (FILLER * (size // len(FILLER) + 1))[:size]


@dataclass(frozen=True)
class Shape:
    """How one provider writes the pieces of a conversation. What gives a list gives whole messages or items."""

    provider: Provider
    path: str
    body: Callable[[list[Json], list[Json]], Json]
    tool: Callable[[str], Json]
    user: Callable[[Sequence[str]], list[Json]]
    """One user message of these texts."""
    answer: Callable[[str], list[Json]]
    """One message of the model's."""
    calls: Callable[[Sequence[Call]], list[Json]]
    """One turn of the model's with these calls, and their results."""

    @property
    def request(self) -> Request:
        return Request("POST", self.provider.HOSTS[0], self.path, {"alt": "sse"})

    def conversation(self, rounds: int, size: int, tools: int = 1) -> Json:
        """A user's text, an answer, a call and its result, again and again; each text has so many characters."""
        items = self.user(["Go on."])
        for number in range(rounds):
            items += [*self.user([text(size)]), *self.answer(text(size)), *self.user([text(size)])]
            items += self.calls([(f"call_{number}", text(size))])
        return self.body(items, [self.tool(f"tool_{number}") for number in range(tools)])

    def asked(self, *items: Json) -> Json:
        return self.body([*self.user(["Go on."]), *items], [self.tool("tool_0")])


def reply(size: int, calls: int = 1) -> ChatReply:
    """Half of it text, a quarter reasoning, a quarter the arguments of so many calls."""
    arguments = orjson.dumps({"cmd": text(size // (4 * calls))}).decode()
    made = tuple(ToolCall(f"c{number}", "tool_0", arguments) for number in range(calls))
    return ChatReply("ab12", 1, text(size // 2), text(size // 4), made, "tool_calls", Usage(1000, 200))


def _function(name: str) -> Json:
    return {"name": name, "description": "Runs a command and gives its output.", "parameters": SCHEMA}


def _anthropic_calls(calls: Sequence[Call]) -> list[Json]:
    uses = [{"type": "tool_use", "id": name, "name": "tool_0", "input": {"cmd": said}} for name, said in calls]
    results = [{"type": "tool_result", "tool_use_id": name, "content": said} for name, said in calls]
    return [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]


def _anthropic_tool(name: str) -> Json:
    function = _function(name)
    return {**function, "input_schema": function.pop("parameters")}


def _texts(kind: str, texts: Sequence[str]) -> list[Json]:
    return [{"type": kind, "text": said} for said in texts]


def _arguments(said: str) -> str:
    return orjson.dumps({"cmd": said}).decode()


def _chat_calls(calls: Sequence[Call]) -> list[Json]:
    made = [
        {"id": name, "type": "function", "function": {"name": "tool_0", "arguments": _arguments(said)}}
        for name, said in calls
    ]
    results = [{"role": "tool", "tool_call_id": name, "content": said} for name, said in calls]
    return [{"role": "assistant", "content": None, "tool_calls": made}, *results]


def _responses_calls(calls: Sequence[Call]) -> list[Json]:
    made = [
        {"type": "function_call", "call_id": name, "name": "tool_0", "arguments": _arguments(said)}
        for name, said in calls
    ]
    return [*made, *({"type": "function_call_output", "call_id": name, "output": said} for name, said in calls)]


def _google_calls(calls: Sequence[Call]) -> list[Json]:
    made: list[Any] = [{"functionCall": {"name": "tool_0", "args": {"cmd": said}}} for _, said in calls]
    results = [{"functionResponse": {"name": "tool_0", "response": {"output": said}}} for _, said in calls]
    return [{"role": "model", "parts": made}, {"role": "user", "parts": results}]


SHAPES = (
    Shape(
        anthropic,
        "/v1/messages",
        lambda items, tools: {"model": "m", "max_tokens": 99, "stream": True, "messages": items, "tools": tools},
        _anthropic_tool,
        lambda texts: [{"role": "user", "content": _texts("text", texts)}],
        lambda said: [{"role": "assistant", "content": _texts("text", [said])}],
        _anthropic_calls,
    ),
    Shape(
        openai_chat,
        "/v1/chat/completions",
        lambda items, tools: {"model": "m", "stream": True, "messages": items, "tools": tools},
        lambda name: {"type": "function", "function": _function(name)},
        lambda texts: [{"role": "user", "content": _texts("text", texts)}],
        lambda said: [{"role": "assistant", "content": said}],
        _chat_calls,
    ),
    Shape(
        openai_responses,
        "/v1/responses",
        lambda items, tools: {"model": "m", "stream": True, "input": items, "tools": tools},
        lambda name: {"type": "function", **_function(name)},
        lambda texts: [{"role": "user", "content": _texts("input_text", texts)}],
        lambda said: [{"type": "message", "role": "assistant", "content": _texts("output_text", [said])}],
        _responses_calls,
    ),
    Shape(
        google,
        "/v1beta/models/m:streamGenerateContent",
        lambda items, tools: {"contents": items, "tools": [{"functionDeclarations": tools}]},
        _function,
        lambda texts: [{"role": "user", "parts": [{"text": said} for said in texts]}],
        lambda said: [{"role": "model", "parts": [{"text": said}]}],
        _google_calls,
    ),
)
