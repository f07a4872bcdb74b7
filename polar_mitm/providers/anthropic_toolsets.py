"""Anthropic's toolsets that the client itself runs: one declaration stands for many tools, which it calls members.

The model sees a function for each member, under the toolset's name and its own; its calls go back as the member's. The
names and types of the fields are those that Anthropic publishes; the descriptions are polar's own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from polar_mitm.chat import Json, Tool
from polar_mitm.providers.anthropic_client_tools import (
    BOOLEAN,
    DIRECTION,
    INTEGER,
    NUMBER,
    POINT,
    REGION,
    STRING,
    object_of,
    word,
)
from polar_mitm.providers.common import arguments_text
from polar_mitm.providers.fields import Fields

type Members = Mapping[str, tuple[str, Json]]
"""By name: a member's description and the parameters of its function."""

KEYS = {"text": {**STRING, "description": "Keys to hold down meanwhile, such as ctrl+shift."}}
CLICK: Json = object_of({"coordinate": POINT, **KEYS})

COMPUTER: Members = {
    "key": ("Presses a key or a combination such as ctrl+s.", object_of({"text": STRING, "repeat": INTEGER}, "text")),
    "hold_key": ("Holds keys for some seconds.", object_of({"text": STRING, "duration": INTEGER}, "text", "duration")),
    "type": ("Types a text.", object_of({"text": STRING}, "text")),
    "cursor_position": ("Tells where the mouse is.", object_of({})),
    "mouse_move": ("Moves the mouse.", object_of({"coordinate": POINT}, "coordinate")),
    "left_mouse_down": ("Presses the left button.", object_of({})),
    "left_mouse_up": ("Lets the left button go.", object_of({})),
    "left_click": ("Clicks, where the mouse is or at [x, y].", CLICK),
    "left_click_drag": (
        "Drags from one place to another.",
        object_of({"start_coordinate": POINT, "coordinate": POINT, **KEYS}, "start_coordinate", "coordinate"),
    ),
    "right_click": ("Clicks with the right button.", CLICK),
    "middle_click": ("Clicks with the middle button.", CLICK),
    "double_click": ("Clicks twice.", CLICK),
    "triple_click": ("Clicks three times.", CLICK),
    "scroll": (
        "Turns the mouse wheel by some clicks.",
        object_of(
            {"scroll_direction": DIRECTION, "scroll_amount": INTEGER, "coordinate": POINT, **KEYS},
            "scroll_direction",
            "scroll_amount",
        ),
    ),
    "wait": ("Waits for some seconds.", object_of({"duration": INTEGER}, "duration")),
    "screenshot": ("Shows the screen.", object_of({})),
    "zoom": ("Shows a part of the screen enlarged: [x, y, x, y].", object_of({"region": REGION}, "region")),
}

TAB = {"tab_id": STRING}
PLACE: Json = object_of({"type": word("coordinate"), "x": INTEGER, "y": INTEGER}, "type", "x", "y")
ELEMENT: Json = object_of({"type": word("ref"), "ref": STRING}, "type", "ref")
TARGET: Json = {"anyOf": [PLACE, ELEMENT]}


def _in_tab(properties: Json, *required: str) -> Json:
    """The parameters of a member that acts on a tab, the active one unless it is named."""
    return object_of({**properties, **TAB}, *required)


