"""`polar replay`: what saved flows give back, and what is said when they are not whole."""

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from mitmproxy.io import FlowWriter
from mitmproxy.test import tflow
from typer.testing import CliRunner

from polar_mitm.capture.folder import SessionFolder
from polar_mitm.capture.log import CallLog, CallLogError
from polar_mitm.capture.reader import read_calls
from polar_mitm.cli import app
from polar_mitm.proxy.saved import FlowFileError
from polar_mitm.rollout.replay import ReplayError, replay
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, CHAT, JSON_ASKS, RESPONSES, STREAM_ASKS, streamed
from tests.proxy.stage import Stage, Wire, until

LARGE = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "maximum": 10**30}}}
CALLS = 20


async def everything(on: Stage) -> None:
    """Calls of every kind: in order and at once, JSON, early and late streams, retried, invalid, failed, left."""
    for ask in (*JSON_ASKS, *STREAM_ASKS):
        await on.post(ask)
    await asyncio.gather(
        *(on.post(ask.saying(f"At once {n}")) for n in range(4) for ask in (CHAT, streamed(ANTHROPIC)))
    )
    for count in ("0", "1"):
        await on.post(RESPONSES, headers={"x-stainless-retry-count": count})
    await on.post(CHAT, data=json.dumps({**CHAT.body, "tools": [LARGE]}))
    await on.request("GET", f"{on.base_url()}/v1/models", headers={"authorization": f"Bearer {on.session.token}"})


async def left_early(on: Stage) -> None:
    async with Wire(on.proxy.base_url_port) as wire:
        body = orjson.dumps(CHAT.body)
        head = f"POST /s/{on.session.id}/v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
        await wire.send(f"{head}Authorization: Bearer {on.session.token}\r\n\r\n".encode() + body)
        await until(lambda: on.fake.running == 1)
        wire.abort()
    await until(lambda: on.calls()[-1].delivery.status == "aborted" and len(on.flows()) > len(on.calls()))


def raw(folder: SessionFolder) -> bytes:
    return folder.calls.read_bytes()


@pytest.fixture
async def staged(stage: Staged) -> SessionFolder:
    """A closed session with its flows."""
    async with stage(*[Reply("Hi.", delay_s=0.1)] * 20, Reply("Bye."), grace_s=0.05, keepalive_s=0.05) as on:
        await everything(on)
        on.session.log.session.reward = 0.5
        on.session.log.close("completed", exit_code=0)
        return on.session.log.folder


async def test_saved_flows_give_the_same_file_byte_for_byte(staged: SessionFolder, tmp_path: Path) -> None:
    result = replay(staged.flows, tmp_path)
    (session,) = result.sessions
    assert session.folder.path == tmp_path / staged.path.name
    assert raw(session.folder) == raw(staged)
    assert (session.live, session.same_bytes, session.differs) == (staged.calls, True, None)
    assert (session.missing, session.regained) == ([], [])
    assert session.folder.load() == staged.load()
    assert session.session.calls == len(list(read_calls(staged.calls))) == CALLS
    assert (result.others, result.repeated, result.unfinished, result.torn) == (1, 0, 0, -1)


async def test_calls_that_failed_or_were_left_are_given_back_too(stage: Staged, tmp_path: Path) -> None:
    async with stage(Reply(logprobs=False), Reply(status=500, error="no luck"), Reply(delay_s=30)) as on:
        await on.post(CHAT)
        await on.post(ANTHROPIC)
        await on.request("GET", f"{on.base_url()}/v1/models", headers={"authorization": f"Bearer {on.session.token}"})
        await left_early(on)
        on.session.log.close("failed")
        (session,) = replay(on.session.log.folder.flows, tmp_path).sessions
        assert raw(session.folder) == raw(on.session.log.folder)
        assert [call.checks.valid for call in read_calls(session.folder.calls)] == [False] * 3


async def test_a_call_that_outlives_its_session_or_the_proxy_has_its_flow(stage: Staged, tmp_path: Path) -> None:
    async with stage(Reply("Late.", delay_s=0.3), Reply(delay_s=30)) as on:
        late = asyncio.create_task(on.post(CHAT))
        await until(lambda: on.fake.running == 1)
        on.border.sessions.remove(on.session)
        on.session.log.close("timeout")
        assert (await late).ok
        other = on.open_session()
        never = asyncio.create_task(on.post(CHAT, session=other))
        await until(lambda: on.fake.running == 1)
    await asyncio.gather(never, return_exceptions=True)
    for session, status in ((on.session, "delivered"), (other, "aborted")):
        (again,) = replay(session.log.folder.flows, tmp_path).sessions
        assert raw(again.folder) == raw(session.log.folder)
        assert [call.delivery.status for call in read_calls(again.folder.calls)] == [status]


