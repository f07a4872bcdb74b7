"""A task from its request to its end."""

from typing import Any

import pytest

from tests.rollout.fake_gateway import FakeGateway, completes
from tests.rollout.server.conftest import SCENARIO, On, eventually


async def test_a_task_becomes_so_many_sessions_and_completes_with_them(on: On) -> None:
    task = await on.submit(num_samples=3, metadata={"row": 7}, group_id="g")
    assert (task["status"], task["samples"]["queued"]) == ("queued", 3)
    async with FakeGateway(on.client, work=completes):
        done = await on.ended(task["task_id"])
    assert (done["status"], done["status_reason"]) == ("completed", None)
    assert (done["samples"]["completed"], done["samples"]["usable"], done["attempts"]) == (3, 3, 3)
    assert (done["mean_reward"], done["metadata"]) == (1.0, {"row": 7})
    sessions = await on.sessions(task["task_id"])
    assert [(s["sample"], s["attempt"], s["stage"], s["counts"]) for s in sessions] == [
        (n, 1, "done", True) for n in range(3)
    ]
    assert len({s["session_id"] for s in sessions}) == 3


async def test_the_gateway_is_given_all_that_the_request_says(on: On) -> None:
    asked = {
        "changes": {"harness": "claude-code", "sampling": {"temperature": 0.5}},
        "instruction": "Do that.",
        "data": {"answer": 12345678901234567890123},
        "budgets": {"waiting_s": 60, "preparing_s": 1, "running_s": 2, "grading_s": 3},
        "builder": {"name": "per_request", "rewritten": "substitute"},
        "policy_version": "v7",
    }
    task = await on.submit(**asked)
    async with FakeGateway(on.client, policy_version="v7", work=completes) as gateway:
        await on.ended(task["task_id"])
        given = gateway.asked[0]
    assert {name: given[name] for name in asked if name != "budgets"} == {
        name: value for name, value in asked.items() if name != "budgets"
    }
    waiting = given["budgets"].pop("waiting_s")
    assert 0 < waiting <= 60
    assert given["budgets"] == {"preparing_s": 1.0, "running_s": 2.0, "grading_s": 3.0}
    assert (given["sample"], given["attempt"], given["gateway"]) == (0, 1, gateway.name)


@pytest.mark.parametrize(
    ("endings", "status"),
    [
        (["completed", "completed"], "completed"),
        (["completed", "failed"], "partial"),
        (["completed", "timeout"], "partial"),
        (["failed", "timeout"], "failed"),
    ],
)
async def test_a_task_is_what_its_sessions_were(on: On, endings: list[str], status: str) -> None:
    async def ends(gateway: FakeGateway, given: dict[str, Any]) -> None:
        await gateway.report(given["session_id"], status=endings[given["sample"]], reward=0.0, ended_in="running")

    task = await on.submit(num_samples=2)
    async with FakeGateway(on.client, work=ends):
        done = await on.ended(task["task_id"])
    assert done["status"] == status
    assert (done["status_reason"] is None) == (status == "completed")


async def test_a_session_without_a_reward_or_masked_is_not_usable(on: On) -> None:
    fields: list[dict[str, Any]] = [
        {"reward": None, "evaluation_error": "it broke"},
        {"masked": "poisoned"},
        {"trained_tokens": 0},
        {},
    ]

    async def ends(gateway: FakeGateway, given: dict[str, Any]) -> None:
        await gateway.report(given["session_id"], **fields[given["sample"]])

    task = await on.submit(num_samples=4)
    async with FakeGateway(on.client, work=ends):
        done = await on.ended(task["task_id"])
    assert (done["status"], done["samples"]["usable"], done["mean_reward"]) == ("completed", 1, 1.0)
    usable = {s["sample"]: s["usable"] for s in await on.sessions(task["task_id"])}
    assert usable == {0: False, 1: False, 2: False, 3: True}


async def test_enough_usable_samples_end_the_task_and_cancel_the_rest(on: On) -> None:
    async def ends(gateway: FakeGateway, given: dict[str, Any]) -> None:
        if given["sample"] < 2:
            await gateway.report(given["session_id"])

    task = await on.submit(num_samples=8, stop_after=2)
    async with FakeGateway(on.client, capacity=4, work=ends) as gateway:
        done = await on.ended(task["task_id"])
        assert done["status"] == "completed"
        assert (done["samples"]["completed"], done["samples"]["cancelled"]) == (2, 6)
        assert len(gateway.begun) <= 6
        await eventually(lambda: not gateway.sessions)


async def test_a_cancelled_task_ends_what_runs_and_what_waits(on: On) -> None:
    task = await on.submit(num_samples=3)
    async with FakeGateway(on.client, capacity=1) as gateway:
        await eventually(lambda: gateway.sessions)
        reply = await on.client.post(f"/v1/tasks/{task['task_id']}/cancel")
        assert reply.status_code == 202
        done = await on.ended(task["task_id"])
        again = await on.client.post(f"/v1/tasks/{task['task_id']}/cancel")
    assert (done["status"], done["samples"]["cancelled"]) == ("cancelled", 3)
    assert again.json()["finished_at"] == done["finished_at"]
    assert len(gateway.begun) == 1


