"""A NeMo Gym root folder with an agent server for polar's rollouts: `root/` is written out as it is.

What it does is `polar_mitm.client.gym`'s; the files only join that to Gym's classes and are the user's to change.
"""

import shutil
from pathlib import Path
from typing import Final

from polar_mitm.errors import BadInput

ROOT: Final = Path(__file__).with_name("root")
AGENT: Final = Path("responses_api_agents", "polar_agent")
CONFIG: Final = AGENT / "configs" / "polar_agent.yaml"
DATA: Final = Path("data", "example.jsonl")


class InTheWay(BadInput):
    """A file is there already; the message names it and the mend."""


def write_root(folder: Path, *, overwrite: bool = False) -> list[Path]:
    """Write the root's files below `folder`, which may be there and hold other things; their paths within it.

    Raises InTheWay, before anything is written, and OSError.
    """
    names = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".pyc")
    there = [name for name in names if (folder / name).exists()]
    if there and not overwrite:
        raise InTheWay(f"{folder / there[0]} is there already: name another folder, or say --overwrite")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return names
