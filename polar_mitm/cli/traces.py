"""`polar traces PATH`: what captured calls become for a trainer, and what became of every sampled token."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import orjson
import typer

from polar_mitm.capture.find import find_sessions
from polar_mitm.capture.folder import SessionFileError, SessionFolder
from polar_mitm.capture.reader import CallFileError, read_calls
from polar_mitm.cli.sessions import Captures, close_dead
from polar_mitm.cli.shell import BAD_USAGE, FAILED, JsonFlag, err, exit_codes, one_of, out, print_json, tell
from polar_mitm.cli.tables import shown
from polar_mitm.cli.traces_view import show_breaks, show_run, show_session, show_totals
from polar_mitm.cli.vocabularies import EngineUrl, Known, Tokenizer, vocabulary_for
from polar_mitm.tokens.pieces import text_of
from polar_mitm.trajectory.builders import Builder, Options, Rewritten, build
from polar_mitm.trajectory.digest import Digest
from polar_mitm.trajectory.ledger import LedgerError
from polar_mitm.trajectory.page import Page
from polar_mitm.trajectory.seen import TrajectoryError
from polar_mitm.trajectory.totals import Totals
from polar_mitm.trajectory.trace import Trajectory

BuilderName = Annotated[
    str,
    typer.Option(
        "--builder",
        help="prefix_merging: a trace a conversation; per_request: a trace a call.",
        callback=one_of(["prefix_merging", "per_request"]),
    ),
]
RewrittenName = Annotated[
    str,
    typer.Option(
        "--rewritten",
        help="Where an answer came back re-rendered: fork, or substitute what was sampled for it.",
        callback=one_of(["fork", "substitute"]),
    ),
]


TELLING = 8
"""Calls whose text is held against a tokenizer: enough to tell another model's."""


def traces(
    path: Captures,
    explain: Annotated[bool, typer.Option("--explain", help="Show why traces fork, both sides decoded.")] = False,
    builder: BuilderName = "prefix_merging",
    rewritten: RewrittenName = "fork",
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page to look at; it needs no network.", dir_okay=False)
    ] = None,
    tokenizer: Tokenizer = None,
    engine_url: EngineUrl = None,
    json: JsonFlag = False,
) -> None:
    """Show trajectories: their traces, what became of every sampled token, and why they fork."""
    close_dead(path)
    with exit_codes():
        sessions = find_sessions(path)
        if not sessions:
            tell(err, f"polar: no session under {path}", style="red")
            raise typer.Exit(BAD_USAGE)
        decode = explain or json or html is not None
        look = _Look(cast(Builder, builder), cast(Rewritten, rewritten), tokenizer, engine_url, decode)
        page = Page(title=str(shown(path.absolute())))
        for session in sessions:
            trajectory = look.add(session, keep=json)
            if html and trajectory:
                known = look.known(session)
                assert known
                page.add(str(shown(session.path)), trajectory, known.vocabulary, known.note)
        if html:
            _write(html, page)
    if json:
        print_json({"totals": look.totals.as_json(), "sessions": look.whole})
    else:
        _show(look, explain=explain)
        if html:
            tell(out, f"page    {shown(html)}")
    if look.failed:
        raise typer.Exit(FAILED)


def _write(file: Path, page: Page) -> None:
    """Exits where the file can't be written."""
    try:
        file.write_text(page.html(), encoding="utf-8")
    except OSError as error:
        tell(err, f"polar: {file} can't be written: {error.strerror}", style="red")
        raise typer.Exit(BAD_USAGE) from error


class _Look:
    """Builds one session after the other and keeps what is shown of it: a run's tokens may not fit into memory."""

    def __init__(
        self, builder: Builder, rewritten: Rewritten, tokenizer: Path | None, engine_url: str | None, decode: bool
    ) -> None:
        self.builder = builder
        self.rewritten = rewritten
        self.tokenizer = tokenizer
        self.engine_url = engine_url
        self.decode = decode
        self.digests: dict[Path, Digest] = {}
        self.totals = Totals()
        self.whole: dict[str, Any] = {}
        self.failed = False
        self._known: dict[str, Known] = {}

    def add(self, session: SessionFolder, *, keep: bool) -> Trajectory | None:
        """None for a session that can't be built; that it fails is said, and the others are shown all the same."""
        try:
            known = self.known(session)
            decode = (lambda ids: text_of(ids, known.vocabulary)) if known and known.vocabulary else None
            options = Options(builder=self.builder, rewritten=self.rewritten, decode=decode)
            trajectory = build(session.path, options)
        except (OSError, CallFileError, SessionFileError, TrajectoryError, LedgerError) as error:
            tell(err, f"polar: {error}", style="red")
            self.failed = True
            return None
        self.digests[session.path] = Digest.of(trajectory)
        self.totals.add(trajectory)
        if keep:
            self.whole[str(session.path)] = orjson.Fragment(trajectory.model_dump_json(by_alias=True))
        return trajectory

    def known(self, session: SessionFolder) -> Known | None:
        """The tokenizer of the session's model, looked for once."""
        if not self.decode:
            return None
        engine = session.load().engine
        model = engine.model if engine else ""
        if model not in self._known:
            calls = list(islice(read_calls(session.calls), TELLING)) if session.calls.exists() else []
            self._known[model] = vocabulary_for(calls, self.tokenizer, self.engine_url)
        return self._known[model]

    @property
    def notes(self) -> Sequence[str]:
        return list(dict.fromkeys(known.note for known in self._known.values()))


def _show(look: _Look, *, explain: bool) -> None:
    if len(look.digests) == 1:
        for path, digest in look.digests.items():
            show_session(out, shown(path), digest)
    elif look.digests:
        show_run(out, look.digests)
        show_totals(out, look.totals)
    if explain:
        for path, digest in look.digests.items():
            if digest.breaks:
                known = look.known(SessionFolder(path))
                show_breaks(out, shown(path), digest.breaks, known.vocabulary if known else None)
        for note in look.notes:
            tell(out, note, style="dim")
