"""What a scenario comes to: the scenario with its tasks, or one of its own for each Harbor task or row of SWE-bench.

These differ in image, limits, time and tests, so each gets a scenario; they share the name, within which samples are
compared.
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
from polar_mitm.tasks.harbor.setting import ORACLE, Setting
from polar_mitm.tasks.scenario import Scenario
from polar_mitm.tasks.swebench import rows
from polar_mitm.tasks.swebench.rows import Row
from polar_mitm.tasks.swebench.setting import Setting as SwebenchSetting
from polar_mitm.tasks.task_set import Task, tasks_of

type Work = list[tuple[Scenario, list[Task]]]

NO_LIMIT_S: Final = 24 * 3600.0
"""For a Harbor task that sets its agent no limit: harbor waits for ever, and no harness needs a day."""


def work_of(scenario: Scenario) -> Work:
    """In the order of the file or of the folders' names. Raises ScenarioError and OSError."""
    tasks = scenario.tasks
    if tasks is None:
        return [(scenario, tasks_of(scenario))]
    if tasks.swebench is not None:
        return list(_of_swebench(scenario, tasks, scenario.path.parent / tasks.swebench))
    if tasks.harbor is None:
        return [(scenario, tasks_of(scenario))]
    root = scenario.path.parent / tasks.harbor
    if is_task(root):
        return [_of_harbor(scenario, tasks, root, scenario.name)]
    if not root.is_dir():
        raise ScenarioError(root, None, "", "expected a Harbor task folder, or a folder of such")
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir() and is_task(folder))
    if not folders:
        raise ScenarioError(root, None, "", f"expected {CONFIG}, or folders that have one")
    chosen = tasks.chosen(root, [(folder.name, folder) for folder in folders])
    return [_of_harbor(scenario, tasks, folder, f"{scenario.name}/{folder.name}") for folder in chosen]


def notes_of(work: Work) -> Iterator[str]:
    """What is done otherwise than the tasks ask for, each thing once, with the tasks that it is so for."""
    said: dict[str, list[str]] = {}
    for scenario, tasks in work:
        if setting := scenario.harbor or scenario.swebench:
            for note in setting.notes():
                said.setdefault(note, []).append(tasks[0].id)
    for note, names in said.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"{', '.join(names[:3])}{more}: {note}"


def fields_of(path: Path) -> dict[str, Any] | None:
    """The fields of a scenario for what is given in place of one: a Harbor task folder, a folder of such, a file of
    SWE-bench rows. None: it is none of them. Raises ScenarioError."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name).lstrip("._-") or "tasks"
    if path.is_dir():
        if not is_task(path) and not any(is_task(inner) for inner in path.iterdir() if inner.is_dir()):
            what = f"expected a scenario file, a Harbor task folder (with {CONFIG}), or a folder of such"
            raise ScenarioError(path, None, "", what)
        return {"name": name, "tasks": {"harbor": str(path.resolve())}}
    if path.suffix in rows.SUFFIXES and not rows.is_one_mapping(path):
        return {"name": name.removesuffix(path.suffix), "tasks": {"swebench": str(path.resolve())}}
    return None


def _of_swebench(scenario: Scenario, tasks: TaskSet, path: Path) -> Iterator[tuple[Scenario, list[Task]]]:
    seen: dict[str, Row] = {}
    for line, row in rows.read(path):
        if row.instance_id in seen:
            raise ScenarioError(path, line, "instance_id", f"expected an id of its own; got {row.instance_id} twice")
        seen[row.instance_id] = row
    if not seen:
        raise ScenarioError(path, None, "", "expected rows; there are none")
    oracle = scenario.harness == ORACLE
    for row in tasks.chosen(path, seen.items()):
        network = tasks.tests_network == "public"
        setting = SwebenchSetting(row, tests_network=network, saved_log=scenario.grades_saved_logs, oracle=oracle)
        if oracle and not row.patch:
            raise ScenarioError(path, None, "patch", f"{row.instance_id}: the oracle needs the row's solution")
        made = scenario.model_copy(update={"swebench": setting})
        yield made, [Task(f"{scenario.name}/{row.instance_id}", row.problem_statement)]


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
