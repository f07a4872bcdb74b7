"""The stages of a gateway's sessions: places, clocks, and ways to end."""

from pathlib import Path

import pytest

from polar_mitm.rollout.gateway.pipeline import Busy, Draining
from polar_mitm.rollout.gateway.settings import Workers
from polar_mitm.sandboxes.base import SandboxError
from tests.rollout.gateway.attempts import Bench, assignment

ONE = Workers(preparing=1, ready=1, running=1, grading=1, waiting=1)
SHORT = 0.05


async def test_a_session_passes_all_stages_and_keeps_the_time_of_each(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        assert bench.pipeline.take(assignment(running_s=77.0)) == "waiting"
        record = await bench.end("ses_1")
        held = bench.pipeline.held["ses_1"]
        assert (record.status, record.reward, held.ended_in) == ("completed", 1.0, "grading")
        assert bench.attempts["ses_1"].timeout_s == 77.0
        times = [held.times.preparing_at, held.times.ready_at, held.times.running_at, held.times.grading_at]
        known = [time for time in [*times, held.times.finished_at] if time is not None]
        assert len(known) == 5
        assert known == sorted(known)


async def test_a_session_is_begun_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        for _ in range(3):
            bench.pipeline.take(assignment())
        await bench.end("ses_1")
        assert bench.pipeline.take(assignment()) == "done"
        bench.pipeline.forget("ses_1")
        assert bench.pipeline.take(assignment()) == "done"
        assert bench.pipeline.held == {}
        assert len(bench.ended) == 1


async def test_a_full_gateway_is_busy_and_a_draining_one_takes_nothing(tmp_path: Path) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.shut = {"running"}
        for number in range(ONE.capacity):
            bench.pipeline.take(assignment(f"ses_{number}"))
        with pytest.raises(Busy):
            bench.pipeline.take(assignment("ses_more"))
        bench.pipeline.draining = True
        with pytest.raises(Draining):
            bench.pipeline.take(assignment("ses_more"))
        bench.pipeline.draining = False
        bench.pipeline.unfit = "the disk is full"
        with pytest.raises(Draining, match="the disk is full"):
            bench.pipeline.take(assignment("ses_more"))
        assert bench.pipeline.take(assignment("ses_0")) in ("waiting", "preparing", "ready", "running")


async def test_a_prepared_session_waits_in_ready_without_a_place_to_run(tmp_path: Path) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.shut = {"running"}
        for name in ("ses_a", "ses_b", "ses_c"):
            bench.pipeline.take(assignment(name))
        await bench.at("ses_a", "running")
        await bench.at("ses_b", "ready")
        assert bench.pipeline.held["ses_c"].stage == "waiting", "no more than `ready` stand prepared"
        bench.attempts["ses_a"].gates["running"].set()
        await bench.at("ses_b", "running")
        await bench.at("ses_c", "ready")


async def test_grading_holds_no_place_to_run(tmp_path: Path) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.shut = {"grading"}
        for name in ("ses_a", "ses_b"):
            bench.pipeline.take(assignment(name))
        await bench.at("ses_a", "grading")
        async with bench.pipeline.held["ses_a"].place(bench.pipeline._running):
            pass
        bench.shut = {"running", "grading"}
        bench.pipeline.take(assignment("ses_c"))
        await bench.at("ses_c", "running")
        assert bench.pipeline.held["ses_a"].stage == "grading"


async def test_waiting_is_on_its_own_clock(tmp_path: Path) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.shut = {"running"}
        bench.pipeline.take(assignment("ses_a"))
        await bench.at("ses_a", "running")
        bench.pipeline.take(assignment("ses_b", waiting_s=SHORT))
        record = await bench.end("ses_b")
        assert (record.status, record.status_reason) == ("error", "waited for longer than the 0.05 s that it may")
        assert bench.pipeline.held["ses_b"].ended_in == "ready"
        assert bench.pipeline.held["ses_a"].stage == "running"


async def test_who_never_got_a_place_to_be_prepared_ends_without_a_folder(tmp_path: Path) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.shut = {"preparing"}
        bench.pipeline.take(assignment("ses_a"))
        await bench.at("ses_a", "preparing")
        bench.pipeline.take(assignment("ses_b", waiting_s=SHORT))
        held = await bench.at("ses_b", "done")
        assert held.sample is None
        assert held.trouble == "waited for longer than the 0.05 s that it may"


async def test_preparing_is_on_its_own_clock(tmp_path: Path) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.shut = {"preparing"}
        bench.pipeline.take(assignment(preparing_s=SHORT))
        record = await bench.end("ses_1")
        assert (record.status, record.status_reason) == (
            "error",
            "preparing took longer than the 0.05 s that it may",
        )
        assert bench.pipeline.held["ses_1"].ended_in == "preparing"


async def test_a_session_over_the_clock_of_grading_keeps_its_status_and_says_why_it_has_no_reward(
    tmp_path: Path,
) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.shut = {"grading"}
        bench.pipeline.take(assignment(grading_s=SHORT))
        record = await bench.end("ses_1")
        assert (record.status, record.reward) == ("completed", None)
        assert record.evaluation_error == "grading took longer than the 0.05 s that it may"


@pytest.mark.parametrize("stage", ["preparing", "running", "grading"])
async def test_a_timeout_that_a_stage_raises_itself_is_no_clock_of_the_gateway(tmp_path: Path, stage: str) -> None:
    async with Bench(tmp_path) as bench:
        bench.fails = {stage: TimeoutError("the registry did not answer")}
        bench.pipeline.take(assignment())
        record = await bench.end("ses_1")
        assert (record.status, record.status_reason) == ("error", "the registry did not answer")


@pytest.mark.parametrize("stage", ["preparing", "running", "grading"])
async def test_what_a_stage_raises_ends_the_session_as_error_and_returns_its_places(tmp_path: Path, stage: str) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.fails = {stage: SandboxError("bwrap is not here")}
        bench.pipeline.take(assignment())
        record = await bench.end("ses_1")
        assert (record.status, record.status_reason) == ("error", "bwrap is not here")
        assert bench.pipeline.held["ses_1"].ended_in == stage
        _idle(bench)


async def test_a_session_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.opening = OSError("no room")
        bench.pipeline.take(assignment())
        held = await bench.at("ses_1", "done")
        assert (held.sample, held.trouble, held.ended_in) == (None, "no room", "preparing")
        _idle(bench)


@pytest.mark.parametrize("stage", ["preparing", "ready", "running", "grading"])
async def test_a_session_is_cancelled_in_any_stage_and_returns_its_places(tmp_path: Path, stage: str) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.shut = {"running"} if stage == "ready" else {stage}
        if stage == "ready":
            bench.pipeline.take(assignment("ses_first"))
            await bench.at("ses_first", "running")
        bench.pipeline.take(assignment())
        await bench.at("ses_1", stage)
        assert bench.pipeline.cancel("ses_1")
        assert bench.pipeline.cancel("ses_1"), "a second time does nothing more"
        record = await bench.end("ses_1")
        assert record.status == "cancelled"
        assert bench.pipeline.held["ses_1"].ended_in == stage
        if stage == "ready":
            bench.attempts["ses_first"].gates["running"].set()
            await bench.end("ses_first")
        _idle(bench)


async def test_a_session_that_is_cancelled_in_line_or_before_its_first_step_ends(tmp_path: Path) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.shut = {"preparing"}
        bench.pipeline.take(assignment("ses_first"))
        await bench.at("ses_first", "preparing")
        bench.pipeline.take(assignment("ses_line"))
        bench.pipeline.take(assignment("ses_new"))
        bench.pipeline.cancel("ses_new")  # its task has not run yet
        assert (await bench.at("ses_new", "done")).sample is None
        bench.pipeline.cancel("ses_line")
        held = await bench.at("ses_line", "done")
        assert (held.cancelled, held.ended_in) == (True, "waiting")


async def test_cancelling_what_is_done_or_unknown_changes_nothing(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        bench.pipeline.take(assignment())
        await bench.end("ses_1")
        assert bench.pipeline.cancel("ses_1")
        assert not bench.pipeline.cancel("ses_2")
        assert (await bench.end("ses_1")).status == "completed"


async def test_closing_ends_every_session(tmp_path: Path) -> None:
    async with Bench(tmp_path, ONE) as bench:
        bench.shut = {"running"}
        for number in range(4):
            bench.pipeline.take(assignment(f"ses_{number}"))
        await bench.at("ses_0", "running")
    assert set(bench.pipeline.stages.values()) == {"done"}
    assert all(held.cancelled for held in bench.ended)
    assert len(bench.ended) == 4


def _idle(bench: Bench) -> None:
    pools = (bench.pipeline._preparing, bench.pipeline._ahead, bench.pipeline._running, bench.pipeline._grading)
    assert [pool._value for pool in pools] == [1, 2, 1, 1], "every place was returned"
