"""`polar gateway serve`: a node that runs sessions for a rollout server."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from polar_mitm.cli.shell import BAD_USAGE, err, run_async, tell

app = typer.Typer(help="A node that runs sessions for a rollout server.", no_args_is_help=True)


@app.callback()
def gateway() -> None:
    """A node that runs sessions for a rollout server."""


@app.command()
def serve(
    server_url: Annotated[str, typer.Option("--server-url", help="The rollout server.")],
    engine_url: Annotated[str, typer.Option("--engine-url", help="The vLLM that answers the sessions' calls.")],
    state: Annotated[Path, typer.Option(help="Folder of the sessions; it outlives the process.")] = Path("gateway"),
    name: Annotated[str | None, typer.Option(help="Name of this node. [default: the machine's]")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 0,
    url: Annotated[str | None, typer.Option(help="Where the server reaches this node, if elsewhere.")] = None,
    scenarios: Annotated[Path | None, typer.Option(help="Folder of scenarios that requests may name.")] = None,
    running: Annotated[int, typer.Option(min=1, help="Sessions that run at once.")] = 4,
    ready: Annotated[int, typer.Option(min=0, help="Sessions that stand prepared beside them.")] = 2,
    preparing: Annotated[int, typer.Option(min=1, help="Sessions that are prepared at once.")] = 2,
    grading: Annotated[int, typer.Option(min=1, help="Sessions that are graded at once.")] = 2,
    waiting: Annotated[int, typer.Option(min=0, help="Sessions in line here before that.")] = 16,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the rollout server's token. [default: $POLAR_ROLLOUT_TOKEN]")
    ] = None,
) -> None:
    """Run sessions for a rollout server until Ctrl-C; what was not delivered then is delivered by the next start."""
    token = token_file.read_text().strip() if token_file else os.environ.get("POLAR_ROLLOUT_TOKEN", "")
    if not token:
        tell(err, "polar: no token: name --token-file, or set $POLAR_ROLLOUT_TOKEN", style="red")
        raise typer.Exit(BAD_USAGE)
    from polar_mitm.engine.client import Engine
    from polar_mitm.rollout.gateway.node import Node
    from polar_mitm.rollout.gateway.settings import Settings, Workers

    workers = Workers(preparing, ready, running, grading, waiting)
    settings = Settings(
        server_url=server_url,
        token=token,
        engine_url=engine_url,
        state=state.absolute(),
        scenarios=scenarios,
        host=host,
        port=port,
        url=url,
        workers=workers,
        name=name or socket.gethostname(),
    )

    async def main() -> None:
        async with Engine(settings.engine_url) as engine:
            node = Node(settings, engine)
            tell(err, f"gateway {settings.name}: {workers.running} at once, engine {engine.capabilities.model}")
            await node.serve()

    try:
        run_async(main)
    except asyncio.CancelledError:
        return
