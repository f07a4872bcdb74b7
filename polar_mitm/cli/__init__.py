"""What a person types: `polar COMMAND`. One file a command group; no logic of its own."""

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

from polar_mitm import __version__

COMMANDS: Final = {
    "demo": "demo:demo",
    "run-task": "run_task:run_task",
    "proxy": "proxy:proxy",
    "web": "proxy:web",
    "calls": "calls:calls",
    "traces": "traces:traces",
    "replay": "replay:replay",
    "export": "export:app",
    "recover": "sessions:recover_command",
    "seal": "sessions:seal",
    "doctor": "doctor:doctor",
    "submit": "tasks:submit",
    "status": "tasks:status",
    "results": "tasks:results",
    "cancel": "tasks:cancel",
    "model": "model:app",
    "policy": "policy:app",
    "harness": "harness:app",
    "sandbox": "sandbox:app",
    "evaluator": "evaluator:app",
    "rollout": "rollout:app",
    "gateway": "gateway:app",
    "gym": "gym:app",
}
"""Command -> the module of this package that has it, and its function or Typer app there."""


class Commands(TyperGroup):
    """Imports a command when it is called: `polar status` need not wait for mitmproxy.

    The classes of the click inside typer have no public names.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name].split(":")
        found = getattr(import_module(f"polar_mitm.cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False)
            found.command()(function)
        command = typer.main.get_command(found)
        command.name = name
        return command


app = typer.Typer(
    name="polar",
    cls=Commands,
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
