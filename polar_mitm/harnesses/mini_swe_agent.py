"""mini-swe-agent: one tool, bash, and a loop of a hundred lines. A first request is about 950 prompt tokens.

It speaks OpenAI Chat through LiteLLM; in proxy mode to api.openai.com. It ends when its model runs a command that
prints a certain line. Facts are from the source and from runs of version 2.4.6.
"""

import json
import re
from pathlib import Path
from typing import Any

from polar_mitm.harnesses.actions import Action, ToolCall, in_shell
from polar_mitm.harnesses.base import Access, Assignment, Facts, Installed, Pip, Prepared, answer_budget
from polar_mitm.harnesses.environment import environment
from polar_mitm.harnesses.npm import script_folder
from polar_mitm.harnesses.pip import find_module
from polar_mitm.sandboxes.base import Layout

NAME = "mini-swe-agent"
SOURCE = Pip("mini-swe-agent", "2.4.6", module="minisweagent.run.mini")
FACTS = Facts(
    source=SOURCE,
    known_good=("2.4.6",),
    minimum="2.4.6",
    first_prompt=950,
    providers={"base-url": "openai-chat", "proxy": "openai-chat"},
    takes=frozenset({"max_turns"}),
)
FINISH: ToolCall | None = ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})

CONFIG_FILE = ".config/mini-swe-agent/polar.yaml"
TRAJECTORY_FILE = ".config/mini-swe-agent/last.traj.json"

MAX_ANSWER = 32_000


def find() -> Installed:
    return find_module(NAME, SOURCE, FACTS.minimum)


def prepare(installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
    """The instruction goes into a configuration file: on the command line it would have to be short."""
    folder = layout.home / ".config/mini-swe-agent"
    env = environment(access, layout, path_first=[script_folder(installed)]) | {
        "OPENAI_API_KEY": access.key,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_GLOBAL_CONFIG_DIR": str(folder),
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_COST_TRACKING": "ignore_errors",  # no price list knows the model
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    config = layout.home / CONFIG_FILE
    return Prepared(
        argv=[
            *installed.command,
            "--config",
            "mini.yaml",
            "--config",
            str(config),
            "--model",
            f"openai/{access.model}",
        ],
        env=env,
        files={CONFIG_FILE: _config(access, layout, assignment)},
    )


def tool_call(action: Action, layout: Layout) -> ToolCall:
    return "bash", {"command": in_shell(action)}


def delegate(prompt: str) -> ToolCall:
    raise NotImplementedError(f"{NAME} has no sub-agents")


def answer(stdout: str, home: Path) -> str:
    """What it submitted, else the last text that its model gave."""
    try:
        trajectory: Any = json.loads(_read(home, TRAJECTORY_FILE))
        submission, messages = trajectory["info"]["submission"], trajectory["messages"]
        last = [said["content"] for said in messages if said["role"] == "assistant" and said["content"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""  # never written, or by a program that the agent ran
    return str(submission or (last or [""])[-1]).strip()


def _read(home: Path, name: str) -> bytes:
    """A file of the harness's own. The agent may have put a link or a pipe in its place: OSError for those."""
    path = home / name
    if not path.resolve(strict=True).is_relative_to(home.resolve()) or not path.is_file():
        raise OSError(f"{path} is no file of the harness's")
    return path.read_bytes()


def _config(access: Access, layout: Layout, assignment: Assignment) -> str:
    """YAML. What it leaves out is mini.yaml's."""
    options: dict[str, Any] = {
        "drop_params": True,
        "max_tokens": answer_budget(access.max_model_len, MAX_ANSWER),
    }
    if access.mode == "base-url":
        options["api_base"] = f"{access.base_url}/v1"
    parts = {
        "agent": {
            "agent_class": "default",  # the other one asks a person when a limit is reached
            "step_limit": assignment.max_turns or 0,
            "cost_limit": 0,
            "output_path": str(layout.home / TRAJECTORY_FILE),
        },
        "environment": {"environment_class": "local"},
        "model": {"model_class": "litellm", "cost_tracking": "ignore_errors", "model_kwargs": options},
    }
    lines = [f"{name}: {json.dumps(part)}" for name, part in parts.items()]
    return "\n".join([*lines, f"run: {{task: {_quoted(assignment.instruction)}}}", ""])


def _quoted(text: str) -> str:
    """A YAML string. JSON's would not do: YAML takes the two halves of an escaped emoji for two signs."""
    return '"' + re.sub(r"[^ !#-\[\]-~]", lambda sign: f"\\U{ord(sign[0]):08x}", text) + '"'
