"""The conversation of a Chat Completions request, as the canonical Chat's messages."""

from polar_mitm.chat import Assistant, Message, Part, Text, ToolCall, ToolResult, text_of
from polar_mitm.providers.common import Notes
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_chat_fates import FATES, IDLE, READS
from polar_mitm.providers.openai_chat_tools import Toolbox
from polar_mitm.providers.openai_common import file_part, image, note_fates, placeholder, refuse, text_part
from polar_mitm.providers.openai_freeform import freeform_arguments
from polar_mitm.providers.openai_transcript import Transcript

PART, CALL = "messages.*.content.*", "messages.*.tool_calls.*"


def messages_of(fields: Fields, tools: Toolbox, notes: Notes) -> tuple[Message, ...]:
    transcript = Transcript(notes, "messages")
    for message in fields.children("messages"):
        note_fates(notes, message, FATES, IDLE, within="messages.*")
        match message.text("role"):
            case "system" | "developer":
                transcript.system(text_of(_content(message, notes)))
            case "user":
                if not message.has("content"):
                    raise message.error("content", "field required")
                transcript.user(_content(message, notes))
            case "assistant":
                transcript.assistant(_assistant(message, tools, notes))
            case "tool":
                transcript.result(ToolResult(message.text("tool_call_id"), _content(message, notes)))
            case "function":
                raise message.error("role", "the deprecated role 'function' is not served; send tool messages")
            case role:
                raise message.error("role", f"unknown role {role!r}; it is one of {', '.join(ROLES)}")
    messages = transcript.messages()
    if not messages:
        raise fields.error("messages", "there is no content in any message")
    return messages


ROLES = ("system", "developer", "user", "assistant", "tool")


def _content(message: Fields, notes: Notes) -> tuple[Part, ...]:
    content = message.get("content")
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(fields, notes) for fields in message.children("content"))


def _part(fields: Fields, notes: Notes) -> Part:
    kind = fields.text("type")
    note_fates(notes, fields, FATES, within=PART)
    match kind:
        case "text":
            return text_part(fields)
        case "refusal":
            return text_part(fields, "refusal")
        case "image_url" if isinstance(fields.get("image_url"), str):
            return image(fields, "image_url", notes)
        case "image_url":
            holder = fields.required("image_url")
            note_fates(notes, holder, FATES, {f"{PART}.image_url.detail": ("auto",)}, within=f"{PART}.image_url")
            return image(holder, "url", notes)
        case "file":
            return file_part(fields.child("file") or Fields({}, fields.at("file")), notes, fields.at("file"))
        case "input_audio":
            notes.add(fields.at("input_audio"), READS)
            return placeholder("an audio recording")
        case _:
            raise fields.error("type", f"unknown content part {kind!r}")


def _assistant(message: Fields, tools: Toolbox, notes: Notes) -> Assistant:
    if message.has("function_call"):
        raise refuse(message, "function_call", FATES, within="messages.*")
    # Clients send reasoning back under the one name or the other, whichever their provider library knows.
    reasoning = message.text_or("reasoning_content") or message.text_or("reasoning")
    text = text_of(_content(message, notes)) or message.text_or("refusal")
    calls = tuple(_history_call(call, tools, notes) for call in message.children("tool_calls"))
    return Assistant(text, reasoning, calls)


def _history_call(call: Fields, tools: Toolbox, notes: Notes) -> ToolCall:
    note_fates(notes, call, FATES, within=CALL)
    match call.text_or("type", "function"):
        case "function":
            function = call.required("function")
            note_fates(notes, function, FATES, within=f"{CALL}.function")
            name = function.text("name")
            return ToolCall(call.text("id"), tools.name_of("function", name) or name, function.text_or("arguments"))
        case "custom":
            custom = call.required("custom")
            note_fates(notes, custom, FATES, within=f"{CALL}.custom")
            name = custom.text("name")
            arguments = freeform_arguments(custom.text("input"))
            return ToolCall(call.text("id"), tools.name_of("custom", name) or name, arguments)
        case kind:
            raise call.error("type", f"unknown kind of tool call {kind!r}")
