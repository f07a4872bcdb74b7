"""Harnesses by name. One file a harness; adding one is a file and a line here."""

from polar_mitm.harnesses import claude_code, codex, pi
from polar_mitm.harnesses.base import Access, Harness, HarnessMissing, Installed, Prepared

_ALL: tuple[Harness, ...] = (pi, claude_code, codex)

HARNESSES: dict[str, Harness] = {harness.NAME: harness for harness in _ALL}

__all__ = ["HARNESSES", "Access", "Harness", "HarnessMissing", "Installed", "Prepared"]
