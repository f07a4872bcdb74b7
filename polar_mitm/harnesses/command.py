"""Any program as a harness: the scenario's `command`, started as it stands, with all that it needs in variables.

The instruction is its standard input, and the file `$POLAR_INSTRUCTION`. The key and the address of the model are in
the variables that the providers' SDKs read; in proxy mode there is no address, and the SDK's own host is answered.
"""

from pathlib import Path

from polar_mitm.harnesses.actions import Action, ToolCall, in_shell
from polar_mitm.harnesses.base import Access, Assignment, Facts, Installed, Prepared
from polar_mitm.harnesses.environment import environment
from polar_mitm.sandboxes.base import Layout

NAME = "command"
FACTS = Facts(
    source=None,
    known_good=(),
    minimum="",
    first_prompt=0,
    providers={"base-url": "any", "proxy": "any"},
    side_requests=("its own affair: what is no model call gets a 404",),
    takes=frozenset({"command"}),
)
FINISH: ToolCall | None = None

INSTRUCTION_FILE = ".polar/instruction.txt"

KEY_VARIABLES = ("POLAR_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")
BASE_URL_VARIABLES = {
    "POLAR_BASE_URL": "",
    "OPENAI_BASE_URL": "/v1",
    "ANTHROPIC_BASE_URL": "",
    "GOOGLE_GEMINI_BASE_URL": "",
}
"""And what follows the session's address in each."""


def find() -> Installed:
    return Installed("", [], [])


def prepare(installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
    env = environment(access, layout) | dict.fromkeys(KEY_VARIABLES, access.key)
    env |= {
        "POLAR_MODEL": access.model,
        "POLAR_MAX_MODEL_LEN": str(access.max_model_len),
        "POLAR_INSTRUCTION": str(layout.home / INSTRUCTION_FILE),
    }
    if access.mode == "base-url":
        env |= {variable: access.base_url + path for variable, path in BASE_URL_VARIABLES.items()}
    return Prepared(
        argv=list(assignment.command),
        env=env,
        files={INSTRUCTION_FILE: assignment.instruction},
        stdin=assignment.instruction.encode(),
    )


def tool_call(action: Action, layout: Layout) -> ToolCall:
    """For scripts: a program whose tool has another name is scripted with `tool`."""
    return "shell", {"command": in_shell(action)}


def delegate(prompt: str) -> ToolCall:
    raise NotImplementedError(f"{NAME} has no sub-agents")


def answer(stdout: str, home: Path) -> str:
    return stdout.strip()
