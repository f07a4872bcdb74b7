"""The checker of `make chaos` finds what it is for: each thing that can go wrong is planted, and reported."""

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.checker import World, check
from bench.chaos.faults import FULL, Fault
from bench.chaos.simulated import turns

NOW = time.time()
POISONED = "poisoned: call call_1 was not recorded: [Errno 27] File too large: 'calls.jsonl'"


@dataclass
class Quiet:
    """A run in which all went well: two tasks of two samples on one gateway. It answers like a `Trainer`."""

    ledger: Path
    submitted: dict[str, int] = field(default_factory=lambda: {"t0": 2, "t1": 2})
    unsigned: int = 0
    faults: list[Fault] = field(default_factory=list)
    metrics: str = 'polar_gateway_places_taken{stage="running"} 0.0\n'
    held: dict[str, str] = field(default_factory=dict)
    log: str = "it was not well for a while\n"

    def __post_init__(self) -> None:
        self.tasks = [
            {
                "task_id": name,
                "status": "completed",
                "num_samples": count,
                "samples": {"completed": count, "live": 0},
            }
            for name, count in self.submitted.items()
        ]
        self.sessions = [_session(name, sample) for name, count in self.submitted.items() for sample in range(count)]
        self.results = [_result(seq, session) for seq, session in enumerate(self.sessions, 1)]
        self.late = list(self.results)
        self.begun = [session["session_id"] for session in self.sessions]
        self.answered = Counter({name: turns(name) for name in self.begun})
        self.callbacks = {name: Counter([f"cb_{name}"]) for name in self.submitted}
        self.statuses = {name: {"completed"} for name in self.submitted}
        self.overview: dict[str, Any] = {"stages": {}, "callbacks_pending": 0, "callbacks_dead": 0}
        self.gateways = [{"name": "gw-0", "state": "ready", "held": 0}]

    async def pages(self, path: str) -> list[dict[str, Any]]:
        lists = {"/v1/tasks": self.tasks, "/v1/sessions?order=oldest": self.sessions, "/v1/results": self.results}
        return lists.get(path, self.late)

    async def patient(self, method: str, path: str, url: str | None = None) -> Any:
        return self.held if url else {"/v1/overview": self.overview, "/v1/gateways": self.gateways}[path]

    async def fetch(self, path: str, url: str | None = None) -> bytes:
        return self.metrics.encode() if url else b"what a file holds"

    async def wrong(self) -> list[str]:
        self.ledger.write_text("\n".join(self.begun))
        log = self.ledger.with_name("server.log")
        log.write_text(self.log)
        world = World(self.ledger, [("http://gw", self.ledger.parent)], self.faults, self.answered, [log])
        return (await check(self, world))[0]  # type: ignore[arg-type]


def _session(task: str, sample: int, attempt: int = 1) -> dict[str, Any]:
    return {
        "session_id": f"ses_{task}_{sample}_{attempt}",
        "task_id": task,
        "sample": sample,
        "attempt": attempt,
        "stage": "done",
        "status": "completed",
        "reward": float(sample % 2 == 0),
        "counts": True,
        "usable": True,
        "gateway": "gw-0",
        "times": {"assigned_at": NOW, "finished_at": NOW + 5},
    }


def _result(seq: int, session: dict[str, Any]) -> dict[str, Any]:
    calls = turns(session["session_id"])
    digest = hashlib.sha256(b"what a file holds").hexdigest()
    names = ("session.json", "trajectory.json", "calls.jsonl")
    return {
        "seq": seq,
        "session": session,
        "masked": None,
        "calls": calls,
        "trained_tokens": 7 * calls,
        "response_tokens": 7 * calls,
        "files": [{"name": name, "sha256": digest} for name in names],
    }


@pytest.fixture
def quiet(tmp_path: Path) -> Quiet:
    return Quiet(tmp_path / "ledger")


async def test_where_all_went_well_nothing_is_wrong(quiet: Quiet) -> None:
    assert await quiet.wrong() == []


def _loses_a_session(run: Quiet) -> None:
    lost = run.sessions.pop()
    run.results.pop()
    run.begun.remove(lost["session_id"])


def _loses_a_result(run: Quiet) -> None:
    run.results.pop()


def _loses_a_task(run: Quiet) -> None:
    run.tasks.pop()


def _doubles_a_sample(run: Quiet) -> None:
    twice = _session("t0", 0, attempt=2)
    run.sessions.append(twice)
    run.results.append(_result(9, twice))
    run.begun.append(twice["session_id"])
    run.answered[twice["session_id"]] = turns(twice["session_id"])


def _lists_a_session_twice(run: Quiet) -> None:
    run.sessions.append(run.sessions[0])


def _gives_a_result_twice(run: Quiet) -> None:
    run.results.append(run.results[0])


def _begins_a_session_twice(run: Quiet) -> None:
    run.begun.append(run.begun[0])


def _makes_a_result_up(run: Quiet) -> None:
    run.begun.pop()


def _gives_another_reward(run: Quiet) -> None:
    run.sessions[0]["reward"] = 0.5


def _leaves_a_session_running(run: Quiet) -> None:
    run.sessions[0]["stage"] = "running"


