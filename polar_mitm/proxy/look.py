"""The addon for a person who looks at flows, live or saved: the content view, rewards on comments, two commands.

polar.session ses_01a22b…            show only the flows of that session; without a name, all of them
polar.export @shown folder           write these flows' calls as `folder/<session>/calls.jsonl`
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
        if flow.live or (session := _session_beside(flow)) is None or session.reward is None:
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
        """Write the calls of these flows into a folder, `<session>/calls.jsonl`, as polar itself captures them."""
        calls = _calls_by_session(flows)
        if not calls:
            raise exceptions.CommandError("none of these flows is a call of polar's")
        written = []
        for session_id, of_session in calls.items():
            path = SessionFolder(Path(folder).expanduser() / session_id).calls
            if path.exists():
                raise exceptions.CommandError(f"{path} is there already")
            try:
                _write(path, of_session)
            except (OSError, CallLogError) as error:
                raise exceptions.CommandError(f"{path} can't be written: {error}") from error
            written.append(f"{path}: {len(of_session)} calls")
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


def _write(path: Path, calls: Iterable[Call]) -> None:
    with CallLog(path) as log:
        for call in calls:
            log.append(call)


def _session_beside(flow: HTTPFlow) -> SessionRecord | None:
    """The record of the flow's session, where it lies beside the file that the flow was read from."""
    if SESSION not in flow.metadata or not ctx.options.rfile:
        return None
    try:
        session = SessionFolder(Path(ctx.options.rfile).expanduser().parent).load()
    except (OSError, SessionFileError):
        return None
    return session if session.session_id == flow.metadata[SESSION] else None
