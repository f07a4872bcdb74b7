"""From an assignment to a session that is open at this gateway's proxy."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from polar_mitm.client.nodes import Assignment
from polar_mitm.engine.pool import EnginePool
from polar_mitm.harnesses import HARNESSES, RUNNABLE
from polar_mitm.harnesses.window import too_long
from polar_mitm.prompts import Tokens
from polar_mitm.proxy.border import Border
from polar_mitm.proxy.master import EmbeddedProxy
from polar_mitm.rollout.gateway.problems import CannotOpen
from polar_mitm.rollout.sample import Job, Sample
from polar_mitm.rollout.ways_in import refusal
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.sandboxes.base import SandboxError
from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.reading import bundled, load
from polar_mitm.tasks.scenario import Scenario
from polar_mitm.tasks.task_set import Task
from polar_mitm.tasks.work import work_of

type Make = Callable[[Job, Task, int, int, str], Sample]
"""Makes the sample of a job and a task: its number, its attempt, its session's id. It opens the session."""


@dataclass(slots=True, frozen=True)
class Opening:
    engine: EnginePool
    border: Border
    proxy: EmbeddedProxy
    sessions: Path
    assignments: Path
    """Folder of the scenarios that came with assignments, a file each."""
    scenarios: Path | None
    tokens: Tokens
    tokens_reason: str | None
    make: Make = Sample

    async def __call__(self, assignment: Assignment) -> Sample:
        """Raises CannotOpen, ScenarioError, HarnessMissing and OSError."""
        scenario = await asyncio.to_thread(self._scenario, assignment)
        instruction, data = assignment.instruction, dict(assignment.data)
        if scenario.tasks is not None and (scenario.tasks.file is None or instruction is None):
            scenario, given = await asyncio.to_thread(_one_of, scenario)
            instruction, data = instruction or given.instruction, given.data | data
        harness, sandbox = RUNNABLE[scenario.harness], SANDBOXES[scenario.sandbox]
        wanted, served = assignment.policy_version, self.engine.policy.version
        if wanted not in (None, served):
            raise CannotOpen(f"the task asks for the policy {wanted}, and {served or 'an unnamed one'} is served here")
        installed = await asyncio.to_thread(harness.find)
        window = scenario.window or self.engine.capabilities.max_model_len
        why = refusal(scenario.intercept, sandbox) or (window and too_long(harness, window, HARNESSES.values()))
        if why:
            raise CannotOpen(why)
        if problems := await asyncio.to_thread(sandbox.check) or scenario.evaluator.lacks():
            raise SandboxError("; ".join(problems))
        job = Job(
            scenario,
            harness,
            installed,
            sandbox,
            self.engine,
            self.border,
            self.proxy,
            self.sessions,
            self.tokens,
            self.tokens_reason,
            group=assignment.group_id,
            policy_version=assignment.policy_version,
        )
        task = Task(assignment.task_id, instruction or scenario.instruction_text, data)
        return self.make(job, task, assignment.sample, assignment.attempt, assignment.session_id)

    def _scenario(self, assignment: Assignment) -> Scenario:
        """Its fields come in the assignment, or it names a file that this gateway has."""
        changes: dict[str, object] = dict(assignment.changes)
        if isinstance(assignment.scenario, str):
            return load(self._named(assignment.scenario), changes)
        path = self.assignments / f"{assignment.session_id}.yaml"
        fields = dict(assignment.scenario)
        if assignment.instruction is not None:
            for name in ("instruction_file", "tasks"):
                fields.pop(name, None)
            changes["instruction"] = assignment.instruction
        fields.setdefault("name", "task")
        path.write_bytes(orjson.dumps(fields))  # JSON is YAML
        scenario = load(path, changes)
        if scenario.tasks is not None and scenario.tasks.file is not None:
            raise ScenarioError(path, None, "tasks", "expected one task: a task request is one")
        return scenario

    def _named(self, name: str) -> Path:
        if "/" in name or name.startswith("."):
            raise CannotOpen(f"{name!r} is no name of a scenario")
        if self.scenarios and (path := self.scenarios / f"{name}.yaml").is_file():
            return path
        return bundled(name)


def _one_of(scenario: Scenario) -> tuple[Scenario, Task]:
    """Of a task set."""
    match work_of(scenario):
        case [(made, [task])]:
            return made, task
    what = "expected one task: a task request is one; name it, by --only or `changes: {tasks: {only: [ID]}}`"
    raise ScenarioError(scenario.path, None, "tasks", what)
