"""What the user decides of how Harbor tasks run, and what of a task polar cannot give under it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.harbor import variables
from polar_mitm.tasks.harbor.config import Environment
from polar_mitm.tasks.harbor.folder import COMPOSE, CONFIG, SOLVE, HarborTask, ImageSource
from polar_mitm.tasks.harbor.inputs import check

type TestsNetwork = Literal["none", "public"]

ORACLE: Final = "oracle"
"""The harness that runs a task's own solution."""


@dataclass(slots=True, frozen=True)
class Setting:
    """One task, and how it is to be run."""

    task: HarborTask
    harness: str
    tests_network: TestsNetwork | None = None
    """None: the user has not said, and tests that may use a network are refused."""
    host_env: tuple[str, ...] = ()
    """Variables of this machine that the task may have."""

    @property
    def network_of_tests(self) -> bool:
        return self.task.config.verifier_network != "no-network" and self.tests_network == "public"

    def refuse(self) -> None:
        """Raises ScenarioError with the first thing that polar cannot give this task."""
        for field, why in _refusals(self):
            raise ScenarioError(self.task.folder / CONFIG, None, field, why)
        if self.harness == ORACLE:
            check(self.task.solution, self.task.folder, SOLVE)

    def notes(self) -> Iterator[str]:
        """What is done otherwise than task.toml says, though the task can be run."""
        config = self.task.config
        if config.unknown:
            yield f"task.toml has fields that harbor does not know, which change nothing: {', '.join(config.unknown)}"
        if config.agent_network != "no-network" and self.harness != ORACLE:
            yield f"its agent may use the network ({config.agent_network}), and gets none but the way to its model"
        if config.verifier_network != "no-network" and not self.network_of_tests:
            yield f"its tests may use the network ({config.verifier_network}), and get none, as was asked for"


def _refusals(setting: Setting) -> Iterator[tuple[str, str]]:
    task, config = setting.task, setting.task.config
    if config.steps:
        yield "steps", "a task of several steps is not run by polar: expected one instruction"
    for field, source in (("environment", task.image), ("verifier.environment", task.verifier_image)):
        if source is not None:
            yield from _of_image(field, source)
    for field, services in (
        ("artifacts", [artifact.service for artifact in config.artifacts]),
        ("verifier.collect", [collect.service for collect in config.verifier.collect]),
    ):
        if other := next((service for service in services if service not in (None, "main")), None):
            yield field, f"there is one container, main; got the service {other!r}"
    if setting.harness != ORACLE:
        yield from _of_agent(setting)
    yield from _of_network(setting)
    needed = [
        ("environment.env", config.environment.env),
        ("verifier.env", config.verifier.env),
        ("verifier.environment.env", config.verifier.environment.env if config.verifier.environment else {}),
        ("solution.env", config.solution.env if setting.harness == ORACLE else {}),
    ]
    for field, wanted in needed:
        if names := variables.missing(wanted, setting.host_env):
            yield field, f"it wants ${names[0]} of this machine: set it, and allow it with --host-env {names[0]}"


def _of_image(field: str, source: ImageSource) -> Iterator[tuple[str, str]]:
    environment = source.environment
    if (source.folder / COMPOSE).is_file():
        yield field, f"{source.folder.name}/{COMPOSE} asks for several containers, and polar runs one"
    if environment.os != "linux":
        yield f"{field}.os", f"expected linux; got {environment.os!r}"
    if environment.gpus or environment.tpu:
        yield f"{field}.{'gpus' if environment.gpus else 'tpu'}", "a container of polar's has no accelerator"


def _of_agent(setting: Setting) -> Iterator[tuple[str, str]]:
    environment: Environment = setting.task.config.environment
    for server in environment.mcp_servers:
        if server.transport != "stdio":
            what = f"{server.name} is reached over {server.transport}, and the agent has no network: expected stdio"
            yield "environment.mcp_servers", what
        elif not server.command:
            yield "environment.mcp_servers", f"expected a command for {server.name}"
    if environment.skills_dir:
        yield "environment.skills_dir", "polar gives a harness no skills; only the oracle can run this task"
    if (setting.task.folder / "trajectory.json").is_file():
        yield "trajectory.json", "a harness begins with no past of another's; only the oracle can run this task"


def _of_network(setting: Setting) -> Iterator[tuple[str, str]]:
    mode, chosen = setting.task.config.verifier_network, setting.tests_network
    field = "verifier.network_mode"
    if mode == "public" and chosen is None:
        said = "which is what harbor takes when nothing is said"
        mend = "choose with --tests-network public, which gives it to them, or --tests-network none"
        yield field, f"its tests may use the network (public, {said}): {mend}"
    if mode == "allowlist" and chosen != "none":
        yield field, "polar cannot keep tests to a list of hosts: only with --tests-network none"
