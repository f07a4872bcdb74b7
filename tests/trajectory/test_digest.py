"""What is said of trajectories without their tokens."""

from pathlib import Path

from polar_mitm.trajectory.builders import build
from polar_mitm.trajectory.digest import Digest, counted, lineage
from polar_mitm.trajectory.totals import Totals
from tests.trajectory.stories import a_long_day


def test_a_digest_keeps_the_counts_and_the_breaks(tmp_path: Path) -> None:
    world = a_long_day()
    trajectory = build(world.write(tmp_path))
    digest = Digest.of(trajectory)
    assert digest.calls == len(world.calls)
    assert digest.sampled == world.sampled == sum(digest.bins.values())
    assert sum(tokens for _, _, tokens in digest.reasons) == world.sampled
    assert [trace.trained for trace in digest.traces] == [trace.trained for trace in trajectory.traces]
    assert [broken.cause for broken in digest.breaks] == ["arguments_rerendered"]
    assert [lineage(trace.lineage) for trace in digest.traces] == ["side", "main", "fork of 1", "subagent of 2"]


def test_totals_are_sums_over_the_sessions(tmp_path: Path) -> None:
    totals = Totals()
    for name in ("ses_1", "ses_2"):
        trajectory = build(a_long_day(name).write(tmp_path))
        totals.add(trajectory)
    digest = Digest.of(trajectory)
    assert totals.sessions == 2
    assert totals.sampled == 2 * digest.sampled == sum(totals.bins.values())
    assert totals.causes == {"arguments_rerendered": 2}
    assert totals.relations.total() == totals.calls == 2 * digest.calls


def test_counts_are_written_the_most_first_and_zeros_not_at_all() -> None:
    assert counted({"b": 1, "a": 1, "c": 1200, "d": 0}.items()) == "c 1,200, a 1, b 1"
    assert counted([]) == "none"
