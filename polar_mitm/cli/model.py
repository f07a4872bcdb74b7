"""`polar model`: the local engine and its small models."""

import asyncio
from typing import Annotated

import typer

from polar_mitm.cli.shell import JsonFlag, Steps, exit_codes, one_of, out, print_json, run_async, tell
from polar_mitm.engine.install import install as install_engine
from polar_mitm.engine.local import LocalEngine, end, find, trainable
from polar_mitm.engine.models import MODELS, build

app = typer.Typer(help="A local vLLM with the flags polar needs.", no_args_is_help=True, add_completion=False)

Name = Annotated[str, typer.Argument(help=", ".join(MODELS), callback=one_of(MODELS))]


@app.command("list")
def list_models(json: JsonFlag = False) -> None:
    """The local models, and where they are served now."""
    rows = []
    for name in MODELS:
        running = find(name)
        rows.append({"model": name, "url": running.url if running else None, "pid": running.pid if running else None})
    if json:
        print_json(rows)
        return
    for row in rows:
        out.print(f"{row['model']:10} {row['url'] or 'not running'}", highlight=False)


@app.command()
def install(name: Name = "smollm2") -> None:
    """Install the engine and build a model. Quick when they are there."""
    with exit_codes(), Steps() as steps:
        install_engine(steps.say)
        build(name, steps.say)
        steps.say(f"{name} is ready")


@app.command()
def serve(
    name: Name = "smollm2",
    port: Annotated[int, typer.Option(help="Port on loopback; 0 picks a free one.")] = 8000,
    weight_updates: Annotated[
        bool, typer.Option("--weight-updates", help="vLLM's development mode: anyone here can change the weights.")
    ] = False,
) -> None:
    """Serve a model until Ctrl-C: installs what is missing, waits until it answers."""
    run_async(lambda: _serve(name, port, weight_updates))


async def _serve(name: str, port: int, weight_updates: bool) -> None:
    engine = LocalEngine(launch=trainable if weight_updates else None)
    try:
        with Steps() as steps:
            running = await engine.start(name, port=port, say=steps.say, progress=steps.progress)
            if weight_updates and not engine.owned:
                steps.say(f"{name} ran already as it is: for --weight-updates first `polar model stop {name}`")
        out.print(f"{name} is served at {running.url} (pid {running.pid}, log {running.log})", soft_wrap=True)
        await engine.wait()
    finally:
        await asyncio.shield(engine.stop(though_used=True))


@app.command()
def stop(name: Name = "smollm2") -> None:
    """End a local engine, whoever started it."""
    tell(out, f"{name} is ended" if end(name) else f"{name} was not running")
