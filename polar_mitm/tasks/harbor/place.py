"""Where a Harbor task is worked on: its image, user, home, variables, limits, and the folders under /logs."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from polar_mitm.sandboxes import images
from polar_mitm.sandboxes.base import Own, Ready, SandboxError
from polar_mitm.sandboxes.limits import Limits
from polar_mitm.tasks.harbor import inputs, variables
from polar_mitm.tasks.harbor.config import Environment
from polar_mitm.tasks.harbor.folder import SOLVE, HarborTask, ImageSource
from polar_mitm.tasks.harbor.setting import ORACLE, Setting

LOGS: Final = PurePosixPath("/logs")
SOLUTION: Final = PurePosixPath("/solution")
LOG_FOLDERS: Final = ("agent", "verifier", "artifacts")


@dataclass(slots=True, frozen=True)
class HarborPlace:
    setting: Setting
    image: str
    """As it was before anyone worked in it."""
    workdir: PurePosixPath
    user: str
    home: PurePosixPath
    env: dict[str, str]
    """The task's own."""
    agent_env: dict[str, str]
    own: Own
    """The agent's."""
    logs: Path
    """The session's `logs`, with a folder for each of LOG_FOLDERS."""


def prepare(setting: Setting, session: Path) -> HarborPlace:
    """Build or find the task's image, and make the folders of the session. Raises SandboxError and OSError."""
    task = setting.task
    environment = task.config.environment
    image = image_of(task.image)
    user = str(task.config.agent.user) if task.config.agent.user is not None else images.user(image)
    env = variables.resolved(environment.env, setting.host_env)
    logs = make_logs(session)
    mounts = {LOGS / name: logs / name for name in LOG_FOLDERS}
    agent_env = dict(env)
    if setting.harness == ORACLE:
        agent_env |= {"DEBIAN_FRONTEND": "noninteractive"}
        agent_env |= variables.resolved(task.config.solution.env, setting.host_env)
        mounts[SOLUTION] = _solution(task, session)
    return HarborPlace(
        setting=setting,
        image=image,
        workdir=workdir_of(environment, image),
        user=user,
        home=images.home_of(image, user),
        env=env,
        agent_env=agent_env,
        own=Own(user, mounts, ready_of(environment)),
        logs=logs,
    )


def image_of(source: ImageSource) -> str:
    """The name of the image, built where it is a Dockerfile's. Raises SandboxError."""
    environment, dockerfile = source.environment, source.folder / "Dockerfile"
    if source.image is None:
        return images.of_folder(source.folder, timeout_s=environment.build_timeout_sec)
    if not images.has_image(source.image):
        raise SandboxError(f"there is no image {source.image} here, which the task names: pull it first")
    # Files beside no Dockerfile are the task's way to add to an image that is not its own.
    if source.has_tests or dockerfile.exists() or not source.folder.is_dir() or not any(source.folder.iterdir()):
        return source.image
    return images.with_files(source.image, source.folder, workdir_of(environment, source.image))


def workdir_of(environment: Environment, image: str) -> PurePosixPath:
    return PurePosixPath(environment.workdir or images.workdir(image) or "/")


def limits_of(environment: Environment) -> Limits:
    return Limits(cpus=environment.cpus, memory_mb=environment.memory_mb, disk_mb=environment.storage_mb)


def ready_of(environment: Environment, *, required: bool = True) -> Ready | None:
    check = environment.healthcheck
    if check is None:
        return None
    return Ready(
        check.command,
        interval_s=check.interval_sec,
        timeout_s=int(check.timeout_sec),
        start_period_s=int(check.start_period_sec),
        start_interval_s=check.start_interval_sec,
        retries=check.retries,
        required=required,
    )


def make_logs(session: Path) -> Path:
    logs = session / "logs"
    for name in LOG_FOLDERS:
        (logs / name).mkdir(parents=True, exist_ok=True)
        (logs / name).chmod(0o777)  # the user of the container need not be its root
    return logs


def _solution(task: HarborTask, session: Path) -> Path:
    folder = session / "solution"
    inputs.copy(task.solution, folder)
    (folder / SOLVE).chmod(0o755)
    return folder
