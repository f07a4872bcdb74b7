"""The input items of a Responses request, as the canonical Chat's messages."""

from dataclasses import dataclass, field

from polar_mitm.chat import Assistant, Json, Part, Text, Thinking, ToolResult, text_of
from polar_mitm.providers.common import Notes
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_common import (
    file_part,
    image,
    json_schema,
    note_fates,
    placeholder,
    text_part,
    thinking,
)
from polar_mitm.providers.openai_responses_compaction import is_trigger, recalled
from polar_mitm.providers.openai_responses_fates import FATES, HOSTED_ITEMS, IDLE
from polar_mitm.providers.openai_responses_seal import unseal
from polar_mitm.providers.openai_responses_tools import Toolbox
from polar_mitm.providers.openai_responses_typed import patch_result, shell_result
from polar_mitm.providers.openai_transcript import Transcript

FOREIGN_SEAL = "sealed by another service; the model is given what is readable"

PART = "input.*.content.*"

READ = frozenset({"input_text", "output_text", "text", "refusal", "input_image", "input_file"})
SCREENSHOT = "the model is given no computer"


@dataclass(slots=True)
class Reading:
    """What the input of one request adds up to."""

    transcript: Transcript
    toolbox: Toolbox
    notes: Notes
    thinking: Thinking = field(default_factory=Thinking)
    json_schema: Json | None = None


def configure(fields: Fields, reading: Reading) -> None:
    """Read how much the model is to think and what form its text is to have, where these fields say so."""
    if (reasoning := fields.child("reasoning")) and reasoning.has("effort"):
        reading.thinking = thinking(reasoning.text("effort"))
    if (text := fields.child("text")) and text.has("format"):
        reading.json_schema = json_schema(text.child("format"))


def read_input(fields: Fields, reading: Reading) -> bool:
    """Read every item. Gives whether the input ends in asking for a compaction."""
    if isinstance(fields.get("input"), str):
        reading.transcript.user((text_part(fields, "input"),))
        return False
    items = [*fields.children("input")]
    compacting = bool(items) and is_trigger(items[-1].value)
    for item in items[:-1] if compacting else items:
        _read_item(item, reading)
    return compacting


def _read_item(item: Fields, reading: Reading) -> None:
    """Everything the assistant did between two user or tool items is one message, as the model sampled it."""
    transcript, notes = reading.transcript, reading.notes
    kind = item.text("type") if item.has("type") or not item.has("role") else "message"
    if kind in HOSTED_ITEMS or (kind.startswith("tool_search_") and item.text_or("execution") != "client"):
        notes.add(f"{item.path}.{kind}", "it belongs to a hosted tool, and nobody here runs those")
        return
    note_fates(notes, item, FATES, IDLE, within="input.*")
    match kind:
        case "message":
            _read_message(item, transcript, notes)
        case "function_call" | "custom_tool_call":
            transcript.continue_assistant(Assistant(tool_calls=(reading.toolbox.history_call(item),)))
        case "local_shell_call" | "shell_call" | "apply_patch_call" | "tool_search_call":
            if (action := item.child("action")) is not None:
                note_fates(notes, action, FATES, IDLE, within="input.*.action")
            transcript.continue_assistant(Assistant(tool_calls=(reading.toolbox.history_call(item),)))
        case "reasoning":
            if reasoning := _replayed_reasoning(item, notes):
                transcript.continue_assistant(Assistant(reasoning=reasoning))
        case "additional_tools":
            reading.toolbox.add(item.children("tools"))
        case "configuration_update":
            configure(item, reading)
        case "compaction":
            _recall(item, reading)
        case "compaction_trigger":
            notes.add(f"{item.path}.{kind}", "only the last item can ask for a compaction")
        case "item_reference":
            raise item.error("type", "nothing is stored at the service; send the item itself")
        case _ if kind.endswith("_output"):
            transcript.result(_result(item, kind, reading))
        case _:
            raise item.error("type", f"unknown input item {kind!r}")


def _result(item: Fields, kind: str, reading: Reading) -> ToolResult:
    match kind:
        case "function_call_output" | "custom_tool_call_output":
            return ToolResult(item.text("call_id"), _content(item, "output", reading.notes))
        case "local_shell_call_output":
            call_id = item.text_or("call_id") or item.text("id")  # this item's id is the call's
            return ToolResult(call_id, _content(item, "output", reading.notes))
        case "shell_call_output":
            return ToolResult(item.text("call_id"), (Text(shell_result(item)),))
        case "apply_patch_call_output":
            return ToolResult(item.text("call_id"), (Text(patch_result(item)),))
        case "tool_search_output":
            return ToolResult(item.text("call_id"), (Text(reading.toolbox.found(item.children("tools"))),))
        case _:
            raise item.error("type", f"unknown input item {kind!r}")


def _recall(item: Fields, reading: Reading) -> None:
    summary = unseal(item.text("encrypted_content"))
    if summary is None:
        reading.notes.add(item.at("encrypted_content"), FOREIGN_SEAL)
    elif summary:
        reading.transcript.user(recalled(summary).parts)


def _read_message(item: Fields, transcript: Transcript, notes: Notes) -> None:
    if not item.has("content"):
        raise item.error("content", "field required")
    content = _content(item, "content", notes)
    match item.text("role"):
        case "system" | "developer":
            transcript.system(text_of(content))
        case "user":
            transcript.user(content)
        case "assistant":
            transcript.continue_assistant(Assistant(text_of(content)))
        case role:
            raise item.error("role", f"unknown role {role!r}; it is one of system, developer, user, assistant")


def _content(item: Fields, name: str, notes: Notes) -> tuple[Part, ...]:
    content = item.get(name)
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(fields, notes) for fields in item.children(name))


def _part(fields: Fields, notes: Notes) -> Part:
    kind = fields.text("type")
    if kind in READ:
        note_fates(notes, fields, FATES, IDLE, within=PART)
    match kind:
        case "input_text" | "output_text" | "text":
            return text_part(fields)
        case "refusal":
            return text_part(fields, "refusal")
        case "input_image":
            if fields.has("image_url"):
                return image(fields, "image_url", notes)
            notes.add(fields.at("file_id"), "there is no file store")
            return placeholder("an image")
        case "input_file":
            return file_part(fields, notes, fields.at(kind))
        case "input_audio":
            notes.add(fields.at(kind), "the model reads text and images")
            return placeholder("an audio recording")
        case "computer_screenshot":
            notes.add(fields.at(kind), SCREENSHOT)
            return placeholder("a screenshot")
        case _:
            raise fields.error("type", f"unknown content part {kind!r}")


def _replayed_reasoning(item: Fields, notes: Notes) -> str:
    """The reasoning text of a replayed item: what polar sealed, else its content, else its summary."""
    if item.has("encrypted_content"):
        if (text := unseal(item.text("encrypted_content"))) is not None:
            return text
        notes.add(item.at("encrypted_content"), FOREIGN_SEAL)
    parts = [*item.children("content")] or [*item.children("summary")]
    return "\n".join(filter(None, (part.text("text") for part in parts)))
