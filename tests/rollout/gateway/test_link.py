"""What a gateway says to the rollout server, and what it does with the answers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from polar_mitm.client.models import File, StageTimes
from polar_mitm.client.nodes import Heartbeat, Registration, Report
from polar_mitm.rollout.gateway import link as links
from polar_mitm.rollout.gateway.link import Link
from polar_mitm.rollout.gateway.problems import Displaced, RegistrationRefused, Unregistered
from tests.rollout.gateway.fake_server import TOKEN, FakeServer

BEAT = Heartbeat(incarnation="i1", capacity=1, sessions={})
LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(links, "LONGEST_PAUSE_S", 0.05)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as server:
        yield server


@pytest.fixture
async def link(server: FakeServer) -> AsyncIterator[Link]:
    link = Link(server.url, TOKEN, "gw")
    async with asyncio.timeout(LIMIT_S):
        yield link
    await link.close()


def registration() -> Registration:
    return Registration(name="gw", incarnation="i1", url="http://127.0.0.1:1", capacity=1)


def report(*names: str) -> Report:
    files = [File(name=name, bytes=2) for name in names]
    return Report(
        session_id="ses_1", incarnation="i1", status="completed", ended_in="grading", times=StageTimes(), files=files
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("calls.jsonl", "session.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


async def test_it_registers_for_as_long_as_the_server_is_away_or_ill(server: FakeServer, link: Link) -> None:
    await server.stop()
    registering = asyncio.create_task(link.register(registration))
    await asyncio.sleep(0.1)
    assert not registering.done()
    server.answers["register"] = [500, 503, 429]
    await server.start()
    assert (await registering).heartbeat_s == 0.2
    assert len(server.registrations) == 1


@pytest.mark.parametrize("status", [401, 404, 422])
async def test_a_refused_registration_says_why(server: FakeServer, link: Link, status: int) -> None:
    server.answers["register"] = [status]
    with pytest.raises(RegistrationRefused, match="refuses gateway gw: as the test wants it"):
        await link.register(registration)


async def test_a_wrong_token_is_refused(server: FakeServer) -> None:
    link = Link(server.url, "another-token-altogether", "gw")
    with pytest.raises(RegistrationRefused, match="the token is not this server's"):
        await link.register(registration)
    await link.close()


async def test_the_answer_to_a_heartbeat_tells_what_to_do(server: FakeServer, link: Link) -> None:
    server.cancel = ["ses_1"]
    reply = await link.beat(BEAT, seconds=5)
    assert reply
    assert reply.cancel == ["ses_1"]
    server.answers["beat"] = [404, 409, 503]
    with pytest.raises(Unregistered):
        await link.beat(BEAT, seconds=5)
    with pytest.raises(Displaced, match="give each a --name"):
        await link.beat(BEAT, seconds=5)
    assert await link.beat(BEAT, seconds=5) is None
    await server.stop()
    assert await link.beat(BEAT, seconds=5) is None


async def test_a_report_follows_its_files_and_is_sent_until_it_is_answered(
    server: FakeServer, link: Link, folder: Path
) -> None:
    server.answers["file"] = [503, 500]
    server.answers["report"] = [503, 401, 404, 409, 429]
    reported = await link.deliver(folder, "tsk_1", report("calls.jsonl", "session.json"))
    assert reported.outcome == "counts"
    assert server.files == {("ses_1", "calls.jsonl"): b"{}", ("ses_1", "session.json"): b"{}"}
    assert len(server.reports) == 1


async def test_a_report_outlives_a_server_that_is_away(server: FakeServer, link: Link, folder: Path) -> None:
    await server.stop()
    delivering = asyncio.create_task(link.deliver(folder, "tsk_1", report("calls.jsonl")))
    await asyncio.sleep(0.1)
    assert not delivering.done()
    await server.start()
    assert (await delivering).outcome == "counts"


async def test_a_file_that_is_not_taken_or_gone_is_left_out_and_the_report_is_sent(
    server: FakeServer, link: Link, folder: Path
) -> None:
    server.answers["file"] = [413]
    await link.deliver(folder, "tsk_1", report("calls.jsonl", "session.json", "answer.txt"))
    assert [file["name"] for file in server.reports[0]["files"]] == ["session.json"]


async def test_a_report_that_is_never_taken_ends_and_its_files_stay(
    server: FakeServer, link: Link, folder: Path
) -> None:
    server.answers["report"] = [422]
    assert (await link.deliver(folder, "tsk_1", report())).outcome == "unknown"


async def test_files_go_where_the_server_says(server: FakeServer, link: Link, folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    server.store_url = str(store)
    await link.register(registration)
    await link.deliver(folder, "tsk_1", report("calls.jsonl"))
    assert server.reports[0]["files_url"] == f"{store}/tsk_1/ses_1"
    assert (store / "tsk_1" / "ses_1" / "calls.jsonl").read_text() == "{}"
    assert server.files == {}


async def test_leaving_a_server_that_is_gone_is_no_error(server: FakeServer, link: Link) -> None:
    await link.leave("i1")
    assert server.left == ["i1"]
    await server.stop()
    await link.leave("i1")
