"""No agent: it runs the solution that a Harbor task brings, and calls no model. So a task and its tests are checked.

As harbor's agent of this name: `/solution/solve.sh`, whose output goes to `/logs/agent/oracle.txt`.
"""

from pathlib import Path

from polar_mitm.harnesses.actions import Action, ToolCall
from polar_mitm.harnesses.base import Access, Assignment, Facts, Installed, Prepared
from polar_mitm.sandboxes.base import Layout

NAME = "oracle"
FACTS = Facts(
    source=None,
    known_good=(),
    minimum="",
    first_prompt=0,
    providers={},
    calls_model=False,
    takes=frozenset({"extra_instructions", "mcp_servers", "max_turns"}),  # which it does without
)
FINISH: ToolCall | None = None

# By bash where there is one: it also runs a script without a first line.
_SCRIPT = """
command="(/solution/solve.sh) > /logs/agent/oracle.txt 2>&1"
command -v bash >/dev/null && exec bash -c "$command"
exec sh -c "$command"
"""


def find() -> Installed:
    return Installed("", [], [])


def prepare(installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
    return Prepared(argv=["/bin/sh", "-c", _SCRIPT], env={"HOME": str(layout.home)})


def tool_call(action: Action, layout: Layout) -> ToolCall:
    raise NotImplementedError("the oracle calls no model, which could call a tool")


def delegate(prompt: str) -> ToolCall:
    raise NotImplementedError("the oracle calls no model, which could start an agent")


def answer(stdout: str, home: Path) -> str:
    return ""
