"""Results, whole and as they come; trajectories and files; events."""

import asyncio
import errno
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from polar_mitm.trajectory.builders import build
from polar_mitm.trajectory.exporters import FORMATS
from polar_mitm.trajectory.files import write_trajectories
from tests.rollout.fake_gateway import FakeGateway, completes
from tests.rollout.server.conftest import On, Start, eventually
from tests.trajectory.sessions import World

NDJSON = {"Accept": "application/x-ndjson"}
TRAJECTORY = {"schema": 1, "traces": [{"prompt_ids": [1, 2], "response_ids": [3]}], "reward": 1.0}


async def lines(reply: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in reply.aiter_lines():
        yield json.loads(line)


async def uploads(gateway: FakeGateway, given: dict[str, Any]) -> None:
    session_id = given["session_id"]
    path = f"/v1/sessions/{session_id}/files/trajectory.json"
    content = json.dumps(TRAJECTORY | {"session_id": session_id}).encode()
    stored = (await gateway.client.put(path, content=content)).raise_for_status().json()
    assert stored["sha256"] == hashlib.sha256(content).hexdigest()
    await gateway.report(session_id, files=[stored])


async def test_results_come_whole(on: On) -> None:
    task = await on.submit(num_samples=3)
    async with FakeGateway(on.client, work=uploads):
        await on.ended(task["task_id"])
    whole = await on.get(f"/v1/tasks/{task['task_id']}/results")
    assert whole["task"]["status"] == "completed"
    assert {r["session"]["sample"] for r in whole["results"]} == {0, 1, 2}
    first = whole["results"][0]
    assert (first["rewards"], first["trained_tokens"], first["trajectory"]) == ({"reward": 1.0}, 10, None)
    assert first["record"]["session_id"] == first["session"]["session_id"]
    listed = (await on.get(f"/v1/tasks/{task['task_id']}/sessions"))["items"]
    for session in (first["session"], *listed):
        assert (session["times"]["running_at"], session["times"]["finished_at"]) == (1.0, 2.0)
    with_them = await on.get(f"/v1/tasks/{task['task_id']}/results", trajectory=True)
    assert [r["trajectory"]["traces"] for r in with_them["results"]] == [TRAJECTORY["traces"]] * 3


async def test_results_are_streamed_as_sessions_end_to_the_end_of_the_task(on: On) -> None:
    task = await on.submit(num_samples=3)
    seen: list[dict[str, Any]] = []
    async with FakeGateway(on.client) as gateway:
        await eventually(lambda: len(gateway.begun) == 3)
        path = f"/v1/tasks/{task['task_id']}/results"
        async with on.client.stream("GET", path, headers=NDJSON) as reply:
            stream = lines(reply)
            for session_id in list(gateway.begun):
                await gateway.report(session_id)
                seen.append(await anext(stream))
                assert seen[-1]["result"]["session"]["session_id"] == session_id
            end = await anext(stream)
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
    assert (end["type"], end["task"]["status"]) == ("end", "completed")
    after = seen[1]["result"]["seq"]
    again = await on.client.get(path, headers=NDJSON, params={"after": after})
    kinds = [json.loads(line)["type"] for line in again.text.splitlines()]
    assert kinds == ["result", "end"]


async def test_the_stream_of_all_results_goes_over_tasks(on: On) -> None:
    async with FakeGateway(on.client, work=completes), on.client.stream("GET", "/v1/results", headers=NDJSON) as reply:
        stream = lines(reply)
        for _ in range(3):
            task = await on.submit(group_id="g")
            line = await anext(stream)
            assert line["result"]["session"]["task_id"] == task["task_id"]
    page = await on.get("/v1/results", limit=2)
    rest = await on.get("/v1/results", limit=2, after=page["next_cursor"])
    assert (len(page["items"]), len(rest["items"]), rest["next_cursor"]) == (2, 1, None)
    assert len((await on.get("/v1/results", group_id="g"))["items"]) == 3
    assert (await on.get("/v1/results", group_id="other"))["items"] == []


async def test_files_go_in_and_come_out(on: On, tmp_path: Path) -> None:
    task = await on.submit()
    async with FakeGateway(on.client) as gateway:
        await eventually(lambda: gateway.begun)
        session_id = gateway.begun[0]
        path = f"/v1/sessions/{session_id}/files"
        for content in (b"first", b"second \xff" * 100_000):
            assert (await on.client.put(f"{path}/calls.jsonl", content=content)).status_code == 201
        assert await on.get(path) == [{"name": "calls.jsonl", "bytes": 800_000, "sha256": None}]
        assert (await on.client.get(f"{path}/calls.jsonl")).content == b"second \xff" * 100_000
        for name in ("..%2fx", ".hidden", "a b", "%00"):
            assert (await on.client.put(f"{path}/{name}", content=b"x")).status_code in (404, 422)
        await gateway.report(session_id)
    assert [p.name for p in (tmp_path / "files" / task["task_id"] / session_id).iterdir()] == ["calls.jsonl"]


async def test_a_file_that_is_too_large_or_cut_off_leaves_nothing(start: Start, tmp_path: Path) -> None:
    async with start(max_file=1000) as on:
        await on.submit(task_id="t")
        async with FakeGateway(on.client) as gateway:
            await eventually(lambda: gateway.begun)
            path = f"/v1/sessions/{gateway.begun[0]}/files/x"

            async def slowly() -> AsyncIterator[bytes]:
                for _ in range(11):
                    yield b"y" * 100

            async def cut_off() -> AsyncIterator[bytes]:
                yield b"y" * 100
                raise RuntimeError("the gateway died")

            assert (await on.client.put(path, content=b"y" * 1001)).status_code == 413
            assert (await on.client.put(path, content=slowly())).status_code == 413
            with pytest.raises(RuntimeError):
                await on.client.put(path, content=cut_off())
            folder = tmp_path / "files" / "t" / gateway.begun[0]
            await eventually(lambda: not list(folder.glob("*")) and not list(folder.glob(".*")))


async def test_a_file_that_there_is_no_room_for_is_to_be_sent_again(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    task = await on.submit()
    session = (await on.get(f"/v1/tasks/{task['task_id']}/sessions"))["items"][0]
    path = f"/v1/sessions/{session['session_id']}/files/x"

    def full(*_: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(on.service.files, "create", full)
        reply = await on.client.put(path, content=b"y")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")
    assert reply.json()["error"]["message"] == "the server's files: No space left on device"
    assert (await on.client.put(path, content=b"y")).status_code == 201


async def test_files_may_lie_at_an_fsspec_url(start: Start) -> None:
    async with start(files="memory://polar-tests") as on:
        task = await on.submit()
        async with FakeGateway(on.client, work=uploads):
            await on.ended(task["task_id"])
        whole = await on.get(f"/v1/tasks/{task['task_id']}/results", trajectory=True)
        session_id = whole["results"][0]["session"]["session_id"]
        assert whole["results"][0]["trajectory"]["session_id"] == session_id
        assert [f["name"] for f in await on.get(f"/v1/sessions/{session_id}/files")] == ["trajectory.json"]
        assert (await on.client.get(f"/v1/sessions/{session_id}/files/none")).status_code == 404


async def test_gateways_may_write_files_themselves(start: Start, tmp_path: Path) -> None:
    async with start(direct_files=True) as on, FakeGateway(on.client) as gateway:
        assert (await gateway.register())["store_url"] == str(tmp_path / "files")


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


async def collect(on: On, count: int, headers: dict[str, str] | None = None, **parameters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with on.client.stream("GET", "/v1/events", params=parameters, headers=headers) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == count:
                    return found
    return found


async def test_events_tell_a_tasks_life(on: On) -> None:
    listening = asyncio.create_task(collect(on, 6, after=0))
    task = await on.submit()
    async with FakeGateway(on.client, work=completes):
        await on.ended(task["task_id"])
    types = [event["type"] for event in await listening]
    assert sorted(types) == [
        "gateway.up",
        "session.assigned",
        "session.finished",
        "task.finished",
        "task.started",
        "task.submitted",
    ]


async def test_events_go_on_where_they_broke_off(on: On) -> None:
    for number in range(5):
        await on.submit(task_id=f"t{number}")
    all_of_them = await collect(on, 5, after=0)
    rest = await collect(on, 3, headers={"Last-Event-ID": str(all_of_them[1]["seq"])})
    assert [event["task_id"] for event in rest] == ["t2", "t3", "t4"]
    only = await collect(on, 1, after=0, task_id="t3")
    assert only[0]["task_id"] == "t3"


async def test_who_falls_behind_gets_the_rest_from_the_database(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import deque

    monkeypatch.setattr(on.service.broadcast, "_last", deque(maxlen=3))
    for number in range(10):
        await on.submit(task_id=f"t{number}")
    found = await collect(on, 10, after=0)
    assert [event["task_id"] for event in found] == [f"t{number}" for number in range(10)]


async def test_old_events_go(start: Start) -> None:
    from polar_mitm.rollout.store.events import prune

    async with start() as on:
        for number in range(6):
            await on.submit(task_id=f"t{number}")
        await on.service.writer.write(lambda transaction: prune(transaction, 2))
        left = await on.service.reads.events(after=0, task_id=None, limit=100)
    assert [event.task_id for event in left] == ["t4", "t5"]


async def test_a_result_is_given_as_a_trainers_rows(on: On, tmp_path: Path) -> None:
    async def work(gateway: FakeGateway, given: dict[str, Any]) -> None:
        session_id = given["session_id"]
        if given["sample"] == 1:
            await gateway.report(session_id, status="error", status_reason="no sandbox", reward=None, record={})
            return
        world = World(session_id=session_id, task_id=given["task_id"], sample=0, reward=1.0)
        world.answer(world.talk(user="cut \ud83d off"), "Yes.")
        folder = world.write(tmp_path)
        write_trajectories([build(folder)], folder / "trajectory.json")
        content = (folder / "trajectory.json").read_bytes()
        await gateway.client.put(f"/v1/sessions/{session_id}/files/trajectory.json", content=content)
        await gateway.report(session_id, record=json.loads((folder / "session.json").read_text()))

    task = await on.submit(num_samples=2, max_attempts=1)
    async with FakeGateway(on.client, work=work):
        await on.ended(task["task_id"])
    good, never = [session["session_id"] for session in await on.sessions(task["task_id"])]
    said = await on.get(f"/v1/sessions/{good}/result", trajectory=True)
    assert said["trajectory"]["traces"][0]["messages"][-1]["content"] == "cut \ufffd off"
    for form in FORMATS:
        await on.get(f"/v1/sessions/{good}/rows", format=form)
    [row] = await on.get(f"/v1/sessions/{good}/rows", format="trl")
    assert (row["reward"], len(row["completion_ids"])) == (1.0, len(row["logprobs"]))
    assert row["completion_ids"]
    [row] = await on.get(f"/v1/sessions/{never}/rows", format="nemo-gym")
    assert (row["mask_sample"], row["failure_reason"], row["response"]["output"]) == (True, "no sandbox", [])
    reply = await on.client.get(f"/v1/sessions/{good}/rows", params={"format": "csv"})
    assert (reply.status_code, reply.json()["error"]["field"]) == (422, "format")
    await on.client.put(f"/v1/sessions/{good}/files/trajectory.json", content=b'{"schema": 99}')
    reply = await on.client.get(f"/v1/sessions/{good}/rows", params={"format": "trl"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "conflict")
