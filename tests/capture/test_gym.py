"""NeMo Gym's capture kept in polar's sessions: Gym's own conformance suite, and what it does not ask."""

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.gym.entries import OURS, to_call, to_fields
from polar_mitm.capture.gym.store import Store
from polar_mitm.capture.lock import SessionBusy
from polar_mitm.capture.reader import read_calls
from polar_mitm.capture.record import Call
from polar_mitm.capture.recover import change_form, recover_below
from polar_mitm.capture.session import SessionLog
from tests.capture.samples import SYSTEM, assistant, make_call, user
from tests.loaders.environments import LOADERS, ready
from tests.needs import need

ROOT = Path(__file__).parents[2]
GYM = LOADERS["nemo-gym"]
CHECKS = [
    "put_then_freeze_visibility",
    "idempotent_reput",
    "conflicting_reput",
    "mark_incomplete_durability",
    "freeze_idempotency",
    "post_freeze_write_safety",
    "conditional_retirement",
    "lineage_visibility",
    "fresh_client_lineage_visibility",
    "begin_call_custody",
]


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    need([] if ready(GYM) else ["NeMo Gym is not here: make loaders"])
    command = [sys.executable, "-m", "tests.capture.gym_process", *map(str, arguments)]
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "GYM_PACKAGES": str(next(GYM.folder.glob("lib/python3*/site-packages"))),
    }
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)


def in_gym(*arguments: str | Path) -> Any:
    with start(*arguments) as process:
        printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(printed)


class Entry:
    """As much of a `TokenEntry` as the store sees."""

    def __init__(self, rollout: str, call: str, **fields: Any) -> None:
        self.fields = {
            **{"rollout_id": rollout, "model_call_id": call, "model": "m", "prompt_token_ids": [1, 2]},
            **{"generation_token_ids": [3], "generation_log_probs": [-0.5], "parent_call_id": None, "created_at": 1.0},
            **{"output_items": [], "prompt_is_delta": False, "schema_version": 1},
            **fields,
        }

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return dict(self.fields)


def test_gyms_own_suite_passes_and_another_process_finds_the_same_again(tmp_path: Path) -> None:
    assert in_gym("conformance", tmp_path) == CHECKS
    rollouts = sorted(path.name for path in tmp_path.iterdir())
    assert len(rollouts) == len(CHECKS)
    for rollout in (rollouts[1], rollouts[-1]):
        frozen = in_gym("freeze", tmp_path, rollout)
        change_form(SessionFolder(tmp_path / rollout), compressed=True)
        assert (tmp_path / rollout / "calls.jsonl.zst").exists()
        assert in_gym("freeze", tmp_path, rollout) == frozen
        assert [call.identity.call_id for call in read_calls(SessionFolder(tmp_path / rollout).calls)] == list(
            frozen[3]
        )


def test_the_suffix_of_a_prompt_is_completed_here_and_given_back_as_it_was(tmp_path: Path) -> None:
    assert in_gym("delta", tmp_path, "r") == [[["a", "b"]], []]
    calls = list(read_calls(SessionFolder(tmp_path / "r").calls))
    assert [call.prompt_ids for call in calls] == [[1, 2], [1, 2, 3, 4, 5]]
    assert calls[1].checks.prefix == "extends"


def test_processes_that_put_at_once_lose_nothing(tmp_path: Path) -> None:
    names = {worker: [f"call-{worker}-{number}" for number in range(6)] for worker in range(3)}
    running = [start("put", tmp_path, "r", *mine, "shared") for mine in names.values()]
    for process in running:
        with process:
            _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    calls = [call.identity.call_id for call in read_calls(SessionFolder(tmp_path / "r").calls)]
    assert sorted(calls) == sorted(["shared", *chain.from_iterable(names.values())])


