"""`polar gym init DIR`: an agent server for NeMo Gym, whose rollouts polar runs."""

from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.cli.shell import err, exit_codes, out, tell
from polar_mitm.rollout.gym import CONFIG, write_root

app = typer.Typer(help="Rollouts for NeMo Gym.", no_args_is_help=True, add_completion=False)


@app.callback()
def gym() -> None:
    """Rollouts for NeMo Gym."""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="What is written is a root folder of NeMo Gym's.", file_okay=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
) -> None:
    """Write an external agent server for NeMo Gym; docs/nemo-gym.md says how it is started."""
    with exit_codes():
        names = write_root(folder, overwrite=overwrite)
    for name in names:
        tell(out, str(folder / name))
    tell(err, f"next: cd {folder}; gym env validate --config {CONFIG}")
