"""Requests that allow one tool call at a time, where the model makes several: the client gets the first alone.

Providers hold their models to one. vLLM could, by a grammar, which would falsify the log-probabilities. So the reply
stays as it was sampled, in later prompts too, where each call that the client was not given has a result that says so.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from polar_mitm.chat import ChatRequest, Text, ToolCall, ToolResult

NOT_RUN: Final = "This call was not run: only one call at a time is allowed."


def passed_on(chat: ChatRequest, calls: Sequence[ToolCall]) -> int:
    """How many of a reply's calls the client is to get: the first so many."""
    return min(len(calls), 1) if chat.parallel_tool_calls is False else len(calls)


def repair(calls: Sequence[ToolCall], passed: int) -> list[str]:
    """What the record says of the calls that the client was not given."""
    left_out = ", ".join(call.name for call in calls[passed:])
    return [f"one call at a time was asked for, so these were not passed on: {left_out}"] if left_out else []


def not_run(calls: Iterable[ToolCall]) -> list[ToolResult]:
    """The results of calls that the client was not given."""
    return [ToolResult(call.id, (Text(NOT_RUN),)) for call in calls]
