"""Output that appears whole or not at all: written beside its place under another name, renamed when it is done."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polar_mitm.trajectory.exporters.base import ExportFailed, ExportRefused


@contextmanager
def appearing(out: Path, *, folder: bool, overwrite: bool) -> Iterator[Path]:
    """A path to write to, in the same folder as `out`; it becomes `out` when the block ends without an error.

    Raises ExportRefused where `out` may not be written, and ExportFailed for an OSError in the block: then nothing of
    it stays.
    """
    _refuse(out, folder=folder, overwrite=overwrite)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", suffix=".tmp", dir=out.parent) as work:
            made = Path(work) / out.name
            yield made
            _sync(made)
            _put(made, out, aside=Path(work) / "old")
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise ExportFailed(
            f"{out} was not written: {error.strerror or error}{where}. Nothing of it is left: mend that, or name "
            "another place with --out"
        ) from error


def _refuse(out: Path, *, folder: bool, overwrite: bool) -> None:
    if not (out.exists() or out.is_symlink()):
        return
    if not folder and out.is_dir():
        raise ExportRefused(f"{out} is a folder: name a file in it with --out")
    if folder and not out.is_dir():
        raise ExportRefused(f"{out} is a file, and this format writes a folder: name another with --out")
    if not overwrite:
        raise ExportRefused(f"{out} exists: add --overwrite to replace it, or name another place with --out")
    if folder and (strange := next((path.name for path in out.iterdir() if path.suffix != ".json"), None)):
        raise ExportRefused(f"{out} holds {strange}, which no export wrote, and is not replaced: name another folder")


def _sync(path: Path) -> None:
    for file in path.iterdir() if path.is_dir() else [path]:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _put(made: Path, out: Path, *, aside: Path) -> None:
    if made.is_dir() and out.exists():
        out.rename(aside)
    made.replace(out)
    if aside.exists():
        shutil.rmtree(aside)