async def test_calls_that_could_not_be_written_are_regained(stage: Staged, tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise CallLogError("No space left on device")

    async with stage() as on:
        await on.post(CHAT.saying("one"))
        with monkeypatch.context() as full:
            full.setattr(CallLog, "append", refuse)
            await on.post(CHAT.saying("two"))
        await on.post(CHAT.saying("three"))
        on.session.log.close("completed")
        (session,) = replay(on.session.log.folder.flows, tmp_path).sessions
    said = [call.request.messages[0]["content"] for call in read_calls(session.folder.calls)]
    assert said == ["one", "three", "two"]
    assert session.regained == [list(read_calls(session.folder.calls))[2].identity.call_id]
    assert session.differs == 3
    assert session.session.poisoned  # as it was


async def test_without_the_record_beside_them_flows_say_not_how_it_ended(staged: SessionFolder, tmp_path: Path) -> None:
    alone = tmp_path / "some.mitm"
    alone.write_bytes(staged.flows.read_bytes())
    (session,) = replay(alone, tmp_path / "again").sessions
    assert raw(session.folder) == raw(staged)
    assert session.live is None
    record = session.folder.load()
    assert record.incomplete
    assert record.status_reason == "incomplete: rebuilt from some.mitm, which does not say how the session ended"
    last = list(read_calls(staged.calls))[-1].identity.finished_at
    assert (record.calls, record.reward, record.finished_at) == (CALLS, None, last)


async def test_a_first_file_of_other_words_is_equal_in_what_it_says(staged: SessionFolder, tmp_path: Path) -> None:
    staged.calls.chmod(0o600)
    staged.calls.write_bytes(raw(staged).replace(b',"imported":null', b""))
    staged.write(staged.load().model_copy(update={"seal": None}))
    (session,) = replay(staged.flows, tmp_path).sessions
    assert (session.same_bytes, session.differs) == (False, None)


async def test_sessions_in_one_file_are_told_apart(stage: Staged, tmp_path: Path) -> None:
    async with stage() as on:
        other = on.open_session(identity={"task_id": "t", "sample": 3, "harness": "pi"})
        both = (on.session, other)
        for session in (*both, *both):
            await on.post(CHAT, session=session)
        joined = tmp_path / "joined.mitm"
        joined.write_bytes(b"".join(session.log.folder.flows.read_bytes() for session in both))
        result = replay(joined, tmp_path / "again")
        assert {again.folder.path.name: raw(again.folder) for again in result.sessions} == {
            session.id: raw(session.log.folder) for session in both
        }
        record = result.sessions[1].session
        assert (record.task_id, record.sample, record.harness) == ("t", 3, "pi")


async def test_strangers_and_copies_are_passed_over_and_counted(staged: SessionFolder, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.mitm"
    with mixed.open("wb") as file:
        writer = FlowWriter(file)
        for flow in (tflow.tflow(resp=True), tflow.ttcpflow(), tflow.tdnsflow()):
            writer.add(flow)
        draft = tflow.tflow(resp=True)
        draft.metadata["polar"] = next(iter(read_calls(staged.calls))).model_dump_json()
        writer.add(draft)
        file.write(staged.flows.read_bytes() * 2)
    result = replay(mixed, tmp_path / "again")
    assert raw(result.sessions[0].folder) == raw(staged)
    assert (result.others, result.unfinished, result.repeated) == (3 + 2, 1, CALLS)


async def test_a_missing_flow_is_named_and_the_session_marked(staged: SessionFolder, tmp_path: Path) -> None:
    lines = flow_bytes(staged.flows)
    staged.flows.write_bytes(b"".join(lines[:1] + lines[2:4] + lines[5 : CALLS - 1]))
    (session,) = replay(staged.flows, tmp_path).sessions
    assert session.missing == [2, 5, CALLS]
    assert session.differs == 2
    assert session.session.poisoned == "rebuilt from flows.mitm, which lacks 3 of its calls"
    assert session.session.calls == CALLS - 3
    assert session.folder.load().status == "completed"


async def test_a_file_that_ends_in_a_flow_gives_what_comes_before(staged: SessionFolder, tmp_path: Path) -> None:
    lines = flow_bytes(staged.flows)
    for cut in (1, 3, len(lines[5]) - 1):
        (flows := tmp_path / f"cut{cut}.mitm").write_bytes(b"".join(lines[:5]) + lines[5][:cut])
        result = replay(flows, tmp_path / f"out{cut}")
        assert result.torn == len(b"".join(lines[:5]))
        assert len(list(read_calls(result.sessions[0].folder.calls))) == 5
        assert result.sessions[0].session.poisoned


@pytest.mark.parametrize("place", [0, 1, 3])
async def test_a_damaged_file_is_refused_with_the_place(staged: SessionFolder, place: int, tmp_path: Path) -> None:
    lines = flow_bytes(staged.flows)
    offset = len(b"".join(lines[:place]))
    head = lines[place].index(b":") + 1
    for damaged in (b"x" + lines[place][1:], lines[place][: head + 5] + b"\0\0\0" + lines[place][head + 8 :]):
        staged.flows.chmod(0o600)
        staged.flows.write_bytes(b"".join([*lines[:place], damaged, *lines[place + 1 :]]))
        with pytest.raises(FlowFileError, match=f"flow {place + 1}, at byte {offset}: it is no flow") as caught:
            replay(staged.flows, tmp_path)
        assert f"cut the file to {offset} bytes to keep the flows before" in str(caught.value)
    assert not (tmp_path / staged.path.name).exists()


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ({"polar": "{"}, "its record can't be read"),
        ({"polar": "{}"}, "its record can't be read: identity: Field required"),
        (
            {"polar": "{}", "polar_schema": 99},
            "its record can't be read: it has schema version 99.*install a newer polar-mitm",
        ),
    ],
)
def test_a_record_that_can_not_be_read_is_refused(metadata: dict[str, Any], what: str, tmp_path: Path) -> None:
    flow = tflow.tflow(resp=True)
    flow.metadata.update(metadata)
    with (tmp_path / "a.mitm").open("wb") as file:
        FlowWriter(file).add(flow)
    with pytest.raises(FlowFileError, match=f"flow 1, at byte 0: {what}"):
        replay(tmp_path / "a.mitm", tmp_path / "again")


