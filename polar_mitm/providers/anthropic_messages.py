"""The conversation of an Anthropic Messages request, as Chat messages."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile

from polar_mitm.chat import Assistant, Image, Message, Part, System, Text, ToolCall, ToolResult
from polar_mitm.providers.anthropic_fates import NO_SERVER_TOOLS, give_fates
from polar_mitm.providers.anthropic_toolsets import browser_state, flat_name
from polar_mitm.providers.common import Notes, arguments_text, folded_system
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.turns import Turns

# Claude Code's first system block: a hash of the request and more, new in every request, so that no prompt would ever
# continue the one before.
BILLING_LINE = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")

# Blocks of tools that Anthropic's servers run, and bookkeeping of its servers: no text that a model here could use.
SERVER_BLOCKS = frozenset(
    {
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "container_upload",
        "fallback",
        "mcp_tool_listing",
        "mcp_tool_result",
        "mcp_tool_use",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)

TOOL_CHANGES = ("tool_addition", "tool_removal")

# The table's names for messages and for content blocks.
MESSAGE, BLOCK = "messages.*", "messages.*.content.*"

UNREADABLE_DOCUMENT = "[a document that this model cannot read was left out]"
UNREADABLE_IMAGE = "[an image that could not be fetched was left out]"
LEFT_OUT = "[content that this model cannot read was left out]"


@dataclass(slots=True)
class Found:
    """What reading the conversation turned up beside the messages."""

    notes: Notes = field(default_factory=Notes)
    loaded_tools: set[str] = field(default_factory=set)
    """Names of deferred tools that a tool search, or the client, has put before the model."""


def messages_of(fields: Fields, found: Found) -> tuple[Message, ...]:
    """The conversation. What a client adds after the model's answer never changes a message before that answer.

    Adjacent messages of one side are one turn, as they are for Anthropic. System texts that lead become the first
    message; one in the middle stays in its place, as a part of the user turn it stands in. An answer without anything
    in it is no turn.
    """
    turns = list(fields.children("messages"))
    if not turns:
        raise fields.error("messages", "at least one message is required")
    leading = list(takewhile(lambda turn: _role(turn) == "system", turns))
    system = [*_system_blocks(fields, found), *(_system_text(turn, found) for turn in leading)]
    conversation = Turns()
    conversation.add([System(text)] if (text := "\n\n".join(filter(None, system))) else [])
    calls: tuple[ToolCall, ...] = ()
    for from_model, adjacent in groupby(turns[len(leading) :], key=lambda turn: _role(turn) == "assistant"):
        run = list(adjacent)
        if from_model:
            answer = _assistant(run, found)
            calls = answer.tool_calls
            conversation.add([answer] if answer != Assistant() else [])
        else:
            results, parts = _user_turn(run, found)
            conversation.add(_in_call_order(calls, results, run[0]))
            conversation.say(parts)
    messages = conversation.all()
    if not messages:
        raise fields.error("messages", "there is no text in any message")
    if isinstance(messages[-1], Assistant):
        found.notes.add("messages", "the answer is a new message, it does not continue the assistant's last one")
    return messages


def _role(turn: Fields) -> str:
    role = turn.text("role")
    if role not in ("user", "assistant", "system"):
        raise turn.error("role", f"unknown role {role!r}; it is one of user, assistant, system")
    return role


def _blocks(fields: Fields, name: str, *, required: bool = True) -> list[Fields]:
    """The content blocks of a field that is a list of blocks or one string, which stands for one text block."""
    if required and not fields.has(name):
        raise fields.error(name, "field required")
    if isinstance(text := fields.get(name), str):
        return [Fields({"type": "text", "text": text}, fields.at(name))]
    return list(fields.children(name))


def _system_blocks(fields: Fields, found: Found) -> Iterator[str]:
    for block in _blocks(fields, "system", required=False):
        give_fates(block, found.notes, BLOCK)
        text = _only_text(block)
        if match := BILLING_LINE.match(text):
            found.notes.add(block.path, f"changes with every request: {match[0].rstrip()}")
            text = text[match.end() :]
        yield text


def _system_text(turn: Fields, found: Found) -> str:
    """The text of a `role: system` message."""
    texts = []
    give_fates(turn, found.notes, MESSAGE)
    for block in _blocks(turn, "content", required=False):
        if block.text("type") in TOOL_CHANGES:
            _tool_change(block, found)
        else:
            texts.append(_only_text(block))
    return "\n\n".join(filter(None, texts))


def _tool_change(block: Fields, found: Found) -> None:
    """A tool put before the model, or taken away, in the middle of the conversation."""
    tool = block.required("tool")
    if block.text("type") == "tool_addition" and tool.text("type") == "tool_reference":
        found.loaded_tools.add(tool.text("name"))
    else:
        found.notes.add(block.path, "the model has the tools of the request's `tools` list throughout")


def _only_text(block: Fields) -> str:
    if (kind := block.text("type")) != "text":
        raise block.error("type", f"unknown block type {kind!r}; a system prompt has text blocks only")
    return block.text("text")


def _user_turn(run: Iterable[Fields], found: Found) -> tuple[list[ToolResult], list[Part]]:
    """The messages between two of the model's: their tool results, and their other parts, each in order."""
    results: list[ToolResult] = []
    parts: list[Part] = []
    empty: Fields | None = None
    for turn in run:
        if _role(turn) == "system":
            if text := _system_text(turn, found):
                parts.append(folded_system(text))
            continue
        give_fates(turn, found.notes, MESSAGE)
        before = len(results) + len(parts)
        blocks = _blocks(turn, "content")
        for block in blocks:
            if block.text("type") == "tool_result":
                results.append(_tool_result(block, found))
            else:
                parts.extend(_parts(block, found))
        if not blocks:
            empty = turn
        elif len(results) + len(parts) == before:
            parts.append(Text(LEFT_OUT))
    if empty and not parts and not results:
        raise empty.error("", "user messages must have non-empty content")
    return results, parts


