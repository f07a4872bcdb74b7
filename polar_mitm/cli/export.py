"""`polar export DIR --format F`: traces written for a trainer or for people."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.progress import track

from polar_mitm.cli.sessions import close_dead
from polar_mitm.cli.shell import JsonFlag, err, exit_codes, one_of, out, print_json, tell
from polar_mitm.cli.tables import many, shown
from polar_mitm.trajectory.builders import Options
from polar_mitm.trajectory.credit import Advantages
from polar_mitm.trajectory.exporters import FORMATS
from polar_mitm.trajectory.exporters.base import ExportRefused, Session
from polar_mitm.trajectory.exporters.run import export, summary
from polar_mitm.trajectory.run import Run, build_run

HELP: Final = "\n\n".join(
    [
        "Write traces for a trainer, or for people. Sessions that may not be trained on keep their place, masked.",
        *(f"{form.name}: {form.what} ({form.checked})" for form in FORMATS.values()),
    ]
)
app = typer.Typer(add_completion=False)
_ADVANTAGES: Final[dict[str, Advantages]] = {"standard": "standard", "loo": "leave_one_out"}


@app.command(help=HELP)
def export_command(
    folder: Annotated[
        Path, typer.Argument(help="A session's folder, or a folder of sessions.", exists=True, file_okay=False)
    ],
    form: Annotated[str, typer.Option("--format", "-f", help=", ".join(FORMATS), callback=one_of(FORMATS))],
    to: Annotated[Path | None, typer.Option("--out", "-o", help="What to write; a folder for atif.")] = None,
    builder: Annotated[
        Literal["prefix_merging", "per_request"], typer.Option(help="What becomes one trace.")
    ] = "prefix_merging",
    rewritten: Annotated[
        Literal["fork", "substitute"], typer.Option(help="What follows an answer that came back re-rendered.")
    ] = "fork",
    advantages: Annotated[
        Literal["standard", "loo", "none"], typer.Option(help="Among the samples of a task.")
    ] = "standard",
    keep_unrewarded: Annotated[
        bool, typer.Option("--keep-unrewarded", help="Do not mask sessions without a reward.")
    ] = False,
    model: Annotated[list[str] | None, typer.Option(help="Only traces of this model; may be repeated.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    json: JsonFlag = False,
) -> None:
    written = FORMATS[form]
    target = to or folder / written.output
    options = Options(builder=builder, rewritten=rewritten, unrewarded="keep" if keep_unrewarded else "mask")
    with exit_codes():
        close_dead(folder)
        run = build_run(folder, options, advantages=_ADVANTAGES.get(advantages, "standard"))
        if not run.records:
            raise ExportRefused(f"there is no session under {folder}: name a session's folder, or a folder of them")
        sessions = _sessions(run, advantages=advantages != "none", quiet=json)
        tally = export(sessions, written, target, models=model or (), overwrite=overwrite)
    found = {"format": written.name, "out": str(target), **summary(tally)}
    if json:
        print_json(found)
    else:
        _tell(found, target)


def _sessions(run: Run, *, advantages: bool, quiet: bool) -> Iterator[Session]:
    """One at a time, under a progress bar on a terminal."""
    records = {record.session_id: record for record in run.records.values()}
    hidden = quiet or not err.is_terminal
    for trajectory in track(run, "exporting", total=len(records), console=err, transient=True, disable=hidden):
        if not advantages:
            bare = [trace.model_copy(update={"advantage": None}) for trace in trajectory.traces]
            trajectory = trajectory.model_copy(update={"traces": bare})
        yield Session(trajectory, records[trajectory.session_id])


def _tell(found: dict[str, Any], target: Path) -> None:
    rows, sessions = many(found["rows"], "row"), many(found["sessions"], "session")
    tell(out, f"{shown(target)}: {rows} of {sessions}, {many(found['trained_tokens'], 'trained token')}")
    notes = [f"masked, {many(count, 'session')}: {reason}" for reason, count in found["masked"].items()]
    notes += [f"left out: {count} {what}" for what, count in found["left_out"].items()]
    if count := found["places"]:
        keep = "keeps its session's place" if count == 1 else "keep their sessions' places"
        notes.append(f"{many(count, 'row')} without a trained token {keep} in the group, with the reward")
    if found["without_reward"]:
        notes.append(f"without a reward: {many(found['without_reward'], 'session')}")
    if found["across_versions"]:
        notes.append(f"sampled by several policy versions: {many(found['across_versions'], 'session')}")
    for caution, count in found["cautions"].items():
        notes.append(f"{many(count, 'trained turn')} {'was' if count == 1 else 'were'} {caution}")
    if not found["trained_tokens"]:
        notes.append("there is no token to train on in it")
    for note in notes:
        tell(err, f"  {note}", style="yellow")
