"""The variables of task.toml: `${NAME}` and `${NAME:-default}` are those of the machine that runs the task.

Only those that the user names are handed over: a task folder from elsewhere asks for none of this machine's secrets.
"""

import os
import re
from collections.abc import Collection, Mapping
from typing import Final

_TEMPLATE: Final = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")


def missing(variables: Mapping[str, str], allowed: Collection[str]) -> list[str]:
    """The machine's variables that are needed, and not named by the user or not set."""
    found = (_TEMPLATE.fullmatch(value) for value in variables.values())
    needed = [match[1] for match in found if match and match[2] is None]
    return [name for name in needed if name not in allowed or name not in os.environ]


def resolved(variables: Mapping[str, str], allowed: Collection[str]) -> dict[str, str]:
    """With the machine's values in place. `missing` has said that all are there."""
    return {name: _value(text, allowed) for name, text in variables.items()}


def _value(text: str, allowed: Collection[str]) -> str:
    match = _TEMPLATE.fullmatch(text)
    if match is None:
        return text
    if match[1] in allowed and match[1] in os.environ:
        return os.environ[match[1]]
    return match[2] or ""
