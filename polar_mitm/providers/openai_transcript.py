"""The message list that the two OpenAI APIs build, under three rules; which item means what is each API's own file.

1. What a client appends never changes what came before.
2. Every tool call is answered exactly once, right behind the message that made it and in the order of the calls: many
   chat templates show results without their ids.
3. No message says nothing.
"""

from collections import deque
from collections.abc import Sequence

from polar_mitm.chat import (
    Assistant,
    Image,
    Message,
    Part,
    System,
    Text,
    ToolResult,
    User,
)
from polar_mitm.providers.common import Notes, folded_system

UNANSWERED = Text("[no result was given for this call]")
UNANSWERED_WHY = "a tool call without a result: the model is told that there is none"
LATE_WHY = "a tool result without a call that waits for it: the model is given it as a user's text"
EMPTY_WHY = "a message without content: the model is given none"


class Transcript:
    """The messages so far. `field` is the request's field that holds them, as the notes name it."""

    def __init__(self, notes: Notes, field: str) -> None:
        self._notes = notes
        self._field = field
        self._leading: list[str] = []
        self._messages: list[Message] = []
        self._waiting: list[tuple[str, ToolResult | None]] = []
        """The last assistant message's calls by id, each with its result once that was given."""
        self._open: dict[str, deque[int]] = {}
        """Where in `_waiting` the calls without a result are, by id."""
        self._answered = False
        """Whether a call in `_waiting` has its result."""
        self._growing: list[Assistant] = []
        """The pieces of the assistant message that ends the transcript; none where another message ends it."""
        self._late: list[User] = []
        """Results that answer none of these calls, to follow those that do."""

    def system(self, text: str) -> None:
        """A system text. Those that lead become the one first System message; a later one stays where it was said."""
        if self._messages or self._waiting:
            self._say(User((folded_system(text),)), empty=not text)
        else:
            self._leading.append(text)

    def user(self, parts: tuple[Part, ...]) -> None:
        self._say(User(parts), empty=not _says(parts))

    def assistant(self, message: Assistant) -> None:
        """A whole assistant message."""
        self._say(message, empty=message == Assistant())
        self._wait(message)

    def continue_assistant(self, more: Assistant) -> None:
        """Add to the assistant message that ends the transcript, or begin one."""
        if self._growing and not self._late and not self._answered:
            self._growing.append(more)
            self._wait(more)
        else:
            self.assistant(more)

    def result(self, result: ToolResult) -> None:
        if waiting := self._open.get(result.call_id):
            self._waiting[waiting.popleft()] = (result.call_id, result)
            self._answered = True
            return
        self._notes.add(self._field, LATE_WHY)
        self._late.append(User((Text(f"<tool_result>\n{result.call_id}\n</tool_result>"), *result.parts)))

    def messages(self) -> tuple[Message, ...]:
        """The whole list. Nothing may be added after."""
        self._settle()
        leading = "\n\n".join(filter(None, self._leading))
        return (System(leading), *self._messages) if leading else tuple(self._messages)

    def _say(self, message: User | Assistant, *, empty: bool) -> None:
        if empty:
            self._notes.add(self._field, EMPTY_WHY)
            return
        self._settle()
        self._messages.append(message)
        if isinstance(message, Assistant):
            self._growing = [message]

    def _wait(self, message: Assistant) -> None:
        for call in message.tool_calls:
            self._open.setdefault(call.id, deque()).append(len(self._waiting))
            self._waiting.append((call.id, None))

    def _settle(self) -> None:
        """Make the assistant message whole, put the results behind their calls, and say of each call without one that
        there is none."""
        if len(self._growing) > 1:
            self._messages[-1] = _joined(self._growing)
        for call_id, result in self._waiting:
            if result is None:
                self._notes.add(self._field, UNANSWERED_WHY)
            self._messages.append(result or ToolResult(call_id, (UNANSWERED,)))
        self._messages += self._late
        self._waiting, self._late, self._growing = [], [], []
        self._open, self._answered = {}, False


def _joined(pieces: Sequence[Assistant]) -> Assistant:
    return Assistant(
        text="\n".join(piece.text for piece in pieces if piece.text),
        reasoning="\n".join(piece.reasoning for piece in pieces if piece.reasoning),
        tool_calls=tuple(call for piece in pieces for call in piece.tool_calls),
    )


def _says(parts: tuple[Part, ...]) -> bool:
    return any(isinstance(part, Image) or part.text for part in parts)
