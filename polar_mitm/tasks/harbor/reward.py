"""Rewards out of the files that a test left: `reward.json` before `reward.txt`, as harbor reads them.

JSON holds an object of names and finite numbers, text one finite number. Whatever else lies there is no reward.
"""

import json
import math
import os
from pathlib import Path
from typing import Final

from polar_mitm.tasks.left import NotAFile, opened

JSON: Final = "reward.json"
TEXT: Final = "reward.txt"

LARGEST: Final = 1024 * 1024
"""Bytes of a reward file."""


class NoReward(Exception):
    """Says why there is none."""


def remove(folder: Path) -> None:
    """Take away what lies where the rewards will, whatever it is. Raises OSError."""
    for name in (JSON, TEXT):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            _remove_tree(path)
        else:
            path.unlink(missing_ok=True)


def read(folder: Path) -> dict[str, float]:
    """The rewards by name; `reward` where text has no names. Raises NoReward."""
    if (folder / JSON).exists():
        return _named(_text(folder, JSON))
    if (folder / TEXT).exists():
        return {"reward": _number(_text(folder, TEXT))}
    raise NoReward(f"the tests left neither {JSON} nor {TEXT} in /logs/verifier")


def _named(text: str) -> dict[str, float]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoReward(f"{JSON} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise NoReward(f"{JSON} holds {_shown(text)}: expected an object of names and numbers")
    if not found:
        raise NoReward(f"{JSON} names no reward")
    rewards = {}
    for name, value in found.items():
        if not isinstance(value, int | float):
            raise NoReward(f"{JSON}: {name} is {_shown(json.dumps(value))}: expected a number")
        try:
            rewards[name] = float(value)
        except OverflowError:
            rewards[name] = math.inf
        if not math.isfinite(rewards[name]):
            raise NoReward(f"{JSON}: {name} is not finite")
    return rewards


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise NoReward(f"{TEXT} holds {_shown(text)}: expected a number") from None
    if not math.isfinite(number):
        raise NoReward(f"{TEXT} holds {number}, which is not finite")
    return number


def _text(folder: Path, name: str) -> str:
    """Of a regular file in the folder. The tests may have linked to it, but not out of the folder."""
    path = Path(os.path.realpath(folder / name))
    if not path.is_relative_to(os.path.realpath(folder)):
        raise NoReward(f"{name} is a link that leads out of /logs/verifier")
    try:
        with opened(path) as file:
            content = file.read(LARGEST + 1)
    except NotAFile as error:
        raise NoReward(f"{name} {error}") from error
    if len(content) > LARGEST:
        raise NoReward(f"{name} has more than {LARGEST:,} bytes")
    if not content.strip():
        raise NoReward(f"{name} is empty")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise NoReward(f"{name} is no UTF-8 text: {error.reason}") from None


def _remove_tree(path: Path) -> None:
    for folder, folders, files in path.walk(top_down=False):
        for name in files:
            (folder / name).unlink()
        for name in folders:
            inner = folder / name
            inner.unlink() if inner.is_symlink() else inner.rmdir()
    path.rmdir()


def _shown(text: str) -> str:
    return text.strip() if len(text) < 100 else f"{text.strip()[:100]}..."
