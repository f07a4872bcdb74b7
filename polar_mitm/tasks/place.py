"""Where a task is worked on: the image of its container, and the folder that the workspace takes the place of."""

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from polar_mitm.sandboxes import images
from polar_mitm.sandboxes.base import Layout, Own, RunSpec, SandboxError
from polar_mitm.sandboxes.base_image import BASE_IMAGE
from polar_mitm.sandboxes.container import Container
from polar_mitm.tasks.harbor.place import HarborPlace, prepare
from polar_mitm.tasks.scenario import Scenario
from polar_mitm.tasks.swebench.place import prepare as prepare_row


@dataclass(slots=True, frozen=True)
class Inside:
    """A task that is worked on in its image's own files: no folder of the host takes the place of one of them."""

    own: Own
    home: PurePosixPath
    env: dict[str, str]
    """What the task adds to the agent's variables."""


@dataclass(slots=True, frozen=True)
class Place:
    """Of a task outside containers all are None, and the workspace is where its sandbox puts it."""

    image: str | None = None
    workdir: PurePosixPath | None = None
    inside: Inside | None = None
    harbor: HarborPlace | None = None

    def layout(self, layout: Layout) -> Layout:
        """What the sandbox says of where things are, as it is for this task."""
        if self.inside is None or self.workdir is None:
            return layout
        return replace(layout, workspace=self.workdir, home=self.inside.home)

    def settle(self, spec: RunSpec) -> None:
        """Put into the harness's run what the task says of its place. Blocks. Raises SandboxError."""
        spec.image, spec.workdir, spec.keep = self.image, self.workdir, self.image is not None
        if self.inside is not None:
            spec.own = self.inside.own
            if self.image is not None and spec.own.user not in ("0", "root"):
                spec.image = images.passable(self.image, spec.read_only)
            # The image's user is who it is: the names that a harness is given elsewhere would be another's.
            given = {name: value for name, value in spec.env.items() if name not in ("USER", "LOGNAME")}
            spec.env = self.inside.env | given


def place_of(scenario: Scenario, session: Path) -> Place:
    """The scenario's image, built where it is a Dockerfile's. Blocks for as long as the build. `session` is the
    session's folder. Raises SandboxError and OSError."""
    if scenario.harbor is not None:
        found = prepare(scenario.harbor, session)
        inside = Inside(found.own, found.home, found.agent_env)
        return Place(found.image, found.workdir, inside, found)
    if scenario.swebench is not None and scenario.sandbox == Container.NAME:
        row = prepare_row(scenario.swebench, session)
        return Place(row.image, row.workdir, Inside(row.own, row.home, {}))
    if scenario.sandbox != Container.NAME:
        return Place(None, PurePosixPath(scenario.container.workdir) if scenario.container.workdir else None)
    own = scenario.container
    image = own.image or BASE_IMAGE
    if own.build is not None:
        image = images.of_folder(scenario.path.parent / own.build)
    elif not images.has_image(image):
        mend = "make it with `polar sandbox image`" if own.image is None else "pull or build it first"
        raise SandboxError(f"there is no image {image} here: {mend}")
    return Place(image, PurePosixPath(own.workdir) if own.workdir else images.workdir(image))
