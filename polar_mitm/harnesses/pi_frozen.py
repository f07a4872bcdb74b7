"""pi under its old name, @mariozechner/pi-coding-agent, which was frozen at 0.73.1 when the project moved.

Older papers and forks use it. What it sends differs from today's pi: SDK user agents, no message threads.
"""

from pathlib import Path

from polar_mitm.harnesses import pi
from polar_mitm.harnesses.actions import Action, ToolCall
from polar_mitm.harnesses.base import Access, Assignment, Facts, Installed, Npm, Prepared
from polar_mitm.harnesses.npm import find_script
from polar_mitm.sandboxes.base import Layout

NAME = "pi-frozen"
SOURCE = Npm("@mariozechner/pi-coding-agent", "0.73.1", node=True)
FACTS = Facts(
    source=SOURCE,
    known_good=("0.73.1",),
    minimum="0.73.1",
    first_prompt=1_400,
    providers=pi.FACTS.providers,
    takes=pi.FACTS.takes,
)
FINISH: ToolCall | None = None

FLAGS = ("--print", "--no-session", "--offline")


def find() -> Installed:
    return find_script(NAME, SOURCE, FACTS.minimum, "dist/cli.js")


def prepare(installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
    return pi.start(installed, access, layout, assignment, FLAGS, api_key=pi.KEY_VARIABLE)


def tool_call(action: Action, layout: Layout) -> ToolCall:
    return pi.tool_call(action, layout)


def delegate(prompt: str) -> ToolCall:
    raise NotImplementedError(f"{NAME} has no sub-agents")


def answer(stdout: str, home: Path) -> str:
    return pi.answer(stdout, home)
