"""The JSON Schema of a trajectory, published in `docs/schemas/`.

python -m polar_mitm.trajectory.schema docs/schemas
"""

import sys
from pathlib import Path
from typing import Any

from polar_mitm.capture.schema import schema_text, written_schema
from polar_mitm.trajectory.trace import SCHEMA, Trajectory


def trajectory_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of a file of trajectories, as it is written."""
    return written_schema(Trajectory, f"polar-mitm trajectory, version {SCHEMA}", SCHEMA)


def files() -> dict[str, bytes]:
    """File name and content of each published schema."""
    return {f"trajectory.v{SCHEMA}.json": schema_text(trajectory_schema())}


def write(folder: Path) -> None:
    """Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_bytes(text)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [folder]:
            write(Path(folder))
        case _:
            sys.exit("usage: python -m polar_mitm.trajectory.schema FOLDER")
