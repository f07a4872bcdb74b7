"""A conversation of turns: what a user says between two answers is one message."""

from polar_mitm.chat import Assistant, Text, ToolResult, User
from polar_mitm.providers.turns import Turns

A, B = Text("a"), Text("b")


def test_parts_join_until_another_message_comes_between() -> None:
    turns = Turns()
    turns.say([A])
    turns.add([])
    turns.say([])
    turns.say([B])
    turns.add([Assistant("yo"), ToolResult("t", (A,))])
    turns.say([B])
    assert turns.all() == (User((A, B)), Assistant("yo"), ToolResult("t", (A,)), User((B,)))


def test_nothing_said_is_no_message() -> None:
    turns = Turns()
    turns.say([])
    assert turns.all() == ()
