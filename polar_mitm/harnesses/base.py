"""What every harness module offers: its facts, how to find it, how to start it on a task, how to read its answer.

A harness module is pure but for `find` and `answer`, which look at the disk. It starts nothing itself (a sandbox does),
and knows neither proxy nor engine: `Access` says where the model is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from polar_mitm.errors import NotReady
from polar_mitm.harnesses.actions import Action, ToolCall
from polar_mitm.home import home
from polar_mitm.sandboxes.base import Layout

type Mode = Literal["base-url", "proxy"]
"""How a harness is set up: told where the model is, or left to believe that it talks to its provider."""

type Intercept = Literal["base-url", "proxy", "hosts", "transparent"]
"""`base-url`: the harness is told where the model is. `proxy`: it is told of a proxy. `hosts`, `transparent`: it is
told nothing; the names of the providers, or every name and address, lead to polar.
"""


def mode_of(intercept: Intercept) -> Mode:
    return "base-url" if intercept == "base-url" else "proxy"


class HarnessMissing(NotReady):
    """A harness is not installed, too old, or cannot run here. The message ends with the mend."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} {what}: run `polar harness install {name}`")
        self.name = name


class InstallFailed(NotReady):
    """A harness could not be installed; says why, in npm's or pip's words where it was theirs."""


@dataclass(slots=True, frozen=True)
class Npm:
    """A package of npm."""

    package: str
    version: str
    """The one that is installed when none is asked for."""
    node: bool = False
    """Whether it is JavaScript. The others bring a binary."""
    executables: tuple[str, ...] = ()
    """Files of the package, as patterns, that its install script would have made executable."""


@dataclass(slots=True, frozen=True)
class Pip:
    """A package of PyPI, which gets a virtual environment of its own."""

    package: str
    version: str
    module: str
    """What `python -m` runs."""


type Source = Npm | Pip


@dataclass(slots=True, frozen=True)
class Facts:
    """What is known of a harness, for the tables and for checks before a run."""

    source: Source | None
    """None: it is the user's own program, and nothing is installed."""
    known_good: tuple[str, ...]
    """Versions that `make live-matrix` ran on. Others may work."""
    minimum: str
    """The oldest version whose requests polar knows."""
    first_prompt: int
    """About how many tokens its first request has, with an instruction of one line; by SmolLM2's tokenizer."""
    providers: Mapping[Mode, str]
    """The API that it speaks."""
    session_ids: Mapping[Mode, tuple[str, ...]] = field(default_factory=dict)
    """What it sends in each turn that names its session, as in the call record's `harness_ids`."""
    side_requests: tuple[str, ...] = ()
    """What it asks for beside the turns of its task, and what comes of it."""
    calls_model: bool = True
    sub_agents: bool = False
    """Whether its model can start other agents."""
    sub_agent_finish: ToolCall | None = None
    """The call with which a sub-agent must end. None: it ends with a turn that calls nothing."""
    takes: frozenset[Literal["extra_instructions", "mcp_servers", "max_turns", "login", "command"]] = frozenset()
    """The parts of an assignment, beside the instruction, that it has a place for. A login works in proxy mode only."""


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

    mode: Mode
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


@dataclass(slots=True, frozen=True)
class McpServer:
    """A tool server that the harness starts inside its sandbox and speaks to by standard input and output."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Assignment:
    """What the harness is to do, and under which conditions."""

    instruction: str
    """May be megabytes: it goes in by standard input or a file, never by the command line or a shell."""
    extra_instructions: str = ""
    """Added to the harness's own system text."""
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)
    max_turns: int | None = None
    """Model calls after which the harness gives up, as it counts them."""
    login: bool = False
    """Give it a made-up account in place of an API key: it then sends what it sends for people with a subscription."""
    command: tuple[str, ...] = ()
    """The program, where the harness is any command."""


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
    def FACTS(self) -> Facts: ...  # noqa: N802

    @property
    def FINISH(self) -> ToolCall | None: ...  # noqa: N802

    """The call with which its model must end a run. None: it ends with a turn that calls nothing."""

    def find(self) -> Installed:
        """What is installed. Raises HarnessMissing."""

    def prepare(self, installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
        """How to start it, once, without a person. `refusals` has said that it takes all of the assignment."""

    def tool_call(self, action: Action, layout: Layout) -> ToolCall:
        """The call of its own tool that does this."""

    def delegate(self, prompt: str) -> ToolCall:
        """The call that starts a sub-agent on this prompt. For harnesses whose facts say that they have some."""

    def answer(self, stdout: str, home: Path) -> str:
        """The final text of a run, out of what it printed or left in its HOME. Empty when it gave none."""


def install_folder(name: str) -> Path:
    return home() / "harnesses" / name


def refusals(harness: Harness, mode: Mode, assignment: Assignment) -> list[str]:
    """What of the assignment this harness has no place for, each with the mend. Empty: it takes all of it."""
    facts, name = harness.FACTS, harness.NAME
    found = []
    if assignment.extra_instructions and "extra_instructions" not in facts.takes:
        found.append(f"{name} takes no extra instructions: put them into the instruction")
    if assignment.mcp_servers and "mcp_servers" not in facts.takes:
        found.append(f"{name} takes no MCP servers: leave mcp_servers out, or choose another harness")
    if assignment.max_turns is not None and "max_turns" not in facts.takes:
        found.append(f"{name} has no limit of turns: leave max_turns out; timeout_s holds for every harness")
    if assignment.login and "login" not in facts.takes:
        found.append(f"{name} has no login: leave it out")
    elif assignment.login and mode != "proxy":
        found.append("a login goes to the provider's own host: it needs intercept: proxy")
    if ("command" in facts.takes) != bool(assignment.command):
        mend = "needs `command`, the program and its arguments" if not assignment.command else "takes no `command`"
        found.append(f"the harness {name} {mend}")
    return found


PATIENCE_MS = 3_600_000
"""How long a harness with a limit of its own is told to wait for an answer: as long as polar waits for the engine."""


def answer_budget(max_model_len: int, ceiling: int) -> int:
    """Tokens to allow one answer: a quarter of the window, so that a conversation has room, up to the harness's own."""
    return max(256, min(ceiling, max_model_len // 4))
