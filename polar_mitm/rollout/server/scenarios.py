"""What a request's scenario needs of a gateway; one that no gateway could run is refused before it is taken."""

from pathlib import Path

from pydantic import ValidationError

from polar_mitm.client.models import TaskRequest
from polar_mitm.rollout.store.entries import Lane
from polar_mitm.tasks.scenario import Scenario

THERE = Path("task.yaml")
"""Stands for the file that a scenario sent as fields has not."""


MENDS = {
    "tasks": "a request is one task and its files are not here: name a scenario of the gateways' --scenarios folder "
    'that has the task set, and pick one by `changes: {"tasks": {"only": [ID]}}`',
    "instruction_file": "a file of yours is not here: send what it says as `instruction`",
    "path": "a file of yours is not here: leave it out",
}
"""Fields that name files, and what to do instead."""


class ScenarioRefused(Exception):
    """The scenario cannot be run; `field` is a dotted path in the request."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def lane_of(request: TaskRequest) -> Lane:
    """Raises ScenarioRefused."""
    if isinstance(request.scenario, str):
        named = [request.changes.get(name) for name in ("harness", "sandbox")]
        harness, sandbox = [name if isinstance(name, str) else None for name in named]
        return Lane(request.policy_version, harness, sandbox, request.scenario)
    fields = {"name": "task"} | request.scenario | request.changes
    if request.instruction is not None:
        fields = {k: v for k, v in fields.items() if k not in ("instruction_file", "tasks")}
        fields["instruction"] = request.instruction
    for name in MENDS:
        if name in fields:
            raise ScenarioRefused(f"scenario.{name}", MENDS[name])
    try:
        scenario = Scenario.model_validate(fields | {"path": THERE})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(("scenario", *(str(part) for part in first["loc"])))
        raise ScenarioRefused(place, first["msg"]) from None
    return Lane(request.policy_version, scenario.harness, scenario.sandbox)