async def test_a_cancelled_task_whose_gateway_dies_is_over_all_the_same(on: On) -> None:
    task = await on.submit(num_samples=1)
    async with FakeGateway(on.client) as gateway:
        await eventually(lambda: gateway.sessions)
    await on.client.post(f"/v1/tasks/{task['task_id']}/cancel")
    done = await on.ended(task["task_id"])
    assert (done["status"], done["attempts"]) == ("cancelled", 1)


async def test_samples_that_are_not_usable_are_run_again(on: On) -> None:
    async def ends(gateway: FakeGateway, given: dict[str, Any]) -> None:
        bad = given["sample"] == 1 and given["attempt"] == 1
        await gateway.report(given["session_id"], reward=None if bad else 1.0)

    task = await on.submit(num_samples=2)
    path = f"/v1/tasks/{task['task_id']}/retry"
    async with FakeGateway(on.client, work=ends):
        assert (await on.ended(task["task_id"]))["samples"]["usable"] == 1
        reply = await on.client.post(path)
        assert (reply.status_code, reply.json()["finished_at"]) == (202, None)
        done = await on.ended(task["task_id"])
        nothing = await on.client.post(path, json={})
        open_or_none = await on.client.post(path, json={"samples": [7]})
    assert (done["status"], done["samples"]["usable"], done["attempts"]) == ("completed", 2, 3)
    counting = {(s["sample"], s["attempt"]): s["counts"] for s in await on.sessions(task["task_id"])}
    assert counting == {(0, 1): True, (1, 1): False, (1, 2): True}
    assert nothing.status_code == 409
    assert open_or_none.status_code == 409
    assert "sample 7" in open_or_none.json()["error"]["message"]


async def test_the_wait_in_line_has_its_own_clock(on: On) -> None:
    task = await on.submit(num_samples=2, budgets={"waiting_s": 0.2}, max_attempts=5)
    done = await on.ended(task["task_id"])
    assert (done["status"], done["samples"]["error"], done["attempts"]) == ("failed", 2, 2)
    session = (await on.sessions(task["task_id"]))[0]
    assert (session["status"], session["ended_in"]) == ("error", "queued")
    assert "waiting_s" in session["status_reason"]


async def test_an_error_is_tried_again_until_its_attempts_are_used_up(on: On) -> None:
    async def breaks(gateway: FakeGateway, given: dict[str, Any]) -> None:
        await gateway.report(
            given["session_id"], status="error", status_reason="no image", ended_in="preparing", reward=None
        )

    task = await on.submit(max_attempts=3)
    async with FakeGateway(on.client, work=breaks) as gateway:
        done = await on.ended(task["task_id"])
        await on.get("/v1/overview")
    assert (done["status"], done["attempts"], len(gateway.begun)) == ("failed", 3, 3)
    sessions = await on.sessions(task["task_id"])
    assert [(s["attempt"], s["counts"]) for s in sessions] == [(1, False), (2, False), (3, True)]
    assert "no image (the last of 3 attempts" in sessions[2]["status_reason"]


async def test_who_asked_for_more_goes_first(on: On) -> None:
    low = await on.submit(priority=-1)
    middle = await on.submit()
    high = await on.submit(priority=5)
    async with FakeGateway(on.client, capacity=1, work=completes) as gateway:
        await on.ended(low["task_id"])
    tasks = {given["session_id"]: given["task_id"] for given in gateway.asked}
    assert [tasks[session_id] for session_id in gateway.begun] == [t["task_id"] for t in (high, middle, low)]


async def test_tasks_are_listed_page_by_page(on: On) -> None:
    made = [(await on.submit(group_id="even" if n % 2 == 0 else "odd"))["task_id"] for n in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await on.get("/v1/tasks", limit=3, **({"cursor": cursor} if cursor else {}))
        seen += [task["task_id"] for task in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert seen == made[::-1]
    even = await on.get("/v1/tasks", group_id="even", status="queued")
    assert [task["task_id"] for task in even["items"]] == made[::2][::-1]
    assert all(task["metadata"] is None for task in even["items"])


async def test_a_task_that_no_gateway_can_take_says_what_is_missing(on: On) -> None:
    task = (await on.submit(scenario="nope"))["task_id"]

    async def reason() -> str:
        listed = (await on.get("/v1/tasks"))["items"][0]["status_reason"]
        assert listed == (await on.task(task))["status_reason"]
        return str(listed)

    assert "none is here" in await reason()
    async with FakeGateway(on.client, registration={"scenarios": ["hello"]}, work=completes) as gateway:
        assert (await reason()).startswith("waiting for a gateway that knows the scenario 'nope'")
        assert not gateway.asked
        gateway.registration["scenarios"].append("nope")
        await gateway.register()
        assert (await on.ended(task))["status_reason"] is None


async def test_a_task_set_is_refused_with_the_way_to_submit_one(on: On) -> None:
    reply = await on.client.post("/v1/tasks", json={"scenario": SCENARIO | {"tasks": {"harbor": "tasks"}}})
    assert (reply.status_code, reply.json()["error"]["field"]) == (422, "scenario.tasks")
    assert "--scenarios" in reply.json()["error"]["message"]