BROWSER_CLICK = _in_tab({"target": TARGET, "modifiers": STRING}, "target")
BROWSER: Members = {
    "navigate": (
        "Opens an address in a tab, or goes `back`, `forward` or `reload`s.",
        _in_tab({"url": STRING}, "url"),
    ),
    "list_tabs": ("Lists the open tabs.", object_of({})),
    "new_tab": ("Opens an empty tab.", object_of({})),
    "switch_tab": ("Makes a tab the active one.", object_of(TAB, "tab_id")),
    "close_tab": ("Closes a tab.", object_of(TAB, "tab_id")),
    "read_page": (
        "Lists the elements of the page, or those within one of them, each with a reference.",
        _in_tab({"ref": STRING, "depth": INTEGER, "filter": word("all", "interactive")}),
    ),
    "get_page_text": ("Gives the page's text.", _in_tab({})),
    "read_console": ("Shows the page's console.", _in_tab({})),
    "read_network": ("Shows the page's network requests.", _in_tab({})),
    "find": (
        "Finds elements of the page by what they are, each with a reference.",
        _in_tab({"query": STRING}, "query"),
    ),
    "form_input": (
        "Sets the value of a form's element.",
        _in_tab({"target": ELEMENT, "value": {"anyOf": [STRING, NUMBER, BOOLEAN]}}, "target", "value"),
    ),
    "file_upload": (
        "Gives files to a form's element.",
        _in_tab(
            {
                "target": ELEMENT,
                "paths": {"type": "array", "items": STRING},
                "document_ids": {"type": "array", "items": STRING},
            },
            "target",
        ),
    ),
    "scroll_to": ("Scrolls an element into view.", _in_tab({"target": ELEMENT}, "target")),
    "screenshot": ("Shows the page.", _in_tab({})),
    "zoom": ("Shows a part of the page enlarged: [x, y, x, y].", _in_tab({"region": REGION}, "region")),
    "left_click": ("Clicks a place or an element.", BROWSER_CLICK),
    "right_click": ("Clicks with the right button.", BROWSER_CLICK),
    "middle_click": ("Clicks with the middle button.", BROWSER_CLICK),
    "double_click": ("Clicks twice.", BROWSER_CLICK),
    "triple_click": ("Clicks three times.", BROWSER_CLICK),
    "hover": ("Moves the mouse over a place or an element.", _in_tab({"target": TARGET}, "target")),
    "left_click_drag": (
        "Drags from one place to another.",
        _in_tab({"from": PLACE, "target": PLACE}, "from", "target"),
    ),
    "left_mouse_down": ("Presses the left button at a place.", _in_tab({"target": PLACE}, "target")),
    "left_mouse_up": ("Lets the left button go at a place.", _in_tab({"target": PLACE}, "target")),
    "mouse_move": ("Moves the mouse.", _in_tab({"target": PLACE}, "target")),
    "scroll": (
        "Turns the mouse wheel at a place.",
        _in_tab(
            {"target": PLACE, "scroll_direction": DIRECTION, "scroll_amount": INTEGER}, "target", "scroll_direction"
        ),
    ),
    "type": ("Types a text.", _in_tab({"text": STRING}, "text")),
    "key": ("Presses a key or a combination such as ctrl+s.", _in_tab({"text": STRING, "repeat": INTEGER}, "text")),
    "hold_key": ("Holds keys for some seconds.", _in_tab({"text": STRING, "duration": NUMBER}, "text", "duration")),
    "wait": ("Waits for some seconds.", _in_tab({"duration": NUMBER}, "duration")),
    "javascript_exec": ("Runs JavaScript in the page.", _in_tab({"text": STRING}, "text")),
}


@dataclass(slots=True, frozen=True)
class Toolset:
    name: str
    """As its members' calls say it."""
    members: Members
    off: frozenset[str] = frozenset()
    """Members that are not given unless the declaration switches them on."""


TOOLSETS: Mapping[str, Toolset] = {
    "computer_toolset_20260801": Toolset("computer", COMPUTER),
    "browser_toolset_20260801": Toolset(
        "browser", BROWSER, frozenset({"file_upload", "read_console", "read_network", "javascript_exec"})
    ),
}
"""By the type of the declaration."""


@dataclass(slots=True, frozen=True)
class Member:
    """A tool of a toolset, as the client knows it."""

    toolset: str
    name: str


def flat_name(name: str, toolset: str) -> str:
    """The function name that the model sees for a tool of a toolset."""
    return f"{toolset}__{name}" if toolset else name


def members(spec: Fields) -> Iterator[tuple[Tool, Member, bool]]:
    """The tools of a declared toolset that are switched on, and whether each is deferred."""
    toolset = TOOLSETS[spec.text("type")]
    configs = spec.child("configs") or Fields({}, spec.at("configs"))
    for name, (description, parameters) in toolset.members.items():
        config = configs.child(name) or Fields({}, configs.at(name))
        enabled = config.flag("enabled")
        if name not in toolset.off if enabled is None else enabled:
            tool = Tool(flat_name(name, toolset.name), description, parameters)
            yield tool, Member(toolset.name, name), bool(config.flag("defer_loading"))
    if unknown := configs.others(toolset.members):
        raise configs.error(unknown[0], f"the {toolset.name} toolset has no such tool")


def browser_state(block: Fields) -> str:
    """The open tabs, and what else a call has brought about, for the model to read."""
    lines = [
        f"[tab {tab.text('tab_id')}{', active' if tab.flag('active') else ''}] {tab.text('title')} {tab.text('url')}"
        for tab in block.children("tabs")
    ]
    lines += [arguments_text(change.value) for change in block.children("state_changes")]
    return "\n".join(line.rstrip() for line in lines) or "No tab is open."
