"""One row of a SWE-bench data set, and what the user decides of how it is run."""

from collections.abc import Iterator
from dataclasses import dataclass

from polar_mitm.tasks.swebench.rows import Row


@dataclass(slots=True, frozen=True)
class Setting:
    row: Row
    tests_network: bool = False
    """Whether its tests get the container engine's own network."""
    saved_log: bool = False
    """Whether a log is there already, so that no tests are run."""
    oracle: bool = False
    """Whether the row's own patch is put in, in place of an agent's work."""

    def notes(self) -> Iterator[str]:
        """What is done otherwise than swebench does it."""
        if not self.tests_network and not self.saved_log:
            yield "its tests get no network; --tests-network public gives it to them"
