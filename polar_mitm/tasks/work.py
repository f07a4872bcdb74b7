"""What a scenario comes to: the scenario with its tasks, or one of its own for each Harbor task that it names.

Harbor tasks differ in image, limits, time and tests, so each gets a scenario; they share the name, within which samples
are compared.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from polar_mitm.harnesses import RUNNABLE, refusals
from polar_mitm.harnesses.base import mode_of
from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.fields import LimitFields, McpServer, TaskSet
from polar_mitm.tasks.harbor.folder import CONFIG, HarborTask, is_task
from polar_mitm.tasks.harbor.place import limits_of
from polar_mitm.tasks.harbor.setting import Setting
from polar_mitm.tasks.scenario import Scenario
from polar_mitm.tasks.task_set import Task, tasks_of

type Work = list[tuple[Scenario, list[Task]]]

NO_LIMIT_S: Final = 24 * 3600.0
"""For a Harbor task that sets its agent no limit: harbor waits for ever, and no harness needs a day."""


def work_of(scenario: Scenario) -> Work:
    """In the order of the file or of the folders' names. Raises ScenarioError and OSError."""
    tasks = scenario.tasks
    if tasks is None or tasks.harbor is None:
        return [(scenario, tasks_of(scenario))]
    root = scenario.path.parent / tasks.harbor
    if is_task(root):
        return [_of_harbor(scenario, tasks, root, scenario.name)]
    if not root.is_dir():
        raise ScenarioError(root, None, "", "expected a Harbor task folder, or a folder of such")
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir() and is_task(folder))[: tasks.limit]
    if not folders:
        raise ScenarioError(root, None, "", f"expected {CONFIG}, or folders that have one")
    return [_of_harbor(scenario, tasks, folder, f"{scenario.name}/{folder.name}") for folder in folders]


def notes_of(work: Work) -> Iterator[str]:
    """What is done otherwise than the tasks ask for, each thing once, with the tasks that it is so for."""
    said: dict[str, list[str]] = {}
    for scenario, tasks in work:
        if scenario.harbor is not None:
            for note in scenario.harbor.notes():
                said.setdefault(note, []).append(tasks[0].id)
    for note, names in said.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"{', '.join(names[:3])}{more}: {note}"


def fields_of_folder(folder: Path) -> dict[str, Any]:
    """The fields of a scenario for a folder that is given in place of one. Raises ScenarioError."""
    if not is_task(folder) and not any(is_task(inner) for inner in folder.iterdir() if inner.is_dir()):
        what = f"expected a scenario file, a Harbor task folder (with {CONFIG}), or a folder of such"
        raise ScenarioError(folder, None, "", what)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).lstrip("._-") or "tasks"
    return {"name": name, "tasks": {"harbor": str(folder.resolve())}}


def _of_harbor(scenario: Scenario, tasks: TaskSet, folder: Path, name: str) -> tuple[Scenario, list[Task]]:
    task = HarborTask.load(folder)
    setting = Setting(task, scenario.harness, tasks.tests_network, tuple(tasks.host_env))
    setting.refuse()
    config = task.config
    limits = limits_of(config.environment)
    own = {
        "cpus": limits.cpus,
        "memory_mb": limits.memory_mb,
        "disk_mb": limits.disk_mb,
        **scenario.limits.model_dump(exclude_none=True),
    }
    servers = {
        server.name: McpServer(command=server.command or "", args=server.args)
        for server in config.environment.mcp_servers
        if server.transport == "stdio"
    }
    timeout_s = config.agent.timeout_sec or NO_LIMIT_S
    made = scenario.model_copy(
        update={
            "limits": LimitFields.model_construct(**own),
            "mcp_servers": {**servers, **scenario.mcp_servers},
            "timeout_s": scenario.timeout_s if "timeout_s" in scenario.model_fields_set else timeout_s,
            "harbor": setting,
        }
    )
    _check(made, task)
    return made, [Task(name, task.instruction, _data(task))]


def _check(scenario: Scenario, task: HarborTask) -> None:
    if refused := refusals(RUNNABLE[scenario.harness], mode_of(scenario.intercept), scenario.assignment("")):
        raise ScenarioError(task.folder / CONFIG, None, "", "; ".join(refused))


def _data(task: HarborTask) -> dict[str, Any]:
    return {"metadata": task.config.metadata}
