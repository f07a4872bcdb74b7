"""What a task wants kept of its agent's container: taken out to the session's `artifacts`, and laid before tests that
run in an image of their own."""

import stat
import tarfile
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final

from polar_mitm.sandboxes import images
from polar_mitm.tasks.harbor.config import Artifact

MOST_BYTES: Final = 4 * 1024**3
"""Of one artifact: what an agent can leave is not what this machine must hold."""


class ArtifactTooLarge(Exception):
    """Says which."""


def collect(
    artifacts: Sequence[Artifact], image: str, workdir: PurePosixPath, folder: Path
) -> dict[PurePosixPath, Path]:
    """Copy each artifact out of the image; where in a container each was, and where it lies now. What is not there is
    left out. Blocks. Raises SandboxError, OSError and ArtifactTooLarge."""
    found: dict[PurePosixPath, Path] = {}
    for artifact in artifacts:
        source = workdir / artifact.source
        target = folder.joinpath(*PurePosixPath(artifact.destination or source.relative_to("/")).parts)
        if target.exists() or any(other in target.parents for other in found.values()):
            continue  # of two that want one place harbor keeps the first
        with tempfile.TemporaryDirectory(prefix="polar-artifact-") as scratch:
            archive = Path(scratch) / "files.tar"
            if images.archive(image, source, archive) and _unpack(archive, target, artifact):
                found[source] = target
    return found


def _unpack(archive: Path, target: Path, artifact: Artifact) -> bool:
    """Whether there is something of it. Links that lead out of it, pipes and devices stay behind; special mode bits are
    cleared."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".artifact-", dir=target.parent) as scratch, tarfile.open(archive) as tar:
        members = tar.getmembers()
        if sum(member.size for member in members) > MOST_BYTES:
            raise ArtifactTooLarge(f"the artifact {artifact.source} has more than {MOST_BYTES:,} bytes")

        def wanted(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
            if member.isdev() or _excluded(member.name, artifact.exclude):
                return None
            try:
                return tarfile.data_filter(member, path)
            except tarfile.FilterError:
                return None

        tar.extractall(scratch, members=members, filter=wanted)
        top = next(iter(Path(scratch).iterdir()), None)
        if top is None or top.is_symlink():
            return False
        top.rename(target)
        target.chmod(0o777 if target.is_dir() else stat.S_IMODE(target.stat().st_mode) | 0o444)
        return True


def _excluded(name: str, patterns: Sequence[str]) -> bool:
    """As tar's --exclude: a pattern may match from any part of the path on, and a folder goes with all below it."""
    parts = PurePosixPath(name).parts[1:]
    paths = ["/".join(parts[start:end]) for start in range(len(parts)) for end in range(start + 1, len(parts) + 1)]
    return any(fnmatch(path, pattern.removeprefix("./").rstrip("/")) for path in paths for pattern in patterns)
