"""The message list of the APIs whose conversations are turns: what a user says between two answers is one message."""

from collections.abc import Iterable

from polar_mitm.chat import Message, Part, User


class Turns:
    """The messages so far. Adding takes the same time however many there are."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._said: list[Part] = []
        """The parts of the user message that ends the list; none where another message ends it."""

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._settle()
            self._messages.append(message)

    def say(self, parts: Iterable[Part]) -> None:
        """A user's parts, joined to the user message right before them."""
        self._said.extend(parts)

    def all(self) -> tuple[Message, ...]:
        self._settle()
        return tuple(self._messages)

    def _settle(self) -> None:
        if self._said:
            self._messages.append(User(tuple(self._said)))
            self._said = []
