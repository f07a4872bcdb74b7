"""Traces written for trainers and for people: one file a format.

To add a format, write its file and add its `Format` to `FORMATS`. `polar export` and its help read nothing else.
"""

from typing import Final

from polar_mitm.trajectory.exporters import atif, canonical, nemo_gym, slime, trl, verl
from polar_mitm.trajectory.exporters.base import Format

FORMATS: Final[dict[str, Format]] = {
    form.name: form
    for form in (
        canonical.PARQUET,
        canonical.JSONL,
        trl.FORMAT,
        verl.FORMAT,
        slime.FORMAT,
        nemo_gym.FORMAT,
        atif.FORMAT,
    )
}