def _in_call_order(calls: Sequence[ToolCall], results: Sequence[ToolResult], turn: Fields) -> list[ToolResult]:
    """The results of the calls before them, in the order of the calls: many chat templates tell them apart by nothing
    else. A call without exactly one result, and a result without a call, are refused in Anthropic's words.
    """
    given: dict[str, ToolResult] = {}
    for result in results:
        if result.call_id in given:
            problem = "each tool_use must have a single result. Found multiple `tool_result` blocks with id"
            raise turn.error("", f"{problem}: {result.call_id}")
        given[result.call_id] = result
    if missing := [call.id for call in calls if call.id not in given]:
        problem = "`tool_use` ids were found without `tool_result` blocks immediately after"
        rule = "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        raise turn.error("", f"{problem}: {', '.join(missing)}. {rule}")
    if unknown := given.keys() - {call.id for call in calls}:
        problem = "unexpected `tool_use_id` found in `tool_result` blocks"
        rule = "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
        raise turn.error("", f"{problem}: {', '.join(sorted(unknown))}. {rule}")
    return [given[call.id] for call in calls]


def _tool_result(block: Fields, found: Found) -> ToolResult:
    give_fates(block, found.notes, BLOCK)
    call_id = block.text("tool_use_id")
    parts = tuple(part for inner in _blocks(block, "content", required=False) for part in _parts(inner, found))
    # A failure without a word would read as a success without output.
    if block.flag("is_error") and not any(part != Text("") for part in parts):
        parts = (Text("error"),)
    return ToolResult(call_id, parts)


def _parts(block: Fields, found: Found) -> Iterator[Part]:
    """A block of the user's side, or of a tool result, as parts of a message."""
    if _is_servers(block, found):
        return
    give_fates(block, found.notes, BLOCK)
    match block.text("type"):
        case "text":
            yield Text(block.text("text"))
        case "image":
            yield _image(block, found)
        case "document":
            yield from _document(block, found)
        case "search_result":
            texts = [_only_text(inner) for inner in block.children("content")]
            yield Text("\n".join(filter(None, (block.text("title"), block.text("source"), *texts))))
        case "browser_state":
            yield Text(browser_state(block))
        case "tool_reference":
            name = block.text("tool_name")
            found.loaded_tools.add(name)
            yield Text(f"Tool loaded: {name}")
        case kind:
            raise block.error("type", f"unknown block type {kind!r}")


def _is_servers(block: Fields, found: Found) -> bool:
    """Whether the block says nothing to a model here. It is noted by its kind, and a tool that it adds is added."""
    kind = block.text("type")
    if kind in TOOL_CHANGES:
        _tool_change(block, found)
        return True
    if kind in SERVER_BLOCKS:
        found.notes.add(f"{block.path}.{kind}", NO_SERVER_TOOLS.why)
        return True
    return False


def _image(block: Fields, found: Found) -> Part:
    source = block.required("source")
    match source.text("type"):
        case "base64":
            return Image(f"data:{source.text('media_type')};base64,{source.text('data')}")
        case "url" if source.text("url").startswith("data:"):
            return Image(source.text("url"))
        case "url" | "file" as kind:
            found.notes.add(source.path, f"an image by {kind}: nothing is fetched from the network")
            return Text(UNREADABLE_IMAGE)
        case kind:
            raise source.error("type", f"unknown image source {kind!r}")


def _document(block: Fields, found: Found) -> Iterator[Part]:
    source = block.required("source")
    if head := "\n".join(filter(None, (block.text_or("title"), block.text_or("context")))):
        yield Text(head)
    match source.text("type"):
        case "text":
            yield Text(source.text("data"))
        case "content":
            for inner in _blocks(source, "content"):
                yield from _parts(inner, found)
        case kind:
            found.notes.add(source.path, f"a document by {kind}: the model reads text and images only")
            yield Text(UNREADABLE_DOCUMENT)


def _assistant(run: Sequence[Fields], found: Found) -> Assistant:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for turn in run:
        give_fates(turn, found.notes, MESSAGE)
        for block in _blocks(turn, "content"):
            if _is_servers(block, found):
                continue
            kind = block.text("type")
            if kind == "compaction":
                # The summary that stands for the conversation before it; null when the server failed to make one.
                texts.append(block.text_or("content"))
                continue
            give_fates(block, found.notes, BLOCK)
            match kind:
                case "text":
                    texts.append(block.text("text"))
                case "thinking":
                    thoughts.append(block.text("thinking"))
                case "redacted_thinking":
                    pass
                case "tool_use":
                    arguments = arguments_text(block.object("input") or {})
                    name = flat_name(block.text("name"), block.text_or("toolset_name"))
                    calls.append(ToolCall(block.text("id"), name, arguments))
                case _:
                    raise block.error("type", f"unknown block type {kind!r} in an assistant message")
    if len({call.id for call in calls}) < len(calls):
        raise run[-1].error("", "`tool_use` ids must be unique")
    return Assistant("\n".join(filter(None, texts)), "\n".join(filter(None, thoughts)), tuple(calls))
