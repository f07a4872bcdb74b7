"""What the addon for looking does to flows: it filters, it writes out, and it adds the reward to a saved comment."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mitmproxy import exceptions
from mitmproxy.addons.view import View
from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowWriter
from mitmproxy.test import taddons, tflow
from typer.testing import CliRunner

from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.session import SessionFolder, SessionRecord
from polar_mitm.cli import app
from polar_mitm.proxy.look import SESSION, Look
from polar_mitm.proxy.view import annotate, comment, recorded
from polar_mitm.trajectory.trace import Trajectory
from tests.capture.samples import assistant, make_call, user

MITMDUMP = Path(sys.executable).with_name("mitmdump")
NAMES = ("ses_01a22a52e159930b", "ses_02b")


@pytest.fixture
def mitmproxy() -> Iterator[taddons.context]:
    with taddons.context(View(), Look()) as context:
        yield context


def flow_of(name: str, call_id: str, turn: int = 1, *, live: bool = False) -> HTTPFlow:
    said = [user("Hi."), *[assistant("Yes?"), user("Go.")] * (turn - 1)]
    call = make_call(call_id, said, [1, 2, 3, *[4, 5, 6] * (turn - 1)])
    call.identity.session_id = name
    call.identity.finished_at = float(turn)
    flow = tflow.tflow(resp=True)
    flow.live = live
    flow.metadata[SESSION] = name
    annotate(flow, call)
    return flow


def put(mitmproxy: taddons.context, *flows: HTTPFlow) -> View:
    view: View = mitmproxy.master.addons.get("view")
    view.add(flows)
    return view


def test_a_session_is_shown_alone_and_then_all_again(mitmproxy: taddons.context) -> None:
    view = put(mitmproxy, *(flow_of(name, f"call_{name}") for name in NAMES), tflow.tflow())
    look: Look = mitmproxy.master.addons.get("polar-look")
    assert look.session("ses_01") == f"{NAMES[0]}: 1 flows"
    assert [flow.metadata[SESSION] for flow in view] == [NAMES[0]]
    assert look.session(NAMES[1]) == f"{NAMES[1]}: 1 flows"
    assert [flow.metadata[SESSION] for flow in view] == [NAMES[1]]
    assert look.session() == f"{NAMES[0]}: 1 flows\n{NAMES[1]}: 1 flows"
    assert len(view) == 3


@pytest.mark.parametrize("name", ["ses_", "ses_9", "nothing"])
def test_a_name_that_is_not_one_session_is_refused(name: str, mitmproxy: taddons.context) -> None:
    put(mitmproxy, *(flow_of(session, f"call_{session}") for session in NAMES))
    with pytest.raises(exceptions.CommandError, match="sessions here"):
        mitmproxy.master.commands.call("polar.session", name)


def test_a_mitmproxy_without_a_list_says_so() -> None:
    with taddons.context(Look()) as bare, pytest.raises(exceptions.CommandError, match="no list of flows"):
        bare.master.commands.call("polar.session", "ses_1")


def test_exported_calls_are_what_was_captured_in_the_order_they_ended(
    mitmproxy: taddons.context, tmp_path: Path
) -> None:
    first, second = flow_of(NAMES[0], "call_1", 1), flow_of(NAMES[0], "call_2", 2)
    put(mitmproxy, second, first, flow_of(NAMES[1], "call_3"), tflow.tflow())
    said = mitmproxy.master.commands.execute(f"polar.export @all {tmp_path / 'out'}")
    assert f"{tmp_path}/out/{NAMES[0]}: 2 calls, 1 traces" in said
    written = list(read_calls(tmp_path / "out" / NAMES[0] / "calls.jsonl"))
    assert [call.identity.call_id for call in written] == ["call_1", "call_2"]
    assert written[1].prompt_ids == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "out" / NAMES[1] / "calls.jsonl").exists()
    trajectory = Trajectory.model_validate_json((tmp_path / "out" / NAMES[0] / "trajectory.json").read_bytes())
    assert trajectory.ledger.sampled == trajectory.ledger.bins["trained"] == 4
    shown = CliRunner().invoke(app, ["traces", str(tmp_path / "out")])
    assert shown.exit_code == 0 and "2 sessions, 3 calls" in shown.output
    with pytest.raises(exceptions.CommandError, match="is there already"):
        mitmproxy.master.commands.execute(f"polar.export @all {tmp_path / 'out'}")


def test_an_export_of_nothing_and_of_what_cannot_be_read_is_refused(mitmproxy: taddons.context, tmp_path: Path) -> None:
    look: Look = mitmproxy.master.addons.get("polar-look")
    with pytest.raises(exceptions.CommandError, match="none of these flows"):
        look.export([tflow.tflow()], str(tmp_path))
    broken = flow_of(NAMES[0], "call_1")
    broken.metadata["polar"] = "{"
    with pytest.raises(exceptions.CommandError, match="can't be read"):
        look.export([broken], str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(exceptions.CommandError, match="can't be written"):
        look.export([flow_of(NAMES[0], "call_1")], str(tmp_path / "file"))


@pytest.mark.parametrize("name", ["../../out", "..", "/etc", "", "a\nb", 'x" | ~all'])
def test_a_session_id_from_a_strangers_flows_leads_nowhere(
    name: str, mitmproxy: taddons.context, tmp_path: Path
) -> None:
    put(mitmproxy, flow_of(name, "call_1"))
    look: Look = mitmproxy.master.addons.get("polar-look")
    with pytest.raises(exceptions.CommandError, match="no session id"):
        look.export([flow_of(name, "call_1")], str(tmp_path / "in"))
    assert list(tmp_path.iterdir()) == []
    assert look.session() == "no session has a flow here"


@pytest.mark.parametrize("edited", [False, True])
def test_a_saved_flow_gets_its_sessions_reward_onto_a_comment_that_is_polars(
    edited: bool, mitmproxy: taddons.context, tmp_path: Path
) -> None:
    folder = SessionFolder.create(tmp_path, NAMES[0])
    folder.write(SessionRecord(session_id=NAMES[0], started_at=0, status="completed", reward=0.5))
    mitmproxy.options.add_option("rfile", str, str(folder.flows), "")
    saved, strange, live = flow_of(NAMES[0], "call_1"), flow_of(NAMES[1], "call_2"), flow_of(NAMES[0], "c", live=True)
    if edited:
        saved.comment = "mine"
    for flow in (saved, strange, live):
        before = flow.comment
        mitmproxy.master.addons.get("polar-look").requestheaders(flow)
        call = recorded(flow)
        assert call
        assert flow.comment == (comment(call, 0.5) if flow is saved and not edited else before)


async def test_mitmdump_prints_the_tokens_of_saved_flows_with_the_script_for_looking(tmp_path: Path) -> None:
    saved = tmp_path / "flows.mitm"
    with saved.open("wb") as file:
        FlowWriter(file).add(flow_of(NAMES[0], "call_1"))
    script = Path(__file__).parents[2] / "addons" / "polar_look.py"
    dump = await asyncio.create_subprocess_exec(
        *(MITMDUMP, "-n", "-r", saved, "-s", script, "--flow-detail", "3", "--set", f"confdir={tmp_path}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        printed, _ = await dump.communicate()
    assert dump.returncode == 0, printed
    assert b"# sampled: 2 tokens" in printed
