"""`polar rollout`: the server that takes tasks and spreads their sessions over gateways."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from polar_mitm.cli.log_lines import show_log
from polar_mitm.cli.shell import EXTRA, NOT_READY, err, exit_codes, out, run_async, tell
from polar_mitm.rollout.server.settings import MIB, Settings, SettingsError, own_token, secret

app = typer.Typer(help="The rollout server.", no_args_is_help=True, add_completion=False)

TOKEN = "POLAR_ROLLOUT_TOKEN"
SECRET = "POLAR_CALLBACK_SECRET"


@app.callback()
def rollout() -> None:
    """Tasks in, graded trajectories out."""


@app.command(context_settings={"allow_extra_args": True})
def serve(
    context: typer.Context,
    state: Annotated[Path, typer.Option(help="Folder of the database, the files and the token.", file_okay=False)] = (
        Path("rollout")
    ),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8090,
    database: Annotated[
        str | None,
        typer.Option(
            envvar="POLAR_ROLLOUT_DATABASE",
            show_envvar=False,
            help="postgresql://user@host/name; with a password it belongs into $POLAR_ROLLOUT_DATABASE. "
            "[default: SQLite in the state folder]",
        ),
    ] = None,
    files: Annotated[
        str | None,
        typer.Option(help="Folder or fsspec URL of the sessions' files. [default: files/ in the state folder]"),
    ] = None,
    direct_files: Annotated[
        bool,
        typer.Option("--direct-files", help="Gateways write to --files themselves: they see the same path or URL."),
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the token; else ${TOKEN}, else one is made in the state folder.", dir_okay=False),
    ] = None,
    callback_secret_file: Annotated[
        Path | None,
        typer.Option(
            help=f"File with the secret that signs callbacks; else ${SECRET}, else the token.", dir_okay=False
        ),
    ] = None,
    heartbeat: Annotated[float, typer.Option(min=0.2, max=600, help="Seconds between a gateway's heartbeats.")] = 5.0,
    max_body_mb: Annotated[int, typer.Option(min=1, max=1024, help="How large a request may be, in MB.")] = 16,
    max_file_mb: Annotated[int, typer.Option(min=1, help="How large a session's file may be, in MB.")] = 4096,
    on: Annotated[
        Literal["ray"] | None,
        typer.Option(
            "--on", help="Start gateways on a Ray cluster. Their options come after `--`; {node} is their node."
        ),
    ] = None,
    ray_address: Annotated[str, typer.Option(help="Of the Ray cluster.")] = "auto",
    gateways: Annotated[int | None, typer.Option(min=1, help="With --on. [default: one a node]")] = None,
    gateway_cpus: Annotated[float, typer.Option(min=0, help="That Ray sets aside for each gateway.")] = 1.0,
    gateway_resource: Annotated[
        str | None, typer.Option(help="Ray resource of which each takes 1; nodes without it have none.")
    ] = None,
    gateway_state: Annotated[
        Path | None, typer.Option(help="Folder on each node. [default: in the folder of temporary files]")
    ] = None,
) -> None:
    """Take tasks, give their sessions to gateways, keep the results."""
    try:
        from polar_mitm.rollout.cluster.placing import STATE, Placing
        from polar_mitm.rollout.cluster.ray import Fleet, beside
        from polar_mitm.rollout.server.serve import serve as run
    except ModuleNotFoundError as missing:
        tell(err, f"polar: {missing.name} is not installed: {EXTRA}", style="red")
        raise typer.Exit(NOT_READY) from missing
    show_log(quiet=("uvicorn", "alembic", "asyncio"))
    with exit_codes():
        token, where = _token(state, token_file)
        settings = Settings(
            token=token,
            callback_secret=secret("callback secret", callback_secret_file, SECRET) or token,
            database=database or f"sqlite:///{(state / 'rollout.db').absolute()}",
            files=files or str((state / "files").absolute()),
            direct_files=direct_files,
            heartbeat_s=heartbeat,
            max_body=max_body_mb * MIB,
            max_file=max_file_mb * MIB,
        )
        if on is None and context.args:
            raise SettingsError(f"{context.args[0]!r} is no option of this command; those of gateways need --on ray")
        fleet = None
        if on:
            placing = Placing(
                arguments=tuple(context.args),
                gateways=gateways,
                cpus=gateway_cpus,
                resource=gateway_resource,
                address=ray_address,
                state=gateway_state.absolute() if gateway_state else STATE,
            )
            fleet = Fleet(placing, token)
            fleet.connect()

    def ready(url: str) -> None:
        tell(out, f"rollout   {url}\ntoken     {where}\nAPI       {url}/docs")

    async def main() -> None:
        if fleet is None:
            await run(settings, host, port, ready)
        else:
            await beside(lambda up: run(settings, host, port, up), fleet, ready)

    run_async(main, interrupted="the server has stopped; a next start goes on")


def _token(state: Path, file: Path | None) -> tuple[str, str]:
    """The token, and where it comes from. Raises SettingsError."""
    if (given := secret("token", file, TOKEN)) is not None:
        return given, str(file) if file else f"${TOKEN}"
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{state} cannot be made: {error}") from error
    token, path = own_token(state)
    return token, str(path)
