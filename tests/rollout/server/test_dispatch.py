"""Sessions given to gateways: places, doubt, death, restarts, reports that come late or twice."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.rollout.fake_gateway import FakeGateway, Manner, completes
from tests.rollout.server.conftest import On, Start, eventually


async def test_a_gateway_is_given_no_more_than_it_has_places(on: On) -> None:
    task = await on.submit(num_samples=6)
    async with FakeGateway(on.client, capacity=2) as gateway:
        for done in range(2, 7):
            await eventually(lambda done=done: len(gateway.begun) == done)
            assert len(gateway.sessions) == 2
            await gateway.report(next(iter(gateway.sessions)))
        await gateway.report(next(iter(gateway.sessions)))
        assert (await on.ended(task["task_id"]))["status"] == "completed"


async def test_samples_of_a_group_go_to_one_gateway(on: On) -> None:
    tasks = [await on.submit(num_samples=4, group_id=f"g{n}") for n in range(4)]
    async with FakeGateway(on.client, capacity=8) as one, FakeGateway(on.client, capacity=8) as two:
        await eventually(lambda: len(one.begun) + len(two.begun) == 16)
        groups = [{given["group_id"] for given in gateway.asked} for gateway in (one, two)]
    assert len(tasks) == 4
    assert sorted(map(len, groups)) == [2, 2]
    assert not groups[0] & groups[1]


@pytest.mark.parametrize("manner", ["busy", "draining", "other"])
async def test_what_a_gateway_turns_down_goes_elsewhere_as_it_is(on: On, manner: Manner) -> None:
    async with FakeGateway(on.client, manner=manner, capacity=9) as first:
        task = await on.submit()
        await eventually(lambda: first.asked)
        async with FakeGateway(on.client, work=completes) as second:
            done = await on.ended(task["task_id"])
        assert second.begun == [first.asked[0]["session_id"]]
    assert done["attempts"] == 1


async def test_what_never_got_to_a_gateway_goes_elsewhere_as_it_is(on: On) -> None:
    async with FakeGateway(on.client, registration={"url": "http://127.0.0.1:9"}, capacity=9):
        task = await on.submit()
        await eventually(lambda: on.service.board.nodes)
        async with FakeGateway(on.client, work=completes):
            done = await on.ended(task["task_id"])
    assert done["attempts"] == 1


async def test_a_gateway_that_refuses_a_request_uses_up_an_attempt(on: On) -> None:
    task = await on.submit(max_attempts=2)
    async with FakeGateway(on.client, manner="refuse"):
        done = await on.ended(task["task_id"])
    assert (done["status"], done["attempts"]) == ("failed", 2)
    assert "no such thing" in (await on.sessions(task["task_id"]))[-1]["status_reason"]


async def test_an_answer_that_never_came_is_asked_for_again_and_the_session_runs_once(on: On) -> None:
    task = await on.submit(num_samples=3)
    async with FakeGateway(on.client, manner="take and hang", capacity=3, work=completes) as gateway:
        done = await on.ended(task["task_id"])
    assert (done["status"], done["attempts"], len(gateway.begun)) == ("completed", 3, 3)


async def test_after_doubt_another_session_goes_elsewhere(on: On) -> None:
    """The post that was not answered may arrive at any time: its session id may not be given to anybody else."""
    task = await on.submit()
    async with FakeGateway(on.client, manner="drop", capacity=9) as first:
        await eventually(lambda: first.asked)
        first.manner = "busy"
        async with FakeGateway(on.client, work=completes) as second:
            done = await on.ended(task["task_id"])
    assert (done["status"], done["attempts"]) == ("completed", 2)
    assert first.asked[0]["session_id"] not in second.begun
    assert second.asked[0]["attempt"] == 2


async def test_a_heartbeat_settles_a_doubt(on: On) -> None:
    task = await on.submit()
    async with FakeGateway(on.client, manner="hang", beat_s=0) as gateway:
        await eventually(lambda: gateway.asked)
        session_id = gateway.asked[0]["session_id"]
        gateway.sessions[session_id] = "running"
        await gateway.beat()
        session = await on.get(f"/v1/sessions/{session_id}")
        assert (session["stage"], session["times"]["running_at"] is not None) == ("running", True)
        await gateway.report(session_id)
    assert (await on.ended(task["task_id"]))["attempts"] == 1


async def test_a_dead_gateways_sessions_are_begun_again_elsewhere(on: On) -> None:
    task = await on.submit(num_samples=3)
    async with FakeGateway(on.client) as first:
        await eventually(lambda: len(first.begun) == 3)
        await first.die()
        async with FakeGateway(on.client, work=completes) as second:
            done = await on.ended(task["task_id"])
    assert (done["status"], done["attempts"]) == ("completed", 6)
    assert not set(first.begun) & set(second.begun)
    lost = [s for s in await on.sessions(task["task_id"]) if s["attempt"] == 1]
    assert {(s["status"], s["counts"]) for s in lost} == {("lost", False)}
    gateways = {g["name"]: g for g in await on.get("/v1/gateways")}
    assert (gateways[first.name]["state"], gateways[first.name]["lost_sessions"]) == ("down", 3)


async def test_a_task_that_kills_its_gateways_is_given_up(on: On) -> None:
    task = await on.submit(max_attempts=2)
    for _ in range(2):
        async with FakeGateway(on.client) as gateway:
            await eventually(lambda gateway=gateway: gateway.begun)
    done = await on.ended(task["task_id"])
    assert (done["status"], done["attempts"], done["samples"]["error"]) == ("failed", 2, 1)
    last = (await on.sessions(task["task_id"]))[-1]
    assert (last["status"], last["counts"]) == ("lost", True)
    assert "the last of 2 attempts" in last["status_reason"]


async def test_a_gateway_that_leaves_gives_its_sessions_back_and_uses_up_no_attempt(on: On) -> None:
    task = await on.submit(max_attempts=1)
    async with FakeGateway(on.client) as first:
        await eventually(lambda: first.begun)
        leaving = {"incarnation": first.incarnation}
        reply = await on.client.post(f"/v1/gateways/{first.name}/leave", json=leaving)
        assert reply.status_code == 204
        await first.die()
    async with FakeGateway(on.client, work=completes):
        done = await on.ended(task["task_id"])
    assert (done["status"], done["attempts"]) == ("completed", 2)


async def test_a_draining_gateway_finishes_and_is_given_nothing(on: On) -> None:
    first_task = await on.submit()
    async with FakeGateway(on.client) as gateway:
        await eventually(lambda: gateway.begun)
        assert (await on.client.post(f"/v1/gateways/{gateway.name}/drain")).json()["state"] == "draining"
        second_task = await on.submit()
        await gateway.beat()
        assert gateway.drain_asked
        await gateway.report(gateway.begun[0])
        assert (await on.ended(first_task["task_id"]))["status"] == "completed"
        await gateway.beat()
        assert len(gateway.asked) == 1
        await on.client.post(f"/v1/gateways/{gateway.name}/undrain")
        await eventually(lambda: len(gateway.begun) == 2)
        await gateway.report(gateway.begun[1])
        assert (await on.ended(second_task["task_id"]))["status"] == "completed"
    assert (await on.client.post("/v1/gateways/nobody/drain")).status_code == 404


async def test_a_gateway_that_starts_again_gets_its_sessions_again_as_others(on: On) -> None:
    task = await on.submit(num_samples=2)
    async with FakeGateway(on.client, beat_s=0) as first:
        await eventually(lambda: len(first.begun) == 2)
        kept = first.begun[0]
        again = FakeGateway(on.client, name=first.name, sessions={kept: "grading"})
        async with again:
            await eventually(lambda: again.begun)
            assert again.asked[0]["attempt"] == 2
            await again.report(kept)
            await again.report(again.begun[0])
            done = await on.ended(task["task_id"])
            beaten = await first.beat()
    assert (done["status"], done["attempts"]) == ("completed", 3)
    assert (beaten.status_code, beaten.json()["error"]["code"]) == (409, "superseded")


async def test_a_session_that_its_gateway_forgot_is_begun_again(on: On) -> None:
    task = await on.submit()
    async with FakeGateway(on.client, beat_s=0) as gateway:
        await eventually(lambda: gateway.sessions)
        forgotten = gateway.begun[0]
        await eventually(lambda: on.service.board.live[forgotten].settled)
        gateway.sessions.clear()
        gateway.work = completes
        await gateway.beat()
        assert forgotten in on.service.board.live, "one heartbeat may have been under way when it was given"
        await gateway.beat()
        done = await on.ended(task["task_id"])
    assert (done["status"], done["attempts"]) == ("completed", 2)


async def test_the_first_report_counts_and_later_ones_are_kept_beside(on: On) -> None:
    task = await on.submit()
    async with FakeGateway(on.client) as first:
        await eventually(lambda: first.begun)
        await first.die()
        async with FakeGateway(on.client) as second:
            await eventually(lambda: second.begun)
            assert await second.report(second.begun[0], reward=0.5) == "counts"
            assert await first.report(first.begun[0], reward=1.0) == "late"
            assert await second.report(second.begun[0], reward=0.9) == "duplicate"
        done = await on.ended(task["task_id"])
    assert (done["mean_reward"], done["samples"]["completed"]) == (0.5, 1)
    whole = await on.get(f"/v1/tasks/{task['task_id']}/results")
    assert [r["session"]["session_id"] for r in whole["results"]] == [second.begun[0]]
    every = (await on.get("/v1/results", late=True))["items"]
    late = next(r for r in every if r["session"]["session_id"] == first.begun[0])
    assert (late["session"]["counts"], late["rewards"]) == (False, {"reward": 1.0})


async def test_a_session_given_up_on_that_ends_first_counts_after_all(on: On) -> None:
    """Work that was done is not done again for the sake of the books."""
    task = await on.submit()
    async with FakeGateway(on.client) as first:
        await eventually(lambda: first.begun)
        await first.die()
        async with FakeGateway(on.client) as second:
            await eventually(lambda: second.sessions)
            assert await first.report(first.begun[0], reward=0.25) == "counts"
            done = await on.ended(task["task_id"])
            await eventually(lambda: not second.sessions)
            assert second.cancelled == set(second.begun)
    assert (done["status"], done["mean_reward"], done["samples"]["completed"]) == ("completed", 0.25, 1)
    counting = {s["attempt"]: s["counts"] for s in await on.sessions(task["task_id"])}
    assert counting == {1: True, 2: False}


async def test_a_report_of_an_unknown_session_is_answered_and_told(on: On) -> None:
    async with FakeGateway(on.client) as gateway:
        assert await gateway.report("ses_nobody") == "unknown"
    events = await on.service.reads.events(after=0, task_id=None, limit=100)
    assert [event.session_id for event in events if event.type == "report.unknown"] == ["ses_nobody"]


async def test_reports_at_once_count_once(on: On) -> None:
    task = await on.submit()
    async with FakeGateway(on.client) as gateway:
        await eventually(lambda: gateway.begun)
        reports = [gateway.post_report(gateway.begun[0], reward=n / 10) for n in range(10)]
        outcomes = [reply.json()["outcome"] for reply in await asyncio.gather(*reports)]
    assert sorted(outcomes) == ["counts"] + ["duplicate"] * 9
    done = await on.task(task["task_id"])
    assert (done["samples"]["completed"], done["status"]) == (1, "completed")


async def test_a_partitioned_gateway_is_told_to_end_what_was_begun_elsewhere(on: On) -> None:
    task = await on.submit()
    async with FakeGateway(on.client, beat_s=0) as first:
        await eventually(lambda: first.begun)
        await eventually(lambda: on.service.board.nodes[first.name].state == "down")
        async with FakeGateway(on.client, work=completes):
            await on.ended(task["task_id"])
            reply = await first.beat()
            assert reply.json()["cancel"] == first.begun
    assert (await on.get(f"/v1/sessions/{first.begun[0]}"))["counts"] is False


async def test_a_policy_version_waits_for_a_gateway_that_serves_it(on: On) -> None:
    task = await on.submit(policy_version="v2")
    other = await on.submit()
    async with FakeGateway(on.client, policy_version="v1", work=completes) as gateway:
        await on.ended(other["task_id"])
        assert (await on.task(task["task_id"]))["status"] == "queued"
        gateway.policy_version = "v2"
        done = await on.ended(task["task_id"])
    assert done["status"] == "completed"


async def test_a_harness_goes_where_it_is_installed(on: On) -> None:
    task = await on.submit(changes={"harness": "codex"})
    registration = {"harnesses": ["pi"]}
    async with (
        FakeGateway(on.client, registration=registration, work=completes) as without,
        FakeGateway(on.client, registration={"harnesses": ["pi", "codex"]}, work=completes),
    ):
        done = await on.ended(task["task_id"])
    assert (done["status"], without.asked) == ("completed", [])


async def test_a_gateway_that_the_server_does_not_know_registers_again(start: Start) -> None:
    async with start() as on, FakeGateway(on.client) as gateway:
        del on.service.board.nodes[gateway.name]
        await eventually(lambda: 404 in gateway.beats)
        await eventually(lambda: gateway.name in on.service.board.nodes)


async def test_the_servers_restart_goes_unnoticed_by_what_runs(start: Start) -> None:
    async with start() as on:
        task = await on.submit(num_samples=3)
        gateway = FakeGateway(on.client, capacity=2)
        await gateway.__aenter__()
        await eventually(lambda: len(gateway.begun) == 2)
    async with start() as on:
        gateway.client = on.client
        await eventually(lambda: all(live.settled for live in on.service.board.live.values()))
        for session_id in list(gateway.sessions):
            await gateway.report(session_id)
        await eventually(lambda: len(gateway.begun) == 3)
        await gateway.report(gateway.begun[2])
        done = await on.ended(task["task_id"])
        await gateway.die()
    assert (done["status"], done["attempts"], len(set(gateway.begun))) == ("completed", 3, 3)


async def test_where_the_server_stood_still_nobody_is_taken_for_dead(start: Start) -> None:
    async with start(heartbeat_s=60) as on, FakeGateway(on.client, beat_s=0) as gateway:
        node = on.service.board.nodes[gateway.name]
        hour = node.beat + 3600
        await on.service.fleet.look(hour, stood=3595.0)
        assert node.state == "ready"
        await on.service.fleet.look(hour + 130, stood=0.0)
        assert node.state == "down"


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
async def test_a_jump_of_the_machines_clock_changes_nothing(
    on: On, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    import time

    task = await on.submit(budgets={"waiting_s": 3600})
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    async with FakeGateway(on.client) as gateway:
        await eventually(lambda: gateway.begun)
        await gateway.beat()
        assert on.service.board.nodes[gateway.name].state == "ready"
        await gateway.report(gateway.begun[0])
    done = await on.ended(task["task_id"])
    assert done["status"] == "completed"
    assert 0 <= done["finished_at"] - done["submitted_at"] < 3600


async def test_a_gateway_has_to_be_known_to_leave(on: On) -> None:
    async with FakeGateway(on.client) as gateway:
        path = f"/v1/gateways/{gateway.name}/leave"
        replies: list[httpx.Response] = [
            await on.client.post("/v1/gateways/nobody/leave", json={"incarnation": "x"}),
            await on.client.post(path, json={"incarnation": "another"}),
        ]
    assert [reply.status_code for reply in replies] == [404, 409]


async def test_stages_are_told_as_they_are_reached(on: On) -> None:
    await on.submit()
    seen: dict[str, Any] = {}
    async with FakeGateway(on.client, beat_s=0) as gateway:
        await eventually(lambda: gateway.begun)
        session_id = gateway.begun[0]
        for stage in ("preparing", "ready", "running", "grading"):
            gateway.sessions[session_id] = stage
            await gateway.beat()
            seen[stage] = (await on.get(f"/v1/sessions/{session_id}"))["times"][f"{stage}_at"]
            assert (await on.get("/v1/overview"))["stages"] == {"queued": 0, stage: 1}
    assert all(seen.values())
