"""Where a task is worked on: the image of its container, and the folder that the workspace takes the place of."""

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from polar_mitm.sandboxes import images
from polar_mitm.sandboxes.base import SandboxError
from polar_mitm.sandboxes.base_image import BASE_IMAGE
from polar_mitm.sandboxes.container import Container
from polar_mitm.tasks.scenario import Scenario


@dataclass(slots=True, frozen=True)
class Place:
    """Of a task outside containers both are None, and the workspace is where its sandbox puts it."""

    image: str | None = None
    workdir: PurePosixPath | None = None


def place_of(scenario: Scenario) -> Place:
    """The scenario's image, built where it is a Dockerfile's. Blocks for as long as the build. Raises SandboxError."""
    if scenario.sandbox != Container.NAME:
        return Place(None, PurePosixPath(scenario.container.workdir) if scenario.container.workdir else None)
    own = scenario.container
    image = own.image or BASE_IMAGE
    if own.build is not None:
        context = scenario.path.parent / own.build
        image = f"localhost/polar-task:{_digest(context)}"
        if not images.has_image(image):
            images.build(context, context / "Dockerfile", image)
    elif not images.has_image(image):
        mend = "make it with `polar sandbox image`" if own.image is None else "pull or build it first"
        raise SandboxError(f"there is no image {image} here: {mend}")
    return Place(image, PurePosixPath(own.workdir) if own.workdir else images.workdir(image))


def _digest(context: Path) -> str:
    """Of all files below a folder, their names and modes: what a build depends on, but for its base image."""
    digest = hashlib.sha256()
    for path in sorted(path for path in context.rglob("*") if path.is_symlink() or path.is_file()):
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        name = path.relative_to(context)
        digest.update(f"{name}\0{path.lstat().st_mode}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:24]
