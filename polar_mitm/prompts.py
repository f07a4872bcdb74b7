"""How prompts reach the engine: the words that the engine's client, the call record and the proxy share."""

from typing import Literal

type Tokens = Literal["exact", "chat"]
"""`exact`: as token ids, built from those the engine saw and sampled before. `chat`: as messages, which it renders."""

type Broken = Literal[
    "tools_changed",
    "thinking_changed",
    "system_changed",
    "history_edited",
    "reply_edited",
    "foreign_reply",
    "forgotten",
    "image",
    "end_token",
    "template",
    "window",
    "engine",
]
"""Why a prompt could not be built from what was sampled."""
