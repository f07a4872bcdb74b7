"""`polar submit`, `polar status`, `polar results`, `polar cancel`: tasks at a rollout server."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from polar_mitm.cli.shell import BAD_USAGE, FAILED, NOT_READY, JsonFlag, err, exit_codes, out, print_json, tell
from polar_mitm.cli.tables import many
from polar_mitm.client.models import ENDED, Result, Task, TaskRequest
from polar_mitm.proxy.lines import printable
from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.reading import bundled, load

Server = Annotated[
    str, typer.Option("--server-url", envvar="POLAR_ROLLOUT_URL", show_envvar=False, help="$POLAR_ROLLOUT_URL.")
]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the server's token. [default: $POLAR_ROLLOUT_TOKEN]", dir_okay=False)
]
URL = "http://127.0.0.1:8090"
FILES = (".yaml", ".yml", ".json", ".jsonl", ".toml")
TASK_SETS = (
    "write a scenario with `tasks:` into the gateways' --scenarios folder, and submit its name with --only ID, "
    "once for each task"
)


def submit(
    task: Annotated[str, typer.Argument(help="A scenario file, a task request as JSON, or a name the gateways know.")],
    samples: Annotated[int | None, typer.Option(min=1, help="Attempts. [default: the file's, or 1]")] = None,
    harness: Annotated[str | None, typer.Option(help="Harness, instead of the scenario's.")] = None,
    only: Annotated[
        str | None, typer.Option(help="Id of the task, where the gateways' scenario of that name has a task set.")
    ] = None,
    task_id: Annotated[str | None, typer.Option(help="The task's id. [default: the server makes one up]")] = None,
    priority: Annotated[int, typer.Option(help="Higher goes first.")] = 0,
    stop_after: Annotated[int | None, typer.Option(min=1, help="Enough usable samples to stop at.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Sent again with it, it is the same task.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end, and show where it stands.")] = False,
    server_url: Server = URL,
    token_file: TokenFile = None,
    json: JsonFlag = False,
) -> None:
    """Give a task to a rollout server. With --wait: exit code 1 unless it completed."""
    with exit_codes():
        request = _request(task, samples, harness, only, task_id, priority, stop_after)
    with client_of(server_url, token_file) as client:
        accepted = client.submit(request, idempotency_key=idempotency_key)
        if not wait:
            print_json(accepted.model_dump()) if json else tell(out, accepted.task_id)
            return
        ended = _watch(client, accepted, quiet=json)
    print_json(ended.model_dump()) if json else out.print(_table([ended]))
    if ended.status != "completed":
        raise typer.Exit(FAILED)


def status(
    task_id: Annotated[str | None, typer.Argument(help="A task; without it, the newest ones.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Tasks to list.")] = 20,
    server_url: Server = URL,
    token_file: TokenFile = None,
    json: JsonFlag = False,
) -> None:
    """Show where tasks stand."""
    with client_of(server_url, token_file) as client:
        tasks = [client.task(task_id)] if task_id else client.tasks(limit=limit).items
    if json:
        print_json([task.model_dump() for task in tasks])
    else:
        out.print(_table(tasks))


def results(
    task_id: Annotated[str, typer.Argument(help="The task.")],
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the task has ended.")] = False,
    trajectory: Annotated[bool, typer.Option("--trajectory", help="With the traces, in --json.")] = False,
    server_url: Server = URL,
    token_file: TokenFile = None,
    json: JsonFlag = False,
) -> None:
    """Show what came of a task: a line a session; with --json one JSON object a line."""
    with client_of(server_url, token_file) as client:
        if follow:
            found = (
                line.result for line in client.stream_results(task_id, trajectory=trajectory) if line.result is not None
            )
        else:
            found = iter(client.results(task_id, trajectory=trajectory).results)
        for result in found:
            if json:
                typer.echo(result.model_dump_json())
            else:
                tell(out, _line(result))


def cancel(
    task_id: Annotated[str, typer.Argument(help="The task.")],
    server_url: Server = URL,
    token_file: TokenFile = None,
    json: JsonFlag = False,
) -> None:
    """End a task: what runs is ended, what waits is taken out of the line."""
    with client_of(server_url, token_file) as client:
        task = client.cancel(task_id)
    print_json(task.model_dump()) if json else out.print(_table([task]))


class client_of:  # noqa: N801  (a context manager)
    """A client of the server, whose errors become a message and an exit code."""

    def __init__(self, url: str, token_file: Path | None) -> None:
        try:
            token = token_file.read_text().strip() if token_file else os.environ.get("POLAR_ROLLOUT_TOKEN", "")
        except (OSError, UnicodeDecodeError) as error:
            tell(
                err,
                f"polar: the token cannot be read from {token_file}: {error}; `polar rollout serve` prints where it is",
                style="red",
            )
            raise typer.Exit(BAD_USAGE) from error
        if not token:
            tell(err, "polar: no token: name the server's with --token-file, or set $POLAR_ROLLOUT_TOKEN", style="red")
            raise typer.Exit(BAD_USAGE)
        from polar_mitm.client.sync import RolloutClient

        self._client = RolloutClient(url, token)

    def __enter__(self) -> Any:
        return self._client

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from polar_mitm.client.requests import ApiError, RolloutError

        self._client.close()
        if isinstance(error, RolloutError):
            tell(err, f"polar: {error}", style="red")
            if not isinstance(error, ApiError):
                tell(err, "is `polar rollout serve` running there? It prints its address (--server-url) and its token")
            mend = "name the server's token: --token-file, or $POLAR_ROLLOUT_TOKEN"
            if isinstance(error, ApiError) and error.status == 401:
                tell(err, mend)
            raise typer.Exit(BAD_USAGE if isinstance(error, ApiError) and error.status != 401 else NOT_READY) from error


def _request(
    task: str,
    samples: int | None,
    harness: str | None,
    only: str | None,
    task_id: str | None,
    priority: int,
    stop_after: int | None,
) -> TaskRequest:
    """Raises ScenarioError; a bad request as JSON is bad usage."""
    path = Path(task)
    fields: dict[str, Any] = {}
    if path.suffix == ".json" and path.is_file():
        try:
            fields = TaskRequest.model_validate_json(path.read_bytes()).model_dump(exclude_unset=True)
        except ValidationError as error:
            first = error.errors()[0]
            tell(err, f"polar: {path}: {'.'.join(map(str, first['loc']))}: {first['msg']}", style="red")
            raise typer.Exit(BAD_USAGE) from error
    elif path.is_file():
        scenario = load(path)
        if scenario.tasks is not None:
            raise _refused(f"{path} is a set of tasks: {TASK_SETS}")
        inline = scenario.model_dump(mode="json", exclude_unset=True, exclude={"path", "instruction_file"})
        inline["instruction"] = scenario.instruction_text
        fields = {"scenario": inline, "num_samples": scenario.samples}
    elif path.is_dir() and not _comes_with_polar(task):
        raise _refused(
            f"{task} is a folder: name a scenario file; for a task set (Harbor, SWE-bench, JSONL) {TASK_SETS}"
        )
    elif "/" in task or path.suffix in FILES:
        raise _refused(f"{task}: no such file; a scenario that the gateways know is named without folder and suffix")
    else:
        fields = {"scenario": task}
    if only is not None and not isinstance(fields["scenario"], str):
        raise _refused(f"--only picks from a task set, and {path} is one task; for a task set {TASK_SETS}")
    given = {"num_samples": samples, "task_id": task_id, "stop_after": stop_after, "priority": priority or None}
    fields |= {name: value for name, value in given.items() if value is not None}
    if harness:
        fields["changes"] = {**fields.get("changes", {}), "harness": harness}
    if only is not None:
        fields["changes"] = {**fields.get("changes", {}), "tasks": {"only": [only]}}
    return TaskRequest.model_validate(fields)


def _refused(why: str) -> typer.Exit:
    tell(err, f"polar: {why}", style="red")
    return typer.Exit(BAD_USAGE)


def _comes_with_polar(name: str) -> bool:
    try:
        return bool(bundled(name))
    except ScenarioError:
        return False


def _watch(client: Any, task: Task, *, quiet: bool) -> Task:
    if (stands := client.task(task.task_id)).status not in ENDED and stands.status_reason:
        tell(err, f"{task.task_id}: {stands.status_reason}")
    if quiet or not out.is_terminal:
        return client.wait(task.task_id)  # type: ignore[no-any-return]  # a client of either kind
    with Live(_table([task]), console=out, refresh_per_second=2, transient=True) as live:
        for line in client.stream_results(task.task_id):
            live.update(_table([client.task(task.task_id)]))
            if line.type == "end":
                break
    return client.task(task.task_id)  # type: ignore[no-any-return]


def _table(tasks: list[Task]) -> Group:
    """A row a task, and a line for each that says why it stands as it does."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", overflow="fold")
    for name in ("status", "samples", "done", "usable", "live", "reward"):
        table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True)
    for task in tasks:
        counts = task.samples
        done = counts.completed + counts.failed + counts.timeout + counts.cancelled + counts.error
        reward = "-" if task.mean_reward is None else f"{task.mean_reward:.2f}"
        table.add_row(
            task.task_id, task.status, str(task.num_samples), str(done), str(counts.usable), str(counts.live), reward
        )
    whys = [Text(printable(f"{task.task_id}: {task.status_reason}")) for task in tasks if task.status_reason]
    return Group(table, *whys)


def _line(result: Result) -> str:
    session = result.session
    reward = "-" if session.reward is None else f"{session.reward:g}"
    why = f": {session.status_reason}" if session.status_reason not in (None, session.status) else ""
    return (
        f"sample {session.sample}: {session.status}{why}, {many(result.calls, 'call')}, "
        f"{many(result.trained_tokens or 0, 'trained token')}, reward {reward}  {session.session_id}"
    )
