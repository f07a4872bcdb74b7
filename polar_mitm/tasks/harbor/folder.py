"""One Harbor task folder, read and checked: what is there, and what of its image, tests and solution is used."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.harbor import config, inputs
from polar_mitm.tasks.harbor.config import Environment, TaskFile

CONFIG: Final = "task.toml"
TEST: Final = "test.sh"
SOLVE: Final = "solve.sh"
COMPOSE: Final = "docker-compose.yaml"

# Marks by which a data set is found again where it should not be. They are not the task's: no agent is to see them.
_CANARY: Final = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class ImageSource:
    """Where an image comes from: `image` by its name, or the Dockerfile of a folder."""

    environment: Environment
    folder: Path
    image: str | None
    has_tests: bool = False
    """The tests lie in it already."""


@dataclass(slots=True, frozen=True)
class HarborTask:
    folder: Path
    """Absolute."""
    config: TaskFile
    instruction: str

    @classmethod
    def load(cls, folder: Path) -> "HarborTask":
        """Raises ScenarioError, which names the file, the field and what was expected."""
        folder = folder.resolve()
        task = cls(folder, config.read(folder / CONFIG), _instruction(folder / "instruction.md"))
        task._check()
        return task

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def tests(self) -> Path:
        return self.folder / "tests"

    @property
    def solution(self) -> Path:
        return self.folder / "solution"

    @property
    def image(self) -> ImageSource:
        """What the agent works in."""
        environment = self.config.environment
        return ImageSource(environment, self.folder / "environment", environment.docker_image)

    @property
    def verifier_image(self) -> ImageSource | None:
        """What the tests run in; None: what the agent left of its own."""
        verifier = self.config.verifier
        if not verifier.separate:
            return None
        environment = verifier.environment or self.config.environment
        if verifier.environment is not None and verifier.environment.docker_image:
            return ImageSource(environment, self.tests, verifier.environment.docker_image, has_tests=True)
        if any((self.tests / name).is_file() for name in ("Dockerfile", COMPOSE)):
            return ImageSource(environment, self.tests, None, has_tests=True)
        return ImageSource(environment, self.folder / "environment", self.config.environment.docker_image)

    def _check(self) -> None:
        for source in (self.image, self.verifier_image):
            if source is None or source.image or any((source.folder / n).is_file() for n in ("Dockerfile", COMPOSE)):
                continue
            what = "expected a Dockerfile, or a docker_image in task.toml"
            raise ScenarioError(source.folder, None, "", what)
        if self.verifier_image is None or not self.verifier_image.has_tests:
            inputs.check(self.tests, self.folder, TEST)


def is_task(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def _instruction(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(path, None, "", f"expected a text file: {error}") from error
    lines = text.split("\n")
    marked = next((n for n, line in enumerate(lines) if not _CANARY.fullmatch(line.strip())), len(lines))
    text = "\n".join(lines[marked:])
    if not text.strip():
        raise ScenarioError(path, None, "", "expected text; it says nothing")
    return re.sub(r"\A(?:[^\S\n]*\n)+", "", text)
