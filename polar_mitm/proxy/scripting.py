"""Scripted turns: which tool call the engine is made to sample for a request, if any.

The turn is counted in the history itself, so that a retried request gets the same step. Two things stand outside of it:
a compaction takes turns out of the history, and a sub-agent has a history, and a script, of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polar_mitm.capture.record import Kind
from polar_mitm.chat import Assistant, ChatRequest, User, text_of


@dataclass(slots=True, frozen=True)
class Step:
    """One scripted turn: the tool call that the engine is made to sample."""

    tool: str
    arguments: Mapping[str, Any]
    prompt: str = ""
    """What the sub-agent is told that this call starts."""
    script: "tuple[Step, ...]" = ()
    """The sub-agent's own turns; after them it may only talk."""


@dataclass(slots=True)
class Progress:
    """How far the main conversation is in the session's script."""

    answered: int = 0
    """Steps that were given and answered."""
    dropped: int = 0
    """Those of them that compactions have taken out of the history."""
    compacted: bool = False
    """Whether a compaction was answered since the last turn."""

    def place(self, made: int) -> int:
        """The step that is next, by the number of tool calls in the history."""
        if self.compacted:
            self.dropped, self.compacted = max(0, self.answered - made), False
        return made + self.dropped

    def done(self, kind: Kind, made: int) -> None:
        """Hear of a call that was answered; `made` counts the tool calls in its history and in its answer."""
        if kind == "compaction":
            self.compacted = True
        elif kind == "turn":
            self.answered = max(self.answered, made + self.dropped)


def next_step(script: Sequence[Step], progress: Progress, kind: Kind, chat: ChatRequest) -> Step | None:
    """The step for this request; None when the model may only talk: after the last one, and in side requests.

    A request that does not offer the step's tool is not a turn of the task.
    """
    made = calls_made(chat)
    if kind == "turn":
        steps, place = script, progress.place(made)
    elif kind == "subagent":
        steps, place = _sub_agents(script, chat), made
    else:
        return None
    if place >= len(steps) or all(tool.name != steps[place].tool for tool in chat.tools):
        return None
    return steps[place]


def calls_made(chat: ChatRequest) -> int:
    """The turns in the history that called tools."""
    return sum(1 for message in chat.messages if isinstance(message, Assistant) and message.tool_calls)


def count(script: Sequence[Step]) -> int:
    """All steps, those of sub-agents among them."""
    return sum(1 for _ in _all(script))


def _sub_agents(script: Sequence[Step], chat: ChatRequest) -> Sequence[Step]:
    """The script of the sub-agent whose conversation this is: it was told what its step says."""
    told = "\n".join(text_of(message.parts) for message in chat.messages if isinstance(message, User))
    return next((step.script for step in _all(script) if step.prompt and step.prompt in told), ())


def _all(script: Sequence[Step]) -> Iterator[Step]:
    """The innermost first: a sub-agent's sub-agent may have been told the other's task too."""
    for step in script:
        yield from _all(step.script)
        yield step
