"""What every harness module offers: how to find it, how to start it on an instruction, how to read its answer.

A harness module is pure but for `find`, which looks at the disk. It starts nothing itself (a sandbox does), and knows
neither proxy nor engine: `Access` says where the model is.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from polar_mitm.harnesses.actions import Action, ToolCall
from polar_mitm.home import home
from polar_mitm.sandboxes.base import Layout


class HarnessMissing(Exception):
    """A harness is not installed, too old, or cannot run here. The message ends with the mend."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} {what}: run `polar harness install {name}`")
        self.name = name


@dataclass(slots=True, frozen=True)
class Installed:
    version: str
    read_only: list[Path]
    """Folders that a sandbox must show at the same path."""
    command: list[str]
    """The start of the command line, absolute paths."""


@dataclass(slots=True, frozen=True)
class Access:
    """Where the model is and how to ask for it, as seen from inside the sandbox."""

    mode: Literal["base-url", "proxy"]
    base_url: str
    """`http://127.0.0.1:8081/s/ses_x`: no trailing slash, no `/v1`. Used in base-url mode."""
    proxy_url: str
    """`http://ses_x:token@127.0.0.1:8080`. Empty: no proxy variables at all."""
    key: str
    """The session's token, sent as the provider's API key."""
    model: str
    """The name to ask for."""
    max_model_len: int
    """Tokens that prompt and answer may have together."""


@dataclass(slots=True)
class Prepared:
    """One start of a harness. `files` are relative to HOME, and hold no secret: those are in `env`."""

    argv: list[str]
    env: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    stdin: bytes | None = None


class Harness(Protocol):
    """The shape of a harness module; `polar_mitm.harnesses.HARNESSES` lists them."""

    @property
    def NAME(self) -> str: ...  # noqa: N802  (a module constant)

    @property
    def PACKAGES(self) -> tuple[str, ...]: ...  # noqa: N802

    """npm packages, each pinned: `name@version`."""

    @property
    def MINIMUM(self) -> str: ...  # noqa: N802

    """The oldest version whose requests polar knows."""

    def find(self) -> Installed:
        """What is installed. Raises HarnessMissing."""

    def prepare(self, installed: Installed, access: Access, layout: Layout, instruction: str) -> Prepared:
        """How to start it on `instruction`, once, without a person."""

    def tool_call(self, action: Action, layout: Layout) -> ToolCall:
        """The call of its own tool that does this."""

    def answer(self, stdout: str) -> str:
        """The final text of a run, out of what it printed. Empty when it gave none."""


def install_folder(name: str) -> Path:
    return home() / "harnesses" / name


def package_version(name: str, package: str, minimum: str) -> str:
    """The version of an installed npm package. Raises HarnessMissing when it is missing, unreadable or too old."""
    manifest = install_folder(name) / "node_modules" / package / "package.json"
    try:
        version = json.loads(manifest.read_bytes())["version"]
    except FileNotFoundError:
        raise HarnessMissing(name, "is not installed") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HarnessMissing(name, f"is installed but broken ({manifest}: {error})") from error
    if not isinstance(version, str) or version_tuple(version) < version_tuple(minimum):
        raise HarnessMissing(name, f"{version} is too old, {minimum} is the oldest that works")
    return version


def version_tuple(version: str) -> tuple[int, ...]:
    """`1.6.0-beta.2` as (1, 6, 0). Text that is no version is (), older than all."""
    numbers = version.removeprefix("v").split("+")[0].split("-")[0].split(".")
    return tuple(int(number) for number in numbers) if all(map(str.isdecimal, numbers)) else ()


def answer_budget(max_model_len: int, ceiling: int) -> int:
    """Tokens to allow one answer: a quarter of the window, so that a conversation has room, up to the harness's own."""
    return max(256, min(ceiling, max_model_len // 4))
