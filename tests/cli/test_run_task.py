"""What `polar run-task` says on a terminal while its samples run."""

import asyncio

from polar_mitm.cli.run_task import standing
from polar_mitm.cli.shell import Steps
from polar_mitm.cli.summary import Tally


async def said(live: bool) -> list[str]:
    steps, found = Steps(quiet=True), list[str]()
    steps.live = live
    steps.progress = lambda seconds, phase: found.append(phase)  # type: ignore[method-assign]
    async with standing(steps, Tally(3)):
        await asyncio.sleep(0)
    return found


async def test_it_says_how_far_the_samples_are() -> None:
    assert await said(live=True) == ["0 of 3 samples done"]


async def test_elsewhere_a_sample_has_a_line_when_it_is_done_and_no_other() -> None:
    assert await said(live=False) == []
