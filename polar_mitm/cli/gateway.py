"""`polar gateway serve`: a node that runs sessions for a rollout server."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar_mitm.cli.log_lines import show_log
from polar_mitm.cli.shell import EXTRA, NOT_READY, default_engine_urls, err, exit_codes, out, run_async, tell
from polar_mitm.rollout.server.settings import SettingsError, secret

if TYPE_CHECKING:
    from polar_mitm.engine.pool import EnginePool

app = typer.Typer(help="A node that runs sessions for a rollout server.", no_args_is_help=True, add_completion=False)

TOKEN = "POLAR_ROLLOUT_TOKEN"


@app.callback()
def gateway() -> None:
    """A node that runs sessions for a rollout server."""


@app.command()
def serve(
    server_url: Annotated[str, typer.Option("--server-url", help="The rollout server.")],
    engine_url: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-url",
            help="A vLLM that answers the sessions' calls; may be given several times; $POLAR_ENGINE_URL.",
        ),
    ] = None,
    state: Annotated[Path, typer.Option(help="Folder of the sessions; it outlives the process.", file_okay=False)] = (
        Path("gateway")
    ),
    name: Annotated[str | None, typer.Option(help="Name of this node. [default: the machine's]")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 0,
    url: Annotated[str | None, typer.Option(help="Where the server reaches this node, if elsewhere.")] = None,
    scenarios: Annotated[
        Path | None, typer.Option(help="Folder of scenarios that requests may name.", exists=True, file_okay=False)
    ] = None,
    running: Annotated[int, typer.Option(min=1, help="Sessions that run at once.")] = 4,
    ready: Annotated[int, typer.Option(min=0, help="Sessions that stand prepared beside them.")] = 2,
    preparing: Annotated[int, typer.Option(min=1, help="Sessions that are prepared at once.")] = 2,
    grading: Annotated[int, typer.Option(min=1, help="Sessions that are graded at once.")] = 2,
    waiting: Annotated[int, typer.Option(min=0, help="Sessions in line here before that.")] = 16,
    policy_version: Annotated[
        str | None, typer.Option(help="Of the weights that the engines serve at first; tasks may ask for one.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep sessions' folders once the server has them.")] = False,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with the rollout server's token; else ${TOKEN}.", dir_okay=False)
    ] = None,
) -> None:
    """Run sessions for a rollout server until Ctrl-C; what was not delivered then is delivered by the next start."""
    try:
        from polar_mitm.rollout.gateway.node import Node, pool_of
        from polar_mitm.rollout.gateway.settings import Settings, Workers
    except ModuleNotFoundError as missing:
        tell(err, f"polar: {missing.name} is not installed: {EXTRA}", style="red")
        raise typer.Exit(NOT_READY) from missing

    show_log(quiet=("uvicorn", "mitmproxy", "asyncio"))
    with exit_codes():
        engine_urls = engine_url or default_engine_urls()
        if not engine_urls:
            raise SettingsError("no engine: name a vLLM with --engine-url, or set $POLAR_ENGINE_URL")
        named = "--engine-url" if engine_url else "$POLAR_ENGINE_URL"
        asked = [(named, given) for given in engine_urls]
        for option, given in (("--server-url", server_url), *asked, ("--url", url)):
            if given is not None and not given.startswith(("http://", "https://")):
                raise SettingsError(f"{option} {given!r}: expected a URL that begins with http:// or https://")
        token = secret("token", token_file, TOKEN)
        if token is None:
            raise SettingsError(f"no token: name --token-file, or set ${TOKEN} to the rollout server's token")
    settings = Settings(
        server_url=server_url,
        token=token,
        engine_urls=engine_urls,
        state=state.absolute(),
        scenarios=scenarios.absolute() if scenarios else None,
        host=host,
        port=port,
        url=url,
        workers=Workers(preparing, ready, running, grading, waiting),
        policy_version=policy_version,
        keep=keep,
        name=name or socket.gethostname(),
    )

    async def main() -> None:
        async with pool_of(settings) as engines:
            model = engines.capabilities.model
            many = f"runs {running} sessions at once, holds at most {settings.workers.capacity}"
            told = f"gateway   {settings.name}, {many}, model {model}"
            warn_of_silent(engines)
            await Node(settings, engines).serve(lambda at: tell(out, f"{told}\nlistens   {at}"))

    run_async(main, interrupted="the gateway has stopped; what it still holds is delivered by its next start")


def warn_of_silent(engines: "EnginePool") -> None:
    """Name each engine that no call can go to now."""
    for engine in engines.policy.state().engines:
        if not engine.healthy:
            tell(
                err, f"polar: the engine at {engine.url} is not used until it answers: {engine.trouble}", style="yellow"
            )
