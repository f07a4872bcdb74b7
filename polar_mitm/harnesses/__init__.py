"""Harnesses by name. One file a harness; adding one is a file and a line here."""

from polar_mitm.harnesses import (
    claude_code,
    codex,
    command,
    gemini_cli,
    mini_swe_agent,
    opencode,
    oracle,
    pi,
    pi_frozen,
    qwen_code,
)
from polar_mitm.harnesses.base import (
    Access,
    Assignment,
    Harness,
    HarnessMissing,
    Installed,
    McpServer,
    Prepared,
    refusals,
)

_ALL: tuple[Harness, ...] = (
    pi,
    pi_frozen,
    claude_code,
    codex,
    qwen_code,
    gemini_cli,
    opencode,
    mini_swe_agent,
    command,
)

HARNESSES: dict[str, Harness] = {harness.NAME: harness for harness in _ALL}

RUNNABLE: dict[str, Harness] = HARNESSES | {oracle.NAME: oracle}
"""What a scenario may name: the oracle is no harness, but runs in the place of one."""

__all__ = [
    "HARNESSES",
    "RUNNABLE",
    "Access",
    "Assignment",
    "Harness",
    "HarnessMissing",
    "Installed",
    "McpServer",
    "Prepared",
    "refusals",
]
