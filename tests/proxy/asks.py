"""One small model request in each provider's own form, as JSON, as a stream, and with a tool."""

import re
from dataclasses import dataclass, field, replace
from typing import Any, Self

TOOL = "run"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}


@dataclass(frozen=True)
class Ask:
    provider: str
    host: str
    target: str
    """Path and query."""
    body: dict[str, Any]
    key_header: str
    key_prefix: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    keepalive: bytes = b""
    """One keep-alive, the first or a later one, as a regular expression."""
    stream_type: str = "text/event-stream"

    def __str__(self) -> str:
        return self.provider

    def with_key(self, key: str) -> Self:
        return replace(self, headers={**self.headers, self.key_header: self.key_prefix + key})

    def kept(self, body: bytes) -> bytes:
        """The keep-alives with which a stream begins."""
        return re.match(rb"(?:%s)*" % self.keepalive, body)[0]  # type: ignore[index]

    def keepalives(self, body: bytes) -> int:
        """How many those are."""
        return len(re.findall(self.keepalive, self.kept(body)))

    def saying(self, text: str) -> Self:
        """The same with another user text."""
        return replace(self, body=_replaced(self.body, "Say hello.", text))


def _replaced(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {name: _replaced(inner, old, new) for name, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, old, new) for inner in value]
    return new if value == old else value


def _google(method: str, provider: str = "google") -> Ask:
    return Ask(
        provider,
        "generativelanguage.googleapis.com",
        f"/v1beta/models/gemini-9:{method}",
        {"contents": [{"role": "user", "parts": [{"text": "Say hello."}]}]},
        "x-goog-api-key",
        keepalive=rb"\n",
    )


ANTHROPIC = Ask(
    "anthropic",
    "api.anthropic.com",
    "/v1/messages",
    {"model": "claude-9", "max_tokens": 64, "messages": [{"role": "user", "content": "Say hello."}]},
    "x-api-key",
    headers={"anthropic-version": "2023-06-01"},
    keepalive=rb'event: ping\ndata: {"type":"ping"}\n\n',
)
CHAT = Ask(
    "openai-chat",
    "api.openai.com",
    "/v1/chat/completions",
    {"model": "gpt-9", "messages": [{"role": "user", "content": "Say hello."}]},
    "authorization",
    "Bearer ",
    keepalive=rb'data: {[^\n]*"delta":(?:{}|{"role":"assistant","content":null,"refusal":null}),[^\n]*}\n\n',
)
RESPONSES = Ask(
    "openai-responses",
    "api.openai.com",
    "/v1/responses",
    {"model": "gpt-9", "input": [{"role": "user", "content": "Say hello."}]},
    "authorization",
    "Bearer ",
    keepalive=rb"(?:event: response\.created\ndata: [^\n]*\n\n)?event: response\.in_progress\ndata: [^\n]*\n\n",
)
GOOGLE = _google("generateContent")

JSON_ASKS = (ANTHROPIC, CHAT, RESPONSES, GOOGLE)


def streamed(ask: Ask) -> Ask:
    if ask.provider == "google":
        return _google("streamGenerateContent?alt=sse")
    return replace(ask, body={**ask.body, "stream": True})


GOOGLE_ARRAY = replace(_google("streamGenerateContent", "google-array"), stream_type="application/json")
STREAM_ASKS = (*map(streamed, JSON_ASKS), GOOGLE_ARRAY)


def with_tool(ask: Ask, name: str = TOOL) -> Ask:
    """The same request, offering one tool."""
    function = {"name": name, "description": "Runs a command.", "parameters": SCHEMA}
    declared: dict[str, Any] = {
        "anthropic": {"name": name, "description": "Runs a command.", "input_schema": SCHEMA},
        "openai-chat": {"type": "function", "function": function},
        "openai-responses": {"type": "function", **function},
        "google": {"functionDeclarations": [function]},
    }
    return replace(ask, body={**ask.body, "tools": [declared[ask.provider]]})
