"""The Anthropic Messages API, `POST .../messages`: what a request means.

The replies' form is in `anthropic_reply`. Counting tokens, batches and models are paths of that API not known here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile

import orjson

from polar_mitm.chat import (
    Assistant,
    ChatRequest,
    Image,
    Json,
    Message,
    Part,
    Sampling,
    System,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    User,
)
from polar_mitm.providers.anthropic_reply import (
    error,
    keepalive,
    render,
    stop_reason,
    stream,
    stream_error,
    stream_type,
)
from polar_mitm.providers.base import Ask, Request, Route
from polar_mitm.providers.common import (
    Notes,
    arguments_text,
    bounded_integer,
    bounded_number,
    folded_system,
    header_ids,
)
from polar_mitm.providers.fields import Fields

__all__ = [
    "HOSTS",
    "NAME",
    "SESSION_HEADERS",
    "error",
    "keepalive",
    "parse",
    "recognise",
    "render",
    "stop_reason",
    "stream",
    "stream_error",
    "stream_type",
]

NAME = "anthropic"
HOSTS = ("api.anthropic.com",)
SESSION_HEADERS = (
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "x-claude-code-agent-type",
    "x-claude-code-prompt-id",
    "x-claude-code-request-class",
    "x-client-request-id",
    "x-session-id",
    "x-session-affinity",
    "x-parent-session-id",
)

READ_FIELDS = (
    *("model", "messages", "system", "tools", "tool_choice", "stream", "metadata", "output_config", "output_format"),
    *("max_tokens", "temperature", "top_p", "top_k", "stop_sequences"),
)

# Claude Code's first system block: a hash of the request and more, new in every request, so that no prompt would ever
# continue the one before.
BILLING_LINE = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")

# Blocks of tools that Anthropic's servers run, and bookkeeping of its servers: no text that a model here could use.
SERVER_BLOCKS = frozenset(
    {
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "browser_state",
        "code_execution_tool_result",
        "compaction",
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

SESSION_AT_END = re.compile(r"_session_([0-9a-f-]{36})\Z")

UNREADABLE_DOCUMENT = "[a document that this model cannot read was left out]"


def recognise(request: Request) -> Route | None:
    if request.method == "POST" and request.path.rpartition("/")[2] == "messages":
        return Route("generate")
    return None


@dataclass(slots=True)
class _Found:
    """What reading the conversation turned up beside the messages."""

    notes: Notes = field(default_factory=Notes)
    loaded_tools: set[str] = field(default_factory=set)
    """Names of deferred tools that a tool search, or the client, has put before the model."""


def parse(request: Request, route: Route, body: Json) -> Ask:
    fields = Fields.of_body(body)
    if fields.has("thread"):
        # A continued thread holds the new messages only. Refused in these words, pi sends the whole conversation.
        raise fields.error("thread", "Extra inputs are not permitted")
    found = _Found()
    model = fields.text("model")
    messages = _messages(fields, found)
    tools, missing = _tools(fields, found)
    chat = ChatRequest(
        messages=messages,
        tools=tools,
        tool_choice=_tool_choice(fields, tools, missing),
        parallel_tool_calls=_parallel_tool_calls(fields),
        sampling=Sampling(
            max_tokens=bounded_integer(fields, "max_tokens", 1),
            temperature=bounded_number(fields, "temperature", 0, 2),
            top_p=bounded_number(fields, "top_p", 0, 1),
            top_k=bounded_integer(fields, "top_k", 0),
            stop=fields.texts("stop_sequences"),
        ),
        json_schema=_json_schema(fields, found.notes),
    )
    _note_rest(fields, READ_FIELDS, found.notes)
    chat = replace(chat, not_carried=found.notes.all())
    return Ask(chat, model, fields.flag("stream") or False, _harness_ids(request, fields))


def _messages(fields: Fields, found: _Found) -> tuple[Message, ...]:
    """The conversation. What a client adds after the model's answer never changes a message before that answer.

    Adjacent messages of one side are one turn, as they are for Anthropic. System texts that lead become the first
    message; one in the middle stays in its place, as a part of the user turn it stands in.
    """
    turns = list(fields.children("messages"))
    if not turns:
        raise fields.error("messages", "at least one message is required")
    leading = list(takewhile(lambda turn: _role(turn) == "system", turns))
    system = [*_system_blocks(fields, found), *(_system_text(turn, found) for turn in leading)]
    messages: list[Message] = [System(text)] if (text := "\n\n".join(filter(None, system))) else []
    for from_model, adjacent in groupby(turns[len(leading) :], key=lambda turn: _role(turn) == "assistant"):
        run = list(adjacent)
        messages.extend([_assistant(run, found)] if from_model else _user_turn(run, found))
    if not messages:
        raise fields.error("messages", "there is no text in any message")
    if isinstance(messages[-1], Assistant):
        found.notes.add("messages", "the answer is a new message, it does not continue the assistant's last one")
    return tuple(messages)


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


def _system_blocks(fields: Fields, found: _Found) -> Iterator[str]:
    for block in _blocks(fields, "system", required=False):
        text = _only_text(block)
        if match := BILLING_LINE.match(text):
            found.notes.add(block.path, f"changes with every request: {match[0].rstrip()}")
            text = text[match.end() :]
        yield text


def _system_text(turn: Fields, found: _Found) -> str:
    """The text of a `role: system` message."""
    texts = []
    _note_rest(turn, ("role", "content"), found.notes)
    for block in _blocks(turn, "content", required=False):
        if block.text("type") in TOOL_CHANGES:
            _tool_change(block, found)
        else:
            texts.append(_only_text(block))
    return "\n\n".join(texts)


def _tool_change(block: Fields, found: _Found) -> None:
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


def _user_turn(run: Iterable[Fields], found: _Found) -> Iterator[Message]:
    """The messages between two of the model's: every tool result first, then one user message with the rest, in order.

    A text between a call and its result would be refused by the engine, and clients put new text before late results.
    """
    results: list[ToolResult] = []
    parts: list[Part] = []
    asked = False
    for turn in run:
        if _role(turn) == "system":
            if text := _system_text(turn, found):
                parts.append(folded_system(text))
            continue
        asked = True
        _note_rest(turn, ("role", "content"), found.notes)
        for block in _blocks(turn, "content"):
            if block.text("type") == "tool_result":
                results.append(_tool_result(block, found))
            else:
                parts.extend(_parts(block, found))
    yield from results
    if parts or (asked and not results):
        yield User(tuple(parts))


def _tool_result(block: Fields, found: _Found) -> ToolResult:
    call_id = block.text("tool_use_id")
    parts = tuple(part for inner in _blocks(block, "content", required=False) for part in _parts(inner, found))
    # A failure without a word would read as a success without output.
    if block.flag("is_error") and not any(part != Text("") for part in parts):
        parts = (Text("error"),)
    return ToolResult(call_id, parts)


def _parts(block: Fields, found: _Found) -> Iterator[Part]:
    """A block of the user's side, or of a tool result, as parts of a message."""
    match block.text("type"):
        case "text":
            yield Text(block.text("text"))
        case "image":
            yield _image(block)
        case "document":
            yield from _document(block, found)
        case "search_result":
            texts = [_only_text(inner) for inner in block.children("content")]
            yield Text("\n".join([block.text("title"), block.text("source"), *texts]))
        case "tool_reference":
            name = block.text("tool_name")
            found.loaded_tools.add(name)
            yield Text(f"Tool loaded: {name}")
        case kind if kind in TOOL_CHANGES:
            _tool_change(block, found)
        case kind if kind in SERVER_BLOCKS:
            found.notes.add(block.path, f"{kind}: nothing here runs Anthropic's server tools")
        case kind:
            raise block.error("type", f"unknown block type {kind!r}")


