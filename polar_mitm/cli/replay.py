"""`polar replay FILE.mitm`: sessions rebuilt from their saved flows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import orjson
import typer

from polar_mitm.capture.folder import SessionFolder
from polar_mitm.cli.shell import JsonFlag, err, exit_codes, out, print_json, tell
from polar_mitm.cli.tables import many, shown
from polar_mitm.cli.traces_view import show_session
from polar_mitm.rollout.replay import Replay, Replayed, ReplayError
from polar_mitm.rollout.replay import replay as replay_flows
from polar_mitm.trajectory.builders import build
from polar_mitm.trajectory.digest import Digest
from polar_mitm.trajectory.trace import Trajectory

Flows = Annotated[Path, typer.Argument(help="A session's folder, its flows.mitm, or any file of flows.", exists=True)]


def replay(
    flows: Flows,
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the session folders.", file_okay=False)] = Path(
        "replayed"
    ),
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Show their trajectories too, as today's builders make them.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Rebuild calls.jsonl from saved flows, without an engine."""
    with exit_codes():
        flows = _file_of(flows)
        result = replay_flows(flows, out_folder)
        built = {session.folder.path: build(session.folder.path) for session in result.sessions if rebuild}
    if json:
        print_json(_document(result, built))
        return
    for session in result.sessions:
        tell(out, f"{session.session.session_id}: {many(session.session.calls, 'call')}  {shown(session.folder.calls)}")
        tell(out, f"  {_compared(session)}")
        for trouble in _troubles(session):
            tell(err, f"  {trouble}", style="yellow")
    for count, what in (
        (result.others, "of no call"),
        (result.repeated, "of a call that came before"),
        (result.unfinished, "saved before its call was over"),
    ):
        if count:
            tell(out, f"passed over: {many(count, 'flow')} {what}")
    if result.torn >= 0:
        tell(err, f"{shown(flows)} ends in the middle of a flow, at byte {result.torn}", style="yellow")
    for path, trajectory in built.items():
        show_session(out, shown(path), Digest.of(trajectory))


def _file_of(path: Path) -> Path:
    """Of a session's folder the file of its flows. Raises ReplayError."""
    if not path.is_dir():
        return path
    flows = SessionFolder(path).flows
    if not flows.is_file():
        raise ReplayError(f"there is no {flows.name} in {path}: name a session's folder, or a file of flows")
    return flows


def _compared(session: Replayed) -> str:
    if session.live is None:
        return "its first calls.jsonl is not beside the flows"
    if session.same_bytes:
        return f"equal to {shown(session.live)}, byte for byte"
    if session.differs is None:
        return f"equal to {shown(session.live)}, which another version wrote in other words"
    return f"it differs from {shown(session.live)} from line {session.differs} on"


def _troubles(session: Replayed) -> list[str]:
    troubles = []
    if session.missing:
        lines = ", ".join(map(str, session.missing))
        troubles.append(f"no flow of line {lines} is in the file, so the session is marked and never trained on")
    if session.regained:
        troubles.append(f"{', '.join(session.regained)} could not be written at the time, and come last")
    return troubles


def _document(result: Replay, built: Mapping[Path, Trajectory]) -> dict[str, object]:
    sessions = [
        {
            "session_id": session.session.session_id,
            "folder": str(session.folder.path),
            "calls": session.session.calls,
            "missing": session.missing,
            "regained": session.regained,
            "compared_with": str(session.live) if session.live else None,
            "same_bytes": session.same_bytes,
            "differs_from_line": session.differs,
            **_trajectory(built.get(session.folder.path)),
        }
        for session in result.sessions
    ]
    return {
        "sessions": sessions,
        "other_flows": result.others,
        "repeated_flows": result.repeated,
        "unfinished_flows": result.unfinished,
        "torn_at_byte": result.torn if result.torn >= 0 else None,
    }


def _trajectory(built: Trajectory | None) -> dict[str, object]:
    return {} if built is None else {"trajectory": orjson.Fragment(built.model_dump_json(by_alias=True))}
