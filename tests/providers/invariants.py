"""What holds of every conversation in Chat form, and the random data that providers are held against."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
from hypothesis import strategies as st

from polar_mitm.chat import Assistant, ChatReply, Message, System, ToolCall, ToolResult, Usage, User
from polar_mitm.providers.common import arguments_text

# Numbers and texts that JSON keeps as they are.
plain = st.none() | st.booleans() | st.integers() | st.integers(2**63, 2**70) | st.text(max_size=12)
arguments = st.dictionaries(
    st.text(max_size=6),
    plain | st.floats(allow_nan=False, allow_infinity=False) | st.lists(plain, max_size=3),
    max_size=4,
)
argument_texts = arguments.map(arguments_text) | st.sampled_from(["", "null", '{"a', "[1]", ' {"a":\t1}', "{}"])


@st.composite
def replies(draw: st.DrawFn) -> ChatReply:
    calls = tuple(
        ToolCall(f"call_{index}", draw(st.sampled_from(["Read", "Bash"])), draw(argument_texts))
        for index in range(draw(st.integers(0, 3)))
    )
    reasoning_tokens = draw(st.integers(0, 5))
    usage = Usage(draw(st.integers(0, 10**6)), reasoning_tokens + draw(st.integers(0, 99)), 0, reasoning_tokens)
    finish = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter", "abort"]))
    stop_sequence = draw(st.sampled_from([None, "END"])) if finish == "stop" else None
    text, reasoning = draw(st.text(max_size=40)), draw(st.text(max_size=40))
    return ChatReply("00ff", 1764460800, text, reasoning, calls, finish, usage, stop_sequence)


@dataclass
class Split:
    """A transport for an SDK's HTTP client: answers every request with these bytes, cut at these places."""

    content_type: str = ""
    whole: bytes = b""
    cuts: Sequence[int] = field(default_factory=tuple)

    def transport(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(
            lambda request: httpx2.Response(200, headers={"content-type": self.content_type}, content=self.pieces())
        )

    def pieces(self) -> Iterator[bytes]:
        places = sorted({cut % (len(self.whole) + 1) for cut in self.cuts})
        for begin, end in zip([0, *places], [*places, len(self.whole)], strict=True):
            yield self.whole[begin:end]


cuts = st.lists(st.integers(0, 10**4), max_size=20)


def check(messages: Sequence[Message]) -> None:
    """Every call is answered exactly once, right after it and in order; no turn is empty; a system text leads."""
    waiting: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, ToolResult):
            assert waiting == [], f"{message} comes before the results of {waiting}"
        match message:
            case System(text):
                assert index == 0 and text
            case User(parts):
                assert parts
                assert index == 0 or not isinstance(messages[index - 1], User)
            case Assistant(text, reasoning, calls):
                assert text or reasoning or calls
                waiting = [call.id for call in calls]
            case ToolResult(call_id, _):
                assert waiting[:1] == [call_id]
                waiting.pop(0)
    assert waiting == [] or isinstance(messages[-1], Assistant)


def flat(messages: Sequence[Message]) -> list[Any]:
    """The conversation as a list that appending to it only makes longer: the parts of user turns stand alone."""
    return [
        piece
        for message in messages
        for piece in ([("user", part) for part in message.parts] if isinstance(message, User) else [message])
    ]


def check_prefixes[T](turns: Sequence[T], from_model: Callable[[T], bool], parse: Callable[[list[T]], Any]) -> None:
    """What is asked after each of the user's turns begins as all that was asked before it.

    `parse` gives the Chat messages, None for a conversation that the provider refuses: its calls lack results yet.
    """
    whole = flat(parse(list(turns)))
    for end in range(1, len(turns)):
        if from_model(turns[end - 1]) and from_model(turns[end]):
            continue
        if (earlier := parse(list(turns[:end]))) is not None:
            assert whole[: len(flat(earlier))] == flat(earlier)