def _image(block: Fields) -> Image:
    source = block.required("source")
    match source.text("type"):
        case "base64":
            return Image(f"data:{source.text('media_type')};base64,{source.text('data')}")
        case "url" if source.text("url").startswith("data:"):
            return Image(source.text("url"))
        case "url" | "file" as kind:
            raise source.error("type", f"images by {kind} are not served: nothing is fetched from the network")
        case kind:
            raise source.error("type", f"unknown image source {kind!r}")


def _document(block: Fields, found: _Found) -> Iterator[Part]:
    source = block.required("source")
    match source.text("type"):
        case "text":
            yield Text(source.text("data"))
        case "content":
            for inner in _blocks(source, "content"):
                yield from _parts(inner, found)
        case kind:
            found.notes.add(source.path, f"a document by {kind}: the model reads text and images only")
            yield Text(UNREADABLE_DOCUMENT)


def _assistant(run: Iterable[Fields], found: _Found) -> Assistant:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for turn in run:
        _note_rest(turn, ("role", "content"), found.notes)
        for block in _blocks(turn, "content"):
            match block.text("type"):
                case "text":
                    texts.append(block.text("text"))
                case "thinking":
                    thoughts.append(block.text("thinking"))
                case "redacted_thinking":
                    found.notes.add(block.path, "redacted_thinking: only Anthropic's servers can read it")
                case "tool_use":
                    arguments = arguments_text(block.object("input") or {})
                    calls.append(ToolCall(block.text("id"), block.text("name"), arguments))
                case kind if kind in SERVER_BLOCKS:
                    found.notes.add(block.path, f"{kind}: nothing here runs Anthropic's server tools")
                case kind:
                    raise block.error("type", f"unknown block type {kind!r} in an assistant message")
    return Assistant("\n".join(filter(None, texts)), "\n".join(filter(None, thoughts)), tuple(calls))