async def test_no_path_is_taken_from_a_flow(staged: SessionFolder, tmp_path: Path) -> None:
    (flows := tmp_path / "a.mitm").write_bytes(
        staged.flows.read_bytes().replace(staged.path.name.encode(), b"../" * 10)
    )
    with pytest.raises(FlowFileError, match="is no id of a session"):
        replay(flows, tmp_path / "again")


async def test_a_session_that_is_there_already_is_not_written_over(staged: SessionFolder, tmp_path: Path) -> None:
    before = raw(staged)
    with pytest.raises(ReplayError, match="is there already: name another folder with --out"):
        replay(staged.flows, staged.path.parent)
    assert raw(staged) == before


async def test_a_session_that_can_not_be_written_leaves_nothing(
    staged: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CallLogError("No space left on device")

    monkeypatch.setattr(CallLog, "append", refuse)
    with pytest.raises(CallLogError):
        replay(staged.flows, tmp_path / "again")
    assert list((tmp_path / "again").iterdir()) == []


async def test_the_command_says_what_it_made_and_whether_it_is_the_same(staged: SessionFolder, tmp_path: Path) -> None:
    run = ["replay", str(staged.flows), "--out", str(tmp_path / "again")]
    result = CliRunner().invoke(app, run)
    assert result.exit_code == 0
    name = staged.path.name
    assert result.stdout == (
        f"{name}: {CALLS} calls  {tmp_path}/again/{name}/calls.jsonl\n"
        f"  equal to {staged.calls}, byte for byte\n"
        "passed over: 1 flow of no call\n"
    )
    again = CliRunner().invoke(app, run)
    assert (again.exit_code, again.stdout) == (2, "")
    built = CliRunner().invoke(app, [*run[:-1], str(tmp_path / "built"), "--rebuild"])
    assert built.exit_code == 0
    assert "lineage" in built.stdout
    as_json = CliRunner().invoke(app, [*run[:-1], str(tmp_path / "json"), "--json", "--rebuild"])
    (session,) = json.loads(as_json.stdout)["sessions"]
    assert (session["calls"], session["differs_from_line"], session["missing"]) == (CALLS, None, [])
    ledger = session["trajectory"]["ledger"]
    sampled = sum(len(call.response.response_ids) for call in read_calls(staged.calls) if call.response)
    assert sum(ledger["bins"].values()) == ledger["sampled"] == sampled


def test_a_file_without_calls_is_bad_usage(tmp_path: Path) -> None:
    for name, content in (("empty.mitm", b""), ("other.mitm", None)):
        with (tmp_path / name).open("wb") as file:
            FlowWriter(file).add(tflow.tflow()) if content is None else file.write(content)
        result = CliRunner().invoke(app, ["replay", str(tmp_path / name), "--out", str(tmp_path / "again")])
        assert result.exit_code == 2
        assert "no call of a session is in it" in result.stderr
    assert not (tmp_path / "again").exists()


def flow_bytes(path: Path) -> list[bytes]:
    """Each flow's bytes, by the length that it begins with."""
    rest, flows = path.read_bytes(), []
    while rest:
        head = rest.index(b":") + 1
        end = head + int(rest[: head - 1]) + 1
        flows.append(rest[:end])
        rest = rest[end:]
    return flows