def _delivers_no_callback(run: Quiet) -> None:
    run.callbacks.pop("t1")


def _delivers_two_callbacks(run: Quiet) -> None:
    run.callbacks["t1"]["cb_other"] += 1


def _signs_badly(run: Quiet) -> None:
    run.unsigned = 1


def _keeps_a_callback(run: Quiet) -> None:
    run.overview["callbacks_dead"] = 1


def _keeps_a_place(run: Quiet) -> None:
    run.metrics = 'polar_gateway_places_taken{stage="running"} 1.0\n'


def _says_nothing_of_places(run: Quiet) -> None:
    run.metrics = ""


def _breaks_inside(run: Quiet) -> None:
    run.log = "Traceback (most recent call last):\n"


def _holds_a_session(run: Quiet) -> None:
    run.held = {"ses_x": "done"}


def _still_has_a_session_at_the_server(run: Quiet) -> None:
    run.gateways[0]["held"] = 1


def _loses_a_call_in_silence(run: Quiet) -> None:
    run.results[0] |= {"calls": 0, "trained_tokens": 0, "response_tokens": 0}


def _loses_one_of_the_calls_in_silence(run: Quiet) -> None:
    run.results[0]["calls"] -= 1


def _trains_too_little(run: Quiet) -> None:
    run.results[0]["trained_tokens"] -= 1


def _asks_the_engine_twice(run: Quiet) -> None:
    run.answered[run.begun[0]] += 1


def _is_masked_for_nothing(run: Quiet) -> None:
    run.results[0] |= {"masked": "its traces could not be built", "trained_tokens": 0}


def _is_masked_for_a_disk_that_never_was_full(run: Quiet) -> None:
    run.results[0] |= {"masked": POISONED, "calls": 0, "trained_tokens": 0}


def _is_masked_for_another_gateways_disk(run: Quiet) -> None:
    _is_masked_for_a_disk_that_never_was_full(run)
    run.faults.append(Fault(FULL, "gw-1", NOW + 1, NOW + 2))


def _is_masked_for_a_disk_that_was_full_before(run: Quiet) -> None:
    _is_masked_for_a_disk_that_never_was_full(run)
    run.faults.append(Fault(FULL, "gw-0", NOW - 60, NOW - 50))


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (_loses_a_session, "t1 sample 1 has 0 results"),
        (_loses_a_result, "results: 1 are missing"),
        (_loses_a_task, "task t1 was accepted and is gone"),
        (_doubles_a_sample, "t0 sample 0 has 2 results"),
        (_lists_a_session_twice, "is listed 2 times"),
        (_gives_a_result_twice, "1 are too many"),
        (_begins_a_session_twice, "was begun 2 times"),
        (_makes_a_result_up, "has a result and was never begun"),
        (_gives_another_reward, "t0 sample 0: completed, reward 0.5"),
        (_leaves_a_session_running, "is still running"),
        (_delivers_no_callback, "task t1: 0 callbacks were delivered"),
        (_delivers_two_callbacks, "task t1: 2 callbacks were delivered"),
        (_signs_badly, "1 callbacks had no good signature"),
        (_keeps_a_callback, "1 are dead"),
        (_keeps_a_place, "has places that nobody gave back"),
        (_says_nothing_of_places, "has places that nobody gave back"),
        (_breaks_inside, "server.log has 1 tracebacks"),
        (_holds_a_session, "holds {'ses_x': 'done'}"),
        (_still_has_a_session_at_the_server, "gateway gw-0 is ready and has 1 sessions"),
        (_loses_a_call_in_silence, "and nothing says why"),
        (_loses_one_of_the_calls_in_silence, "and nothing says why"),
        (_trains_too_little, "and nothing says why"),
        (_asks_the_engine_twice, "the engine was asked"),
        (_is_masked_for_nothing, "is masked for no fault"),
        (_is_masked_for_a_disk_that_never_was_full, "a full disk that it never met"),
        (_is_masked_for_another_gateways_disk, "a full disk that it never met"),
        (_is_masked_for_a_disk_that_was_full_before, "a full disk that it never met"),
    ],
)
async def test_what_is_wrong_is_said(quiet: Quiet, plant: Callable[[Quiet], None], said: str) -> None:
    plant(quiet)
    assert any(said in line for line in await quiet.wrong())


async def test_what_aiohttp_says_of_a_cut_connection_is_nothing_wrong(quiet: Quiet) -> None:
    quiet.log = """Traceback (most recent call last):
  File "/x/site-packages/aiohttp/client_reqrep.py", line 1621, in write_bytes
    await writer.write_eof()
aiohttp.client_exceptions.ClientConnectionResetError: Cannot write to closing transport
"""
    assert await quiet.wrong() == []
    quiet.log = quiet.log.replace("site-packages/aiohttp", "polar_mitm/rollout")
    assert await quiet.wrong() == ["server.log has 1 tracebacks"]


async def test_calls_that_a_full_disk_kept_from_their_file_are_no_loss(quiet: Quiet) -> None:
    _is_masked_for_a_disk_that_never_was_full(quiet)
    quiet.faults.append(Fault(FULL, "gw-0", NOW + 1, NOW + 2))
    assert await quiet.wrong() == []