def _tools(fields: Fields, found: _Found) -> tuple[tuple[Tool, ...], Mapping[str, str]]:
    """The tools the model is given, and by name the reason for each one it is not given."""
    tools: list[Tool] = []
    missing: dict[str, str] = {}
    for spec in fields.children("tools"):
        kind = spec.text_or("type", "custom")
        name = spec.text("name") if kind == "custom" else spec.text_or("name", kind)
        if kind != "custom":
            missing[name] = f"{name}: a {kind} tool has no schema of its own and nothing here runs it"
        elif spec.flag("defer_loading") and name not in found.loaded_tools:
            missing[name] = f"{name}: deferred until a tool search finds it"
        else:
            tools.append(_tool(spec, found.notes))
        if name in missing:
            found.notes.add(f"tools.{name}", missing[name])
    return tuple(tools), missing


def _tool(spec: Fields, notes: Notes) -> Tool:
    known = ("name", "description", "input_schema", "type", "strict", "defer_loading", "eager_input_streaming")
    _note_rest(spec, known, notes)
    return Tool(
        spec.text("name"), spec.text_or("description"), spec.required("input_schema").value, spec.flag("strict")
    )


def _tool_choice(fields: Fields, tools: tuple[Tool, ...], missing: Mapping[str, str]) -> ToolChoice:
    choice = fields.child("tool_choice")
    match choice and choice.text("type"):
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none" if tools else "auto")
        case "any" if tools:
            return ToolChoice("required")
        case "any":
            raise fields.error("tool_choice", "; ".join(["no tool to choose from", *missing.values()]))
        case "tool" if choice:
            name = choice.text("name")
            if not any(tool.name == name for tool in tools):
                raise choice.error("name", missing.get(name, f"tool {name!r} is not in `tools`"))
            return ToolChoice("named", name)
        case kind:
            raise fields.error("tool_choice.type", f"unknown choice {kind!r}; it is one of auto, any, tool, none")


def _parallel_tool_calls(fields: Fields) -> bool | None:
    choice = fields.child("tool_choice")
    disabled = choice.flag("disable_parallel_tool_use") if choice else None
    return None if disabled is None else not disabled


def _json_schema(fields: Fields, notes: Notes) -> Json | None:
    """The schema of `output_config.format`, or of `output_format`, its older place."""
    config = fields.child("output_config")
    if config:
        _note_rest(config, ("format",), notes)
    format_ = (config and config.child("format")) or fields.child("output_format")
    if not format_:
        return None
    if (kind := format_.text("type")) != "json_schema":
        raise format_.error("type", f"unknown format {kind!r}; json_schema is served")
    return format_.required("schema").value


def _note_rest(fields: Fields, known: tuple[str, ...], notes: Notes) -> None:
    # cache_control marks what Anthropic bills less; it asks nothing of a model.
    for name in fields.others((*known, "cache_control")):
        notes.add(fields.at(name), "no counterpart in the engine's Chat API")


def _harness_ids(request: Request, fields: Fields) -> Mapping[str, str]:
    """Ids from the headers, and the session that Claude Code packs into `metadata.user_id`."""
    ids = header_ids(request, SESSION_HEADERS)
    metadata = fields.child("metadata")
    if session := _packed_session(metadata.text_or("user_id") if metadata else ""):
        ids["session_id"] = session
    return ids


def _packed_session(user_id: str) -> str | None:
    """The session id in `{"device_id": ..., "session_id": ...}`, or at the end of the older `..._session_<uuid>`."""
    if match := SESSION_AT_END.search(user_id):
        return match[1]
    try:
        packed = orjson.loads(user_id)
    except orjson.JSONDecodeError:
        return None
    session = packed.get("session_id") if isinstance(packed, dict) else None
    return session if isinstance(session, str) else None
