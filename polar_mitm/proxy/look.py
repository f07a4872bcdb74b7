"""The addon for a person who looks at flows, live or saved: the content view, rewards on comments, two commands.

polar.session ses_01a22b…            show only the flows of that session; without a name, all of them
polar.export @shown folder           write these flows' sessions into folders: calls, record, trajectory
"""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from mitmproxy import command, contentviews, ctx, exceptions, types
from mitmproxy.addonmanager import Loader
from mitmproxy.flow import Flow
from mitmproxy.http import HTTPFlow

from polar_mitm.capture.log import CallLog, CallLogError
from polar_mitm.capture.record import Call
from polar_mitm.capture.session import SessionFileError, SessionFolder, SessionRecord
from polar_mitm.proxy.content_view import TokensView
from polar_mitm.proxy.view import comment, recorded
from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.ledger import LedgerError
from polar_mitm.trajectory.seen import TrajectoryError

logger = logging.getLogger(__name__)

SESSION = "polar_session"
"""In a flow's metadata: the session's id."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)
"""A session id that may be part of a path and of a filter: saved flows can come from anywhere."""


class Look:
    name = "polar-look"

    def load(self, loader: Loader) -> None:
        contentviews.add(TokensView())

    def requestheaders(self, flow: HTTPFlow) -> None:
        """A saved flow: its session's reward, which came after it, joins the comment, if that is still polar's own."""
        session = None if flow.live else _record_of(str(flow.metadata.get(SESSION)))
        if session is None or session.reward is None:
            return
        try:
            call = recorded(flow)
        except ValueError as error:
            logger.warning("polar: the record of a flow can't be read: %s", error)
            return
        if call and flow.comment == comment(call):
            flow.comment = comment(call, session.reward)

    @command.command("polar.session")  # type: ignore[untyped-decorator]
    def session(self, session: str = "") -> str:
        """Show only the flows of this session, named by its id or the beginning of it; without a name, all flows."""
        if "view_filter" not in ctx.options:
            raise exceptions.CommandError("this mitmproxy has no list of flows: use mitmweb or the console")
        counted = Counter(str(flow.metadata[SESSION]) for flow in _all_flows() if SESSION in flow.metadata)
        named = [name for name in counted if name.startswith(session) and _NAME.fullmatch(name)]
        if not session:
            ctx.options.update(view_filter=None)
        elif len(named) == 1:
            ctx.options.update(view_filter=f'~meta "^{SESSION}: {re.escape(named[0])}$"')
        else:
            raise exceptions.CommandError(f"{len(named)} sessions here have an id that begins with {session!r}")
        return "\n".join(f"{name}: {counted[name]} flows" for name in named) or "no session has a flow here"

    @command.command("polar.export")  # type: ignore[untyped-decorator]
    def export(self, flows: Sequence[Flow], folder: types.Path) -> str:
        """Write the calls of these flows into a folder, each session as polar itself captures it, and its trajectory.

        `<session>/calls.jsonl`, `session.json` and `trajectory.json`: what `polar calls` and `polar traces` read.
        """
        calls = _calls_by_session(flows)
        if not calls:
            raise exceptions.CommandError("none of these flows is a call of polar's")
        written = []
        for session_id, of_session in calls.items():
            path = Path(folder).expanduser() / session_id
            if path.exists():
                raise exceptions.CommandError(f"{path} is there already")
            try:
                traces = _write(path, of_session)
            except (OSError, CallLogError) as error:
                raise exceptions.CommandError(f"{path} can't be written: {error}") from error
            except (TrajectoryError, LedgerError) as error:
                raise exceptions.CommandError(f"{path} has the calls, but no trajectory: {error}") from error
            written.append(f"{path}: {len(of_session)} calls, {traces} traces")
        return "\n".join(written)


def _all_flows() -> Iterable[Flow]:
    """Those that the filter hides too."""
    flows: Sequence[Flow] = ctx.master.commands.call("view.flows.resolve", "@all")
    return flows


def _calls_by_session(flows: Iterable[Flow]) -> dict[str, list[Call]]:
    """In the order in which the calls ended, as they are captured. Raises CommandError."""
    calls: defaultdict[str, list[Call]] = defaultdict(list)
    for flow in flows:
        try:
            if call := recorded(flow):
                calls[_safe(call.identity.session_id)].append(call)
        except ValueError as error:
            raise exceptions.CommandError(f"the record of flow {flow.id} can't be read: {error}") from error
    for of_session in calls.values():
        of_session.sort(key=lambda call: call.identity.finished_at)
    return calls


def _safe(session_id: str) -> str:
    if not _NAME.fullmatch(session_id):
        raise exceptions.CommandError(f"{session_id!r} is no session id of polar's")
    return session_id


def _write(path: Path, calls: Sequence[Call]) -> int:
    """Returns the number of traces."""
    folder = SessionFolder.create(path.parent, path.name)
    with CallLog(folder.calls) as log:
        for call in calls:
            log.append(call)
        counts = {"calls": log.calls, "prompt_tokens": log.prompt_tokens, "response_tokens": log.response_tokens}
    known = _record_of(path.name)
    if known is None:
        known = SessionRecord(
            session_id=path.name,
            started_at=min(call.identity.started_at for call in calls),
            finished_at=max(call.identity.finished_at for call in calls),
            status="completed",
            status_reason="written from its flows, which do not say how it ended",
        )
    folder.write(known.model_copy(update={**counts, "seal": None}))
    # Without a reward nothing of it would be trained; here a person wants to see what could be.
    trajectory = build(path, Options(unrewarded="keep"))
    (path / "trajectory.json").write_text(trajectory.model_dump_json(by_alias=True), encoding="utf-8")
    return len(trajectory.traces)


def _record_of(session_id: str) -> SessionRecord | None:
    """The session's record, where it lies beside the file that the flows were read from."""
    read_from = getattr(ctx.options, "rfile", None)
    if not read_from:
        return None
    try:
        session = SessionFolder(Path(read_from).expanduser().parent).load()
    except (OSError, SessionFileError):
        return None
    return session if session.session_id == session_id else None
