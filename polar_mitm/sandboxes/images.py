"""The container engine of this machine, podman or docker, and its images.

Which one, and arguments for its `run`, are configuration: `$POLAR_CONTAINER_ENGINE`, `$POLAR_CONTAINER_ARGS`. Without
them podman is taken before docker, and the first arguments with which a container starts here.
"""

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

from polar_mitm.sandboxes.base import SandboxError

STEP_S: Final = 120.0
"""For the engine's own short commands."""

KEPT: Final = "localhost/polar-kept"
"""Images of what containers left, tagged by session."""

BUILT: Final = "localhost/polar-task"
"""Images that were built here, tagged by what they were built from."""

# Tried in this order. Old kernels' mixed control groups need runc; a container in a container may raise no limit.
_VARIANTS: Final = (
    (),
    ("--runtime", "runc"),
    ("--runtime", "runc", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"),
    ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"),
)

_worked: list[tuple[str, ...]] = []
_building: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def engine() -> str:
    """The engine's program. Raises SandboxError when there is none."""
    wanted = os.environ.get("POLAR_CONTAINER_ENGINE")
    for name in (wanted,) if wanted else ("podman", "docker"):
        if found := shutil.which(name):
            return found
    if wanted:
        raise SandboxError(f"$POLAR_CONTAINER_ENGINE names {wanted}, which is not installed")
    raise SandboxError("neither podman nor docker is installed: apt-get install podman runc fuse-overlayfs")


def said(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What the engine says to a short command of its own. Raises SandboxError without an engine, or when it hangs."""
    program = engine()
    try:
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=STEP_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"{Path(program).name} {arguments[0]} did not end within {STEP_S:.0f} s") from error


@cache
def run_arguments(image: str) -> tuple[str, ...]:
    """The arguments with which a container of this image starts here. Raises SandboxError with what the engine said."""
    if given := os.environ.get("POLAR_CONTAINER_ARGS"):
        return tuple(shlex.split(given))
    if image.startswith(f"{KEPT}:") and _worked:
        return _worked[-1]  # it is what a container left that was started with them
    words = ""
    for variant in _VARIANTS:
        tried = said("run", "--rm", "--pull", "never", *variant, "--network", "none", image, "/bin/sh", "-c", "exit 0")
        if tried.returncode == 0:
            _worked.append(variant)
            return variant
        words = words or tried.stderr.strip()[-500:]
    raise SandboxError(
        f"{Path(engine()).name} cannot start a container of {image} here: {words} "
        "(other arguments for `run`: $POLAR_CONTAINER_ARGS)"
    )


def build(context: Path, dockerfile: Path, tag: str, *, timeout_s: float | None = None) -> None:
    """Build an image from a Dockerfile. Raises SandboxError with the builder's last words, or when it takes too long.

    An image may be wanted by several runs at once: it is built by the first.
    """
    with _building[tag]:
        if not has_image(tag):
            _build(context, dockerfile, tag, timeout_s)


def _build(context: Path, dockerfile: Path, tag: str, timeout_s: float | None) -> None:
    program = engine()
    isolation = ["--isolation", "chroot"] if _is_podman() and os.geteuid() == 0 else []
    command = [program, "build", *isolation, "--quiet", "--tag", tag, "--file", str(dockerfile), str(context)]
    with (
        tempfile.TemporaryFile() as said_by_it,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said_by_it,
            start_new_session=True,
        ) as builder,
    ):
        try:
            code = builder.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise SandboxError(f"{dockerfile} was not built within {timeout_s:g} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(builder.pid, signal.SIGKILL)  # with all that its RUN lines started
        if code != 0:
            said_by_it.seek(0)
            words = said_by_it.read().decode(errors="replace").strip()[-2000:]
            raise SandboxError(f"{dockerfile} could not be built: {words}")


def of_folder(context: Path, *, timeout_s: float | None = None, more: str = "") -> str:
    """The image of a folder with a Dockerfile, built when it is first asked for. `more` is what it depends on besides.
    Raises SandboxError."""
    tag = f"{BUILT}:{_digest(context, more)}"
    build(context, context / "Dockerfile", tag, timeout_s=timeout_s)
    return tag


def with_files(image: str, files: Path, folder: PurePosixPath) -> str:
    """The image with the files of a folder of this machine added to one of its own. Raises SandboxError."""
    tag = f"{BUILT}:{_digest(files, f'{image} {folder}')}"
    with tempfile.TemporaryDirectory(prefix="polar-image-") as scratch:
        dockerfile = Path(scratch) / "Dockerfile"
        dockerfile.write_text(f"FROM {image}\nCOPY {json.dumps(['.', f'{folder}/'])}\n")
        build(files, dockerfile, tag)
    return tag


def passable(image: str, folders: Sequence[Path]) -> str:
    """The image, in which any user may pass the folders above those that are mounted at the same path. An image's /root
    lets nobody through, and polar's own files may lie in this machine's. Raises SandboxError."""
    above = sorted({str(parent) for folder in folders for parent in folder.parents if parent != Path("/")})
    if not above:
        return image
    names = " ".join(map(shlex.quote, above))
    return _with_step(image, f"for folder in {names}; do if [ -d $folder ]; then chmod o+x $folder; fi; done")


def with_volumes(image: str) -> str:
    """The image, in which each folder that it names as a VOLUME is there: see `plain_volumes`. Raises SandboxError."""
    folders = sorted(_configured(image, "Config").get("Volumes") or {})
    return _with_step(image, f"mkdir -p {' '.join(map(shlex.quote, folders))}") if folders else image


def _with_step(image: str, command: str) -> str:
    """The image after a command of its root's."""
    with tempfile.TemporaryDirectory(prefix="polar-image-") as scratch:
        dockerfile = Path(scratch) / "Dockerfile"
        dockerfile.write_text(f"FROM {image}\nUSER 0\nRUN {command}\nUSER {user(image)}")
        return of_folder(Path(scratch), more=_configured(image, "Id"))


def _digest(context: Path, more: str = "") -> str:
    """Of all files below a folder, their names and modes: what a build depends on, but for its base image."""
    digest = hashlib.sha256(more.encode())
    for path in sorted(path for path in context.rglob("*") if path.is_symlink() or path.is_file()):
        digest.update(f"{path.relative_to(context)}\0{path.lstat().st_mode}\0".encode(errors="surrogateescape"))
        if path.is_symlink():
            digest.update(str(path.readlink()).encode(errors="surrogateescape"))
        else:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:24]


def has_image(image: str) -> bool:
    """Whether the engine has the image here; it is not asked to fetch one. Raises SandboxError without an engine."""
    return said("image", "inspect", image).returncode == 0


def extract(image: str, folder: PurePosixPath, target: Path) -> bool:
    """Copy a folder or file out of an image to `target`, which is not there yet. False when the image has none."""
    with _container(image) as name:
        return said("cp", f"{name}:{folder}", str(target)).returncode == 0


def archive(image: str, path: PurePosixPath, target: Path) -> bool:
    """Write a tar file of a folder or file of an image. False when the image has none."""
    with _container(image) as name, target.open("wb") as file:
        command = [engine(), "cp", f"{name}:{path}", "-"]
        pipe = subprocess.PIPE
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=pipe, check=False).returncode == 0


