"""`polar sandbox`: which sandboxes work here, and the base image of the container sandbox."""

import typer

from polar_mitm.cli.shell import JsonFlag, Steps, exit_codes, out, print_json
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.sandboxes.base_image import BASE_IMAGE, make_base_image

app = typer.Typer(help="The sandboxes that a harness can run in.", no_args_is_help=True, add_completion=False)


@app.command("list")
def list_sandboxes(json: JsonFlag = False) -> None:
    """Which sandboxes polar knows, and what each lacks here."""
    rows = [{"sandbox": name, "problems": sandbox.check()} for name, sandbox in SANDBOXES.items()]
    if json:
        print_json(rows)
        return
    for row in rows:
        out.print(f"{row['sandbox']:12} {'; '.join(row['problems']) or 'ready'}", highlight=False, markup=False)


@app.command()
def image() -> None:
    """Make the image of the container sandbox for scenarios that name none. Quick when it is there."""
    with exit_codes(), Steps() as steps:
        make_base_image(steps.say)
        steps.say(f"{BASE_IMAGE} is there")
