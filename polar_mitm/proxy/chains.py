"""What a session's model has said, and in which conversation: so that a history that comes back is known again.

A reply is found by all that stands before it in the history, and by what it says itself: its text, and its tool calls
under the ids that polar gave them. The latest reply of a history that is found so is the one to continue: with `exact`
tokens, by the very ids the engine saw and sampled. Sub-agents and side requests are conversations of their own, and two
requests may continue one reply.

No I/O and no waiting: one event loop calls it, between its awaits.
"""

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Final

from polar_mitm.capture.ids import Ids, unpack
from polar_mitm.chat import Assistant, ChatRequest, Message, Tool, ToolCall, ToolResult
from polar_mitm.engine.client import Continuation, Sample
from polar_mitm.prompts import Broken
from polar_mitm.proxy.histories import Frame, extended, same_arguments, same_reply, same_words
from polar_mitm.proxy.one_call import not_run

MOST_BYTES: Final = 64 * 2**20
"""Of ids and text, for one session: 16 million tokens. Whole conversations go, those first that were longest quiet."""
_REPLY_BYTES: Final = 1024
"""What a reply takes beside its ids and its text."""


@dataclass(slots=True, eq=False)
class Tree:
    """A conversation with all its branches: replies that grew out of one prompt."""

    frame: Frame
    replies: list["Reply"] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True, eq=False)
class Reply:
    call_id: str
    before: bytes
    """Digest of the conversation that it answered."""
    said: Assistant
    """What it says, its tool calls under polar's ids and with their arguments as sampled."""
    tree: Tree
    ids: Ids | None = None
    """Its prompt and its response; None where they are not known, or not to be continued from."""
    prompt_len: int = 0
    ended: bool = False
    repaired: bool = False
    """Whether the client was given it in another form than it was sampled."""
    passed: int | None = None
    """How many of its calls the client was given; None: all."""

    @property
    def told(self) -> Assistant:
        """What the client was given."""
        return self.said if self.passed is None else replace(self.said, tool_calls=self.said.tool_calls[: self.passed])

    @property
    def left_out(self) -> tuple[ToolCall, ...]:
        """The calls that it was not."""
        return () if self.passed is None else self.said.tool_calls[self.passed :]

    @property
    def size(self) -> int:
        """Bytes, about; ids that an earlier reply of its tree has are that one's."""
        own = len(self.ids.own) if self.ids else 0
        words = [self.said.text, self.said.reasoning, *(call.arguments for call in self.said.tool_calls)]
        return _REPLY_BYTES + own + sum(map(len, words))


@dataclass(slots=True)
class _Call:
    reply: Reply
    sampled: ToolCall
    written: str
    """The last other text of its arguments that was found to be the same value: a history says it again and again."""


@dataclass(slots=True, frozen=True)
class Reading:
    """A request's history as it was found."""

    chat: ChatRequest
    """The request, with the text, the arguments and the number of calls of known replies as they were sampled."""
    frame: Frame
    key: bytes
    """Digest of the whole conversation."""
    reply: Reply | None = None
    """The latest reply of the history that was found."""
    follows: int = 0
    """Index of the first message after it."""
    broken: Broken | None = None
    """Why a later reply of the history was not found."""
    why: str = ""

    @property
    def parent(self) -> str | None:
        """The call that this request continues for certain; None where the history's last reply was not found."""
        return self.reply.call_id if self.reply and self.broken is None else None

    def continuation(self) -> Continuation | None:
        reply = self.reply
        if reply is None or not reply.ids:
            return None
        return Continuation(unpack(reply.ids.packed()), reply.prompt_len, reply.ended, self.follows)


