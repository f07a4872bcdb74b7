"""`polar policy`: which weights the gateways' engines serve, and their change."""

from typing import Annotated

import typer
from rich.table import Table

from polar_mitm.cli.shell import FAILED, JsonFlag, err, out, print_json, tell
from polar_mitm.cli.tasks import URL, Server, TokenFile, client_of
from polar_mitm.client.policy import FleetPolicy, PauseMode

app = typer.Typer(help="The weights that the gateways' engines serve.", no_args_is_help=True)


def _name(version: str | None) -> str | None:
    if version is not None and not 0 < len(version) <= 256:
        raise typer.BadParameter("a version is a name of 1 to 256 characters")
    return version


Mode = Annotated[PauseMode, typer.Option(help="What becomes of calls that run.")]
Limit = Annotated[float, typer.Option(min=1, help="Seconds for each step.")]
Gateways = Annotated[
    list[str] | None, typer.Option("--gateway", help="Only this one; may be given several times. [default: all]")
]


@app.command()
def show(server_url: Server = URL, token_file: TokenFile = None, json: JsonFlag = False) -> None:
    """Where the policy of each gateway and engine stands."""
    with client_of(server_url, token_file) as client:
        _shown(client.policy(), json)


@app.command()
def update(
    version: Annotated[str, typer.Argument(help="The name of the new weights.", callback=_name)],
    weights: Annotated[str | None, typer.Option(help="Folder, on the engines' machines, that they load.")] = None,
    loaded: Annotated[bool, typer.Option("--loaded", help="The engines have the new weights already.")] = False,
    mode: Mode = "drain",
    limit: Limit = 600,
    gateway: Gateways = None,
    server_url: Server = URL,
    token_file: TokenFile = None,
    json: JsonFlag = False,
) -> None:
    """Pause, new weights, probe, resume; waits for the end. Exit code 1 when it failed."""
    if (weights is None) != loaded:
        said = "neither was" if weights is None else "both were"
        why = f"name the folder that the engines load, or say that they have the weights already: {said} given"
        raise typer.BadParameter(why, param_hint="--weights, --loaded")
    with client_of(server_url, token_file) as client:
        ended = client.update_policy(version, weights=weights, mode=mode, limit_s=limit, gateways=gateway)
    _shown(ended, json)


@app.command()
def pause(
    mode: Mode = "drain",
    limit: Limit = 600,
    gateway: Gateways = None,
    server_url: Server = URL,
    token_file: TokenFile = None,
    json: JsonFlag = False,
) -> None:
    """Hold new calls, and wait until none runs. Exit code 1 when one did not end: then all go on."""
    with client_of(server_url, token_file) as client:
        ended = client.pause_policy(mode=mode, limit_s=limit, gateways=gateway)
    _shown(ended, json)


@app.command()
def resume(
    version: Annotated[str | None, typer.Argument(help="Name of the weights by now.", callback=_name)] = None,
    gateway: Gateways = None,
    server_url: Server = URL,
    token_file: TokenFile = None,
    json: JsonFlag = False,
) -> None:
    """Probe the engines and let calls go on; without a version, with the weights of before."""
    with client_of(server_url, token_file) as client:
        ended = client.resume_policy(version, gateways=gateway)
    _shown(ended, json)


def _shown(policy: FleetPolicy, json: bool) -> None:
    if json:
        print_json(policy.model_dump())
    else:
        out.print(_table(policy))
        tell(out, f"{policy.phase}, policy {policy.version or '-'}, {policy.held} calls held")
    if policy.phase == "failed":
        tell(err, f"polar: {policy.trouble}", style="red")
        raise typer.Exit(FAILED)
    if policy.trouble and not json:
        tell(out, policy.trouble)


def _table(policy: FleetPolicy) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("gateway", "phase", "engine", "policy", "sessions", "calls", "trouble"):
        right = name in ("sessions", "calls")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=name == "engine")
    for gateway in policy.gateways:
        state = gateway.policy
        if state is None or not state.engines:
            table.add_row(gateway.name, state.phase if state else "-", "-", "-", "-", "-", gateway.trouble or "")
            continue
        for engine in state.engines:
            trouble = engine.trouble or gateway.trouble or state.trouble or ""
            row = (engine.url, engine.policy_version or "-", str(engine.sessions), str(engine.calls), trouble)
            table.add_row(gateway.name, state.phase, *row)
    return table