@contextmanager
def _container(image: str) -> Iterator[str]:
    """One that is never started."""
    name = f"polar-extract-{os.urandom(8).hex()}"
    made = said("create", *plain_volumes(), "--name", name, image, "/bin/true")
    if made.returncode != 0:
        raise SandboxError(f"no container can be made of {image}: {made.stderr.strip()[-500:]}")
    try:
        yield name
    finally:
        said("rm", "--force", "--volumes", name)


def plain_volumes() -> tuple[str, ...]:
    """The arguments with which a VOLUME of an image is a folder of it like any other, where it is there at all, and
    part of what is kept."""
    return ("--image-volume", "ignore") if _is_podman() else ()


def loses(image: str) -> list[str]:
    """The folders whose content this engine leaves out of what it keeps of a container. Raises SandboxError."""
    return [] if _is_podman() else sorted(_configured(image, "Config").get("Volumes") or {})


def _is_podman() -> bool:
    return Path(engine()).name.startswith("podman")


def workdir(image: str) -> PurePosixPath | None:
    """The folder in which the image wants to be worked in; None when it does not say. Raises SandboxError."""
    path = _configured(image, "Config").get("WorkingDir")
    return PurePosixPath(path) if path not in (None, "", "/") else None


def user(image: str) -> str:
    """Who its programs run as, by name or number. Raises SandboxError."""
    return _configured(image, "Config").get("User") or "0"


def home_of(image: str, user: str) -> PurePosixPath:
    """The home of a user (`name`, `name:group` or numbers) in the image. Raises SandboxError."""
    for variable in _configured(image, "Config").get("Env") or []:
        if variable.startswith("HOME=/"):
            return PurePosixPath(variable.removeprefix("HOME="))
    with tempfile.TemporaryDirectory(prefix="polar-image-") as scratch:
        file = Path(scratch) / "passwd"
        lines = (
            file.read_text(errors="replace").splitlines() if extract(image, PurePosixPath("/etc/passwd"), file) else []
        )
    for line in lines:
        match line.split(":"):
            case [name, _, number, _, _, home, *_] if user.partition(":")[0] in (name, number) and home.startswith("/"):
                return PurePosixPath(home)
    return PurePosixPath("/root" if user.partition(":")[0] in ("0", "root") else "/tmp")


def _configured(image: str, what: str) -> Any:
    answer = said("image", "inspect", image)
    if answer.returncode != 0:
        raise SandboxError(f"there is no image {image} here: {answer.stderr.strip()[-500:]}")
    return json.loads(answer.stdout)[0][what]