class Chains:
    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._size = 0
        self._forgotten = False
        self._trees: OrderedDict[Tree, None] = OrderedDict()
        self._after: dict[bytes, list[Reply]] = {}
        """By the conversation before them."""
        self._calls: dict[str, _Call] = {}
        """By the id of each tool call."""
        self._texts: dict[str, Reply] = {}
        """By what they say, of those without tool calls."""

    def read(self, chat: ChatRequest) -> Reading:
        """Find the replies of this history."""
        frame = Frame.of(chat)
        key = frame.start
        messages: list[Message] = []
        found: Reply | None = None
        follows = 0
        lost: tuple[Assistant, bytes] | None = None
        tools = {tool.name: tool for tool in chat.tools}
        unanswered: list[ToolResult] = []
        for message in (*chat.messages, None):
            if unanswered and not isinstance(message, ToolResult):
                for result in unanswered:
                    key = extended(key, result)
                messages += unanswered
                unanswered = []
            if message is None:
                break
            if isinstance(message, Assistant):
                calls = tuple(self._sampled(call, tools.get(call.name)) for call in message.tool_calls)
                message = replace(message, tool_calls=calls)
                if reply := self._find(key, message):
                    message = replace(message, tool_calls=(*calls, *reply.left_out))
                    if same_words(reply.said, message):
                        message = replace(message, text=reply.said.text)
                    key = extended(key, reply.said)
                    messages.append(message)
                    unanswered = not_run(reply.left_out)
                    found, follows, lost = reply, len(messages), None
                    continue
                lost = lost or (message, key)
            key = extended(key, message)
            messages.append(message)
        broken, why = self._explained(frame, *lost) if lost else (None, "")
        if found and found.tree in self._trees:
            self._trees.move_to_end(found.tree)
        restored = replace(chat, messages=tuple(messages))
        return Reading(restored, frame, key, found, follows, broken, why)

    def add(
        self,
        reading: Reading,
        call_id: str,
        said: Assistant,
        sample: Sample,
        *,
        with_ids: bool,
        repaired: bool,
        passed: int | None = None,
    ) -> None:
        """Keep the reply that was sampled for the request that was read. `passed`: as of `Reply`."""
        parent = reading.reply
        if parent and (parent.tree not in self._trees or (with_ids and not sample.built_ids)):
            parent = None
        tree = parent.tree if parent else Tree(reading.frame)
        ids = _ids(parent, sample) if with_ids and sample.invalid_reason is None else None
        reply = Reply(call_id, reading.key, said, tree, ids, len(sample.prompt_ids), sample.ended, repaired, passed)
        tree.replies.append(reply)
        self._after.setdefault(reply.before, []).append(reply)
        for call in said.tool_calls:
            self._calls[call.id] = _Call(reply, call, call.arguments)
        if not said.tool_calls:
            self._texts[said.text.strip()] = reply
        tree.size += reply.size
        self._size += reply.size
        self._trees[tree] = None
        self._trees.move_to_end(tree)
        while self._size > self._most:
            self._forget(next(iter(self._trees)))

    def _find(self, before: bytes, said: Assistant) -> Reply | None:
        """The reply, of those sampled for this very conversation, that says this; of several, the latest."""
        replies = self._after.get(before, ())
        return next(
            (reply for reply in reversed(replies) if same_reply(reply.told, said, repaired=reply.repaired)), None
        )

    def _sampled(self, call: ToolCall, tool: Tool | None) -> ToolCall:
        """The call with its arguments as they were sampled, where the history has them written anew."""
        known = self._calls.get(call.id)
        if known is None or known.sampled.name != call.name or known.sampled.arguments == call.arguments:
            return call
        if known.written != call.arguments:
            if not same_arguments(known.sampled.arguments, call.arguments, tool):
                return call
            known.written = call.arguments
        return known.sampled

    def _explained(self, frame: Frame, said: Assistant, before: bytes) -> tuple[Broken, str]:
        """Why this reply of the history was not found after what stands before it."""
        reply = next((self._calls[call.id].reply for call in said.tool_calls if call.id in self._calls), None)
        if reply is None and not said.tool_calls:
            reply = self._texts.get(said.text.strip())
        if reply is None and (siblings := self._after.get(before)):
            reply = siblings[-1]
        if reply is None:
            if self._forgotten:
                return "forgotten", "the history holds a reply that polar did not sample, or sampled too long ago"
            return "foreign_reply", "the history holds a reply that polar did not sample"
        was = reply.tree.frame
        if was.tools != frame.tools:
            return "tools_changed", f"call {reply.call_id} was given other tools"
        if was.thinking != frame.thinking:
            return "thinking_changed", f"call {reply.call_id} was asked to think otherwise"
        if was.system != frame.system:
            return "system_changed", f"call {reply.call_id} was given another system text"
        if not same_reply(reply.told, said, repaired=reply.repaired):
            return "reply_edited", f"the reply of call {reply.call_id} came back changed"
        return "history_edited", f"what stands before the reply of call {reply.call_id} came back changed"

    def _forget(self, tree: Tree) -> None:
        del self._trees[tree]
        self._forgotten = True
        self._size -= tree.size
        for reply in tree.replies:
            siblings = self._after[reply.before]
            siblings.remove(reply)
            if not siblings:
                del self._after[reply.before]
            for call in reply.said.tool_calls:
                if self._calls[call.id].reply is reply:
                    del self._calls[call.id]
            text = reply.said.text.strip()
            if self._texts.get(text) is reply:
                del self._texts[text]


def _ids(parent: Reply | None, sample: Sample) -> Ids:
    """The call's prompt and response, by reference where they begin with the parent's."""
    base = parent.ids if parent else None
    known = len(base) if base else 0
    return Ids.of(base, known, sample.prompt_ids[known:], sample.response_ids)
