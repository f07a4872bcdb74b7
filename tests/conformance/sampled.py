"""What an SDK's objects must say of a call: the same as its record, in the stand-in's case the known reply too."""

from dataclasses import dataclass
from typing import Any

from polar_mitm.capture.record import Call
from tests.fakes.vllm import Reply
from tests.proxy.asks import TOOL
from tests.proxy.stage import Stage

HELLO = Reply("Hello there.")
LIST = '{"cmd": "ls"}'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"cmd": {"type": "string", "enum": ["ls"]}},
    "required": ["cmd"],
    "additionalProperties": False,
}
"""Left to choose its words, `tiny` never comes to the end of a string."""
CALLING = Reply("", tool_calls=[(TOOL, LIST)])
PROMPT = "Say hello."
WARNINGS = ("error", "ignore::pytest.PytestUnraisableExceptionWarning")
"""Every warning of an SDK is an error. What the collector finds meanwhile is another test's."""
MAX_TOKENS = 512
"""Enough for the longest answer that `tiny` gives; a forced call of its is some 30 tokens."""


@dataclass(frozen=True)
class Sampled:
    """A recorded call, by the names that the SDKs' objects use."""

    id: str
    created: int
    text: str
    calls: list[tuple[str, str, str]]
    """Id, name and argument text of each tool call."""
    prompt_tokens: int
    completion_tokens: int
    call: Call


def last(on: Stage) -> Sampled:
    """The last call of the session, checked to be whole."""
    call = on.calls()[-1]
    assert call.response and call.error is None
    assert call.checks.valid and call.checks.decode_matches_text is not False, call.checks
    assert (call.delivery.status, call.delivery.bytes_sent > 0) == ("delivered", True)
    return Sampled(
        id=call.identity.call_id.removeprefix("call_"),
        created=int(call.identity.started_at),
        text=call.response.text,
        calls=[_parts(tool_call) for tool_call in call.response.tool_calls],
        prompt_tokens=len(call.prompt_ids),
        completion_tokens=len(call.response.response_ids),
        call=call,
    )


def known(sampled: Sampled, reply: Reply) -> None:
    """The stand-in's reply is on the record as it was given."""
    assert sampled.text == reply.text
    assert [(name, arguments) for _, name, arguments in sampled.calls] == reply.tool_calls


def _parts(tool_call: dict[str, Any]) -> tuple[str, str, str]:
    return tool_call["id"], tool_call["function"]["name"], tool_call["function"]["arguments"]