def test_a_session_that_polar_captured_is_one_chain_to_gym(tmp_path: Path) -> None:
    log = SessionLog(SessionFolder.create(tmp_path, "ses_1"), SessionRecord(session_id="ses_1", started_at=1.0))
    first = [SYSTEM, user("Hi.")]
    log.record(make_call("a", first, [1, 2], [3]))
    title = make_call("title", [user("A title?")], [8, 9], [7])
    title.origin.kind = "title"
    log.record(title)
    log.record(make_call("b", [*first, assistant("Hello."), user("More.")], [1, 2, 3, 4], [5]))
    log.record(make_call("failed", [user("lost")], [1, 9], None))
    log.close("completed")
    assert in_gym("chains", tmp_path, "ses_1") == [[["a", "b"]], []]
    _, _, incomplete, entries = in_gym("freeze", tmp_path, "ses_1")
    assert not incomplete
    assert entries["b"]["prompt_token_ids"] == [1, 2, 3, 4]
    assert entries["b"]["output_items"][0]["content"][0]["text"] == "Hello."
    assert (entries["b"]["parent_call_id"], entries["b"]["cum_len"]) == ("a", 5)


def test_sampled_tokens_that_polar_could_not_capture_make_the_rollout_incomplete(tmp_path: Path) -> None:
    log = SessionLog(SessionFolder.create(tmp_path, "ses_1"), SessionRecord(session_id="ses_1", started_at=1.0))
    log.record(make_call("a"))
    log.record(make_call("b", response_ids=[1, 2], logprobs=[-1.0]))
    log.close("completed")
    _, _, incomplete, entries = in_gym("freeze", tmp_path, "ses_1")
    assert incomplete
    assert list(entries) == ["a"]


def test_a_running_session_is_not_frozen(tmp_path: Path) -> None:
    log = SessionLog(SessionFolder.create(tmp_path, "ses_1"), SessionRecord(session_id="ses_1", started_at=1.0))
    with start("freeze", tmp_path, "ses_1") as process:
        assert SessionBusy.__name__ in process.communicate(timeout=120)[1]
    assert log.folder.load().status == "open"
    log.close("completed")


async def test_another_payload_of_a_call_is_refused_and_an_equal_one_taken_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _ in range(2):
        await store.put(Entry("r", "a"))
    with pytest.raises(ValueError, match="call a is captured already, with another payload"):
        await Store(tmp_path).put(Entry("r", "a", generation_token_ids=[4]))
    with pytest.raises(ValueError, match="its prompt continues call z, which is not captured"):
        await store.put(Entry("r", "b", parent_call_id="z", prompt_is_delta=True))
    assert [call.identity.call_id for call in read_calls(store.session("r").calls)] == ["a"]


async def test_a_lost_call_poisons_the_session_for_polar_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    await store.put(Entry("r", "a"))
    await store.mark_incomplete("r", "b")
    await store.mark_incomplete("r")
    session = store.session("r").load()
    assert session.poisoned == "NeMo Gym could not capture call b"
    assert session.calls == 3
    lost = list(read_calls(store.session("r").calls))[1]
    assert (lost.identity.call_id, lost.checks.valid, lost.response) == ("lost-b", False, None)
    assert recover_below(tmp_path) == []


@pytest.mark.parametrize("rollout", ["", ".", "..", ".hidden", "a/b", "../x", "a\n", "ä"])
async def test_an_id_that_is_no_name_of_a_folder_is_refused(rollout: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no rollout id"):
        await Store(tmp_path / "out").put(Entry(rollout, "a"))
    assert not (tmp_path / "out").exists()


ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)
values = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5) | st.lists(ids, max_size=2)


@given(
    prompt=ids,
    generated=ids,
    model=st.text(max_size=5),
    items=st.lists(st.dictionaries(st.text(max_size=4), values, max_size=3), max_size=3),
    more=st.dictionaries(st.text(max_size=5).filter(lambda name: name not in OURS), values, max_size=4),
)
def test_an_entry_comes_back_as_it_was(
    prompt: list[int], generated: list[int], model: str, items: list[Any], more: dict[str, Any]
) -> None:
    entry = Entry("r", "a", model=model, prompt_token_ids=prompt, generation_token_ids=generated)
    fields = {
        **more,
        **entry.fields,
        "generation_log_probs": [-0.1] * len(generated),
        "output_items": items,
    }
    call = to_call(fields, {})
    assert to_fields(Call.model_validate_json(call.model_dump_json()), {}) == fields
    assert call.checks.valid == bool(prompt and generated)
