"""What a person types: `polar COMMAND`. One file a command group; no logic of its own."""

import typer

from polar_mitm import __version__
from polar_mitm.cli import (
    calls,
    demo,
    doctor,
    export,
    gateway,
    gym,
    harness,
    model,
    proxy,
    replay,
    rollout,
    run_task,
    sandbox,
    sessions,
    tasks,
    traces,
)

app = typer.Typer(
    name="polar",
    help="See, record and train on what unmodified coding agents do with a model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def main(version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True)) -> None:
    if version:
        typer.echo(f"polar-mitm {__version__}")
        raise typer.Exit


app.command("demo")(demo.demo)
app.command("run-task")(run_task.run_task)
app.command("proxy")(proxy.proxy)
app.command("web")(proxy.web)
app.command("calls")(calls.calls)
app.command("traces")(traces.traces)
app.command("replay")(replay.replay)
app.command("export", help=export.HELP)(export.export_command)
app.command("recover")(sessions.recover_command)
app.command("seal")(sessions.seal)
app.command("doctor")(doctor.doctor)
app.command("submit")(tasks.submit)
app.command("status")(tasks.status)
app.command("results")(tasks.results)
app.command("cancel")(tasks.cancel)
app.add_typer(model.app, name="model")
app.add_typer(harness.app, name="harness")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(rollout.app, name="rollout")
app.add_typer(gateway.app, name="gateway")
app.add_typer(gym.app, name="gym")
