"""Both clients against a real rollout server, which has no gateway: what is asked waits in line."""

import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from polar_mitm.client import aio, sync
from polar_mitm.client.aio import AsyncRolloutClient
from polar_mitm.client.models import ResultLine, TaskRequest
from polar_mitm.client.requests import ApiError, StreamCut, Unreachable, check
from polar_mitm.client.sync import RolloutClient

TOKEN = "a-token-of-the-tests-0123456789"
LIMIT_S = 90.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("rollout")
    token = folder / "token.txt"
    token.write_text(TOKEN)
    polar = Path(sys.executable).with_name("polar")
    command = [polar, "rollout", "serve", "--state", folder / "state", "--port", "0", "--token-file", token]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            yield until_open(folder / "log", server)
        finally:
            server.terminate()


def until_open(log: Path, server: "subprocess.Popen[bytes]") -> str:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            try:
                urlopen(f"{found[0]}/healthz", timeout=5).close()
            except OSError:
                pass
            else:
                return found[0]
        time.sleep(0.1)
    raise AssertionError(f"the server did not open:\n{log.read_text()}")


@pytest.fixture
def client(url: str) -> Iterator[RolloutClient]:
    with RolloutClient(url, TOKEN) as client:
        yield client


@pytest.fixture
async def other(url: str) -> AsyncIterator[AsyncRolloutClient]:
    async with AsyncRolloutClient(url, TOKEN) as client:
        yield client


def test_P154_a_task_is_accepted_once_listed_and_cancelled(client: RolloutClient) -> None:
    request = TaskRequest(task_id="one", scenario="hello", num_samples=3, metadata={"epoch": 2})
    task = client.submit(request, idempotency_key="k1")
    assert (task.task_id, task.status, task.samples.queued) == ("one", "queued", 3)
    assert client.submit(request, idempotency_key="k1").task_id == "one"
    with pytest.raises(ApiError) as taken:
        client.submit(request)
    assert (taken.value.status, taken.value.code) == (409, "conflict")
    assert client.task("one").metadata == {"epoch": 2}
    assert "one" in [listed.task_id for listed in client.tasks().items]
    assert [session.sample for session in client.sessions("one").items] == [0, 1, 2]
    assert client.overview().stages["queued"] >= 3
    assert client.gateways() == []
    assert client.cancel("one").status == "cancelled"
    lines = list(client.stream_results("one"))
    assert lines[-1].type == "end"
    assert client.wait("one").samples.cancelled == 3
    assert client.results("one").task.status == "cancelled"


async def test_the_asynchronous_one_does_the_same(other: AsyncRolloutClient) -> None:
    task = await other.submit(
        TaskRequest(task_id="two", scenario={"instruction": "Hi.", "evaluator": {"type": "session_completed"}})
    )
    assert task.status == "queued"
    assert (await other.cancel("two")).status == "cancelled"
    assert [line.type async for line in other.stream_results("two")][-1] == "end"
    assert (await other.wait("two")).status == "cancelled"
    first = await anext(other.events(after=0, task_id="two"))
    assert (first.type, first.task_id) == ("task.submitted", "two")


def test_a_refusal_names_its_field_and_its_code(client: RolloutClient) -> None:
    with pytest.raises(ApiError) as missing:
        client.task("no-such-task")
    assert (missing.value.status, missing.value.code) == (404, "not_found")
    with pytest.raises(ApiError) as bad:
        client.submit(TaskRequest(scenario={"instruction": "x", "harness": "nobody"}))
    assert bad.value.status == 422
    assert "harness" in str(bad.value)


def test_without_the_token_nothing_is_told(url: str) -> None:
    with RolloutClient(url, "not-the-token-0123456789") as client, pytest.raises(ApiError) as refused:
        client.tasks()
    assert refused.value.status == 401


async def test_without_gateways_there_is_no_policy_to_change(client: RolloutClient, other: AsyncRolloutClient) -> None:
    assert client.policy() == await other.policy()
    assert (client.policy().phase, client.policy().gateways) == ("serving", [])
    for ask in (client.pause_policy, client.resume_policy, lambda: client.update_policy("v2", weights="/weights/2")):
        with pytest.raises(ApiError, match="there is no gateway") as refused:
            ask()
        assert (refused.value.status, refused.value.code) == (409, "conflict")
    for asked in (other.pause_policy(), other.resume_policy("v2"), other.update_policy("v2", mode="keep")):
        with pytest.raises(ApiError, match="there is no gateway"):
            await asked


def test_where_nobody_listens_that_is_said_with_the_address() -> None:
    with (
        RolloutClient("http://127.0.0.1:9", TOKEN) as client,
        pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9"),
    ):
        client.tasks()


def test_an_error_of_something_else_is_no_refusal() -> None:
    with pytest.raises(Unreachable, match="HTTP status 502"):
        check(502, b"<html>Bad Gateway</html>")


def test_a_stream_that_breaks_off_says_after_which_result(
    client: RolloutClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ping = ResultLine(type="ping").model_dump_json()
    monkeypatch.setattr(client, "_lines", lambda ask: iter([ping]))
    with pytest.raises(StreamCut) as cut:
        list(client.stream_results("one"))
    assert cut.value.seq is None


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert methods(sync.RolloutClient) == methods(aio.AsyncRolloutClient)
