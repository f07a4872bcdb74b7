"""Tools of the Messages API that come without a schema and that the client itself runs, as functions for a Chat model.

The names and types of their fields are those that Anthropic publishes; the descriptions are polar's own. A call goes
back under the tool's own name. Toolsets are in `anthropic_toolsets`; tools that Anthropic's servers run are nowhere.
"""

from collections.abc import Callable, Mapping

from polar_mitm.chat import Json
from polar_mitm.providers.fields import Fields

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}
NUMBER: Json = {"type": "number"}
BOOLEAN: Json = {"type": "boolean"}


def numbers(count: int) -> Json:
    return {"type": "array", "items": INTEGER, "minItems": count, "maxItems": count}


def word(*words: str) -> Json:
    return {"type": "string", "enum": [*words]}


def object_of(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": [*required]}


POINT, REGION, LINES = numbers(2), numbers(4), numbers(2)
DIRECTION = word("up", "down", "left", "right")


def _bash(spec: Fields) -> tuple[str, Json]:
    description = "Runs a command in a shell that stays open from call to call. `restart` begins a new shell."
    return description, object_of({"command": STRING, "restart": BOOLEAN})


EDITS: Mapping[str, str] = {
    "view": "`view` shows a file, or only its lines in `view_range` (the first and the last, -1 for the end), or lists "
    "a directory",
    "create": "`create` writes a file that has the text `file_text`",
    "str_replace": "`str_replace` puts `new_str` in the place of `old_str`, which must occur exactly once",
    "insert": "`insert` puts `{inserted}` after line `insert_line`, 0 for the beginning",
    "undo_edit": "`undo_edit` takes back the last edit of the file",
    "delete": "`delete` removes a file or directory",
    "rename": "`rename` moves `old_path` to `new_path`",
}
EDITED: Json = {
    "path": STRING,
    "view_range": LINES,
    "file_text": STRING,
    "old_str": STRING,
    "new_str": STRING,
    "insert_line": INTEGER,
}


def _editor(*commands: str, inserted: str) -> Callable[[Fields], tuple[str, Json]]:
    """An editor of these commands; `inserted` is the field that holds what is inserted."""

    def offered(spec: Fields) -> tuple[str, Json]:
        description = f"Views and edits text files. {_edits(commands, inserted)}"
        if (most := spec.integer("max_characters")) is not None:
            description += f" At most {most} characters of a file are shown."
        fields = {**EDITED, inserted: STRING}
        return description, object_of({"command": word(*commands), **fields}, "command", "path")

    return offered


def _edits(commands: tuple[str, ...], inserted: str) -> str:
    return "; ".join(EDITS[command].format(inserted=inserted) for command in commands) + "."


def _memory(spec: Fields) -> tuple[str, Json]:
    commands = ("view", "create", "str_replace", "insert", "delete", "rename")
    description = (
        f"Keeps notes in files under /memories, for later conversations too. {_edits(commands, 'insert_text')}"
    )
    fields = {**EDITED, "insert_text": STRING, "old_path": STRING, "new_path": STRING}
    return description, object_of({"command": word(*commands), **fields}, "command")


ACTIONS = (
    "key",
    "type",
    "mouse_move",
    "left_click",
    "left_click_drag",
    "right_click",
    "middle_click",
    "double_click",
    "screenshot",
    "cursor_position",
)
LATER_ACTIONS = ("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click")


def _computer(*actions: str, zooms: bool = False) -> Callable[[Fields], tuple[str, Json]]:
    def offered(spec: Fields) -> tuple[str, Json]:
        width, height = _pixels(spec, "display_width_px"), _pixels(spec, "display_height_px")
        description = (
            f"Uses the mouse, the keyboard and the screen of a computer. The screen has {width} x {height} pixels; a "
            "coordinate is [x, y], from its upper left corner. `text` is what to type, or the keys to press."
        )
        if (number := spec.integer("display_number")) is not None:
            description += f" The X11 display is :{number}."
        fields: Json = {"coordinate": POINT, "text": STRING}
        offered_actions = actions
        if "scroll" in actions:
            fields |= {"start_coordinate": POINT, "scroll_direction": DIRECTION, "scroll_amount": INTEGER}
            fields |= {"duration": {**NUMBER, "description": "Seconds."}}
        if zooms and spec.flag("enable_zoom"):
            offered_actions = (*actions, "zoom")
            fields |= {"region": {**REGION, "description": "[x, y, x, y]: two corners of what to show enlarged."}}
        return description, object_of({"action": word(*offered_actions), **fields}, "action")

    return offered


def _pixels(spec: Fields, name: str) -> int:
    if (value := spec.integer(name)) is None:
        raise spec.error(name, "field required")
    return value


OLD_EDITS = ("view", "create", "str_replace", "insert", "undo_edit")

CLIENT_TOOLS: Mapping[str, Callable[[Fields], tuple[str, Json]]] = {
    "bash_20241022": _bash,
    "bash_20250124": _bash,
    "text_editor_20241022": _editor(*OLD_EDITS, inserted="new_str"),
    "text_editor_20250124": _editor(*OLD_EDITS, inserted="new_str"),
    "text_editor_20250429": _editor(*OLD_EDITS[:-1], inserted="insert_text"),
    "text_editor_20250728": _editor(*OLD_EDITS[:-1], inserted="insert_text"),
    "memory_20250818": _memory,
    "computer_20241022": _computer(*ACTIONS),
    "computer_20250124": _computer(*ACTIONS, *LATER_ACTIONS),
    "computer_20251124": _computer(*ACTIONS, *LATER_ACTIONS, zooms=True),
}
"""By type: the description and the parameters of the function, for a tool as it was declared."""
