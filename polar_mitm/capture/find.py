"""Which captures a path stands for: a file of calls, a session's folder, or a folder of sessions."""

import os
from pathlib import Path
from typing import Final

from polar_mitm.capture.folder import SessionFolder

NAMES: Final = frozenset({"session.json", "calls.jsonl", "calls.jsonl.zst"})
"""A folder that holds one of them is a session's."""


def find_sessions(path: Path) -> list[SessionFolder]:
    """The session folders at or below a folder, sorted by path; for a file, the one it lies in. Empty: there is none.

    What lies inside a session's folder (its workspace, say) is not searched, and links to folders are not followed.
    Raises OSError for a folder that cannot be read.
    """
    if path.is_file():
        names = {inside.name for inside in path.parent.iterdir()}
        return [SessionFolder(path.parent)] if NAMES & names else []
    found = []
    for name, inner, files in os.walk(path, onerror=_refuse):
        session = SessionFolder(Path(name))
        if NAMES & set(files):
            found.append(session)
            inner.clear()
    return sorted(found, key=lambda session: session.path)


def find_calls(path: Path) -> list[Path]:
    """The files of calls that `path` stands for: itself, whatever its name, or those of the sessions at or below it."""
    return [path] if path.is_file() else [session.calls for session in find_sessions(path) if session.calls.exists()]


def _refuse(error: OSError) -> None:
    raise error
