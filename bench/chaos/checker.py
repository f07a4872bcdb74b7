"""What must be true once all is quiet: nothing lost, nothing doubled, every callback delivered, every slot returned."""

import asyncio
import errno
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.chaos.faults import FULL, Fault
from bench.chaos.simulated import turns
from bench.chaos.trainer import Trainer

OPENED = 25
"""Results whose files are fetched and held against their digests."""


NO_ROOM = os.strerror(errno.EFBIG)
"""What a process is told that is kept from writing here."""

STRAY = re.compile(r'Traceback \(.*\n(?:  File "[^"]*/site-packages/aiohttp/.*\n(?:    .*\n)+)+aiohttp\.')
"""What a task of aiohttp's says of a connection that is cut with a request's last byte; who sent it is told as well."""

AROUND_S = 2.0
"""Before and after a full disk in which a call may have been recorded that it kept from the file: what is told of a
session's times comes from two clocks, and the last call is written while the harness ends."""


@dataclass(slots=True, frozen=True)
class World:
    """What is known of a run but from the server."""

    ledger: Path
    """Of the sessions that were begun, a line each."""
    gateways: Sequence[tuple[str, Path]]
    """The URL and the state folder of each."""
    faults: Sequence[Fault]
    answered: Counter[str]
    """Calls that the engine was asked for, by session."""
    logs: Sequence[Path] = ()
    """What each process has written."""


async def check(trainer: Trainer, world: World) -> tuple[list[str], dict[str, Any]]:
    """What is wrong, and figures."""
    tasks = await trainer.pages("/v1/tasks")
    sessions = await trainer.pages("/v1/sessions?order=oldest")
    results = await trainer.pages("/v1/results")
    late = await trainer.pages("/v1/results?late=true")
    begun = await asyncio.to_thread(_begun, world.ledger)
    wrong = [
        *_tasks(trainer, tasks),
        *_samples(trainer, sessions),
        *_results(results, sessions, begun),
        *_calls(results, world),
        *_callbacks(trainer),
        *[line async for line in _slots(trainer, world.gateways)],
        *[line async for line in _files(trainer, results)],
        *await asyncio.to_thread(_logs, world.logs),
    ]
    statuses = Counter(session["status"] for session in sessions)
    return wrong, {
        "tasks": len(tasks),
        "samples": sum(trainer.submitted.values()),
        "sessions": len(sessions),
        "sessions begun": sum(begun.values()),
        "lost": statuses["lost"],
        "error": statuses["error"],
        "attempts that did not count": len(late) - len(results),
        "usable": sum(session["usable"] and session["counts"] for session in sessions),
        "calls": sum(result["calls"] for result in results),
        "masked, their calls not written for a full disk": sum(result["masked"] is not None for result in results),
    }


def _begun(ledger: Path) -> Counter[str]:
    return Counter(ledger.read_text().split()) if ledger.exists() else Counter()


def _tasks(trainer: Trainer, tasks: Sequence[dict[str, Any]]) -> Iterator[str]:
    ids = Counter(task["task_id"] for task in tasks)
    for task_id in trainer.submitted.keys() - ids.keys():
        yield f"task {task_id} was accepted and is gone"
    for task_id in ids.keys() - trainer.submitted.keys():
        yield f"task {task_id} was never sent"
    for task in tasks:
        samples = task["samples"]
        if task["status"] != "completed" or samples["completed"] != task["num_samples"] or samples["live"]:
            yield f"task {task['task_id']} is {task['status']}: {samples}"


def _samples(trainer: Trainer, sessions: Sequence[dict[str, Any]]) -> Iterator[str]:
    ids = Counter(session["session_id"] for session in sessions)
    yield from (f"session {session_id} is listed {n} times" for session_id, n in ids.items() if n > 1)
    attempts: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for session in sessions:
        attempts[session["task_id"], session["sample"]].append(session)
        if session["stage"] != "done":
            yield f"session {session['session_id']} is still {session['stage']}"
    for task_id, samples in trainer.submitted.items():
        for sample in range(samples):
            tries = attempts.pop((task_id, sample), [])
            counting = [session for session in tries if session["counts"]]
            if len(counting) != 1:
                yield f"{task_id} sample {sample} has {len(counting)} results"
            elif (counting[0]["status"], counting[0]["reward"]) != ("completed", float(sample % 2 == 0)):
                yield f"{task_id} sample {sample}: {counting[0]['status']}, reward {counting[0]['reward']}"
            if sorted(session["attempt"] for session in tries) != list(range(1, len(tries) + 1)):
                yield f"{task_id} sample {sample}: attempts {[session['attempt'] for session in tries]}"
    yield from (f"{task_id} has a sample {sample} that nobody asked for" for task_id, sample in attempts)


def _results(
    results: Sequence[dict[str, Any]], sessions: Sequence[dict[str, Any]], begun: Counter[str]
) -> Iterator[str]:
    counting = {session["session_id"] for session in sessions if session["counts"]}
    found = Counter(result["session"]["session_id"] for result in results)
    if found != Counter(counting):
        missing, more = counting - found.keys(), {name: n for name, n in found.items() if n > 1 or name not in counting}
        yield f"results: {len(missing)} are missing, {len(more)} are too many"
    order = [result["seq"] for result in results]
    if order != sorted(set(order)):
        yield "the numbers of results do not grow"
    yield from (f"session {name} was begun {n} times" for name, n in begun.items() if n > 1)
    yield from (f"session {name} has a result and was never begun" for name in counting - begun.keys())


def _calls(results: Sequence[dict[str, Any]], world: World) -> Iterator[str]:
    """Each call of each session is in its file and in its traces; where one is not, the session says so and why, and
    what it says did happen to its gateway then."""
    for result in results:
        session_id = result["session"]["session_id"]
        made, asked, kept = turns(session_id), world.answered[session_id], result["calls"]
        if asked != made:
            yield f"session {session_id} made {made} calls, and the engine was asked {asked} times"
        if kept > made:
            yield f"session {session_id} made {made} calls, and has {kept}"
        if result["masked"] is None:
            if kept != made or not result["trained_tokens"] or result["trained_tokens"] != result["response_tokens"]:
                tokens = f"{result['trained_tokens']} of {result['response_tokens']} tokens are trained"
                yield f"session {session_id} made {made} calls, has {kept}, {tokens}, and nothing says why"
        elif not result["masked"].startswith("poisoned: ") or NO_ROOM not in result["masked"]:
            yield f"session {session_id} is masked for no fault: {result['masked']}"
        elif not _was_full(result["session"], world.faults):
            yield f"session {session_id} is masked for a full disk that it never met: {result['masked']}"


def _was_full(session: dict[str, Any], faults: Sequence[Fault]) -> bool:
    """Whether its gateway could write no file for a while when it had the session."""
    began, ended = session["times"]["assigned_at"] - AROUND_S, session["times"]["finished_at"] + AROUND_S
    return any(
        fault.kind == FULL and fault.target == session["gateway"] and fault.began <= ended and fault.ended >= began
        for fault in faults
    )


def _callbacks(trainer: Trainer) -> Iterator[str]:
    if trainer.unsigned:
        yield f"{trainer.unsigned} callbacks had no good signature"
    for task_id in trainer.submitted:
        ids = trainer.callbacks.get(task_id, Counter())
        if len(ids) != 1:
            yield f"task {task_id}: {len(ids)} callbacks were delivered"
        elif trainer.statuses[task_id] != {"completed"}:
            yield f"task {task_id}: its callback says {trainer.statuses[task_id]}"


async def _slots(trainer: Trainer, gateways: Sequence[tuple[str, Path]]) -> AsyncIterator[str]:
    overview = await trainer.patient("GET", "/v1/overview")
    if overview["stages"] and any(overview["stages"].values()):
        yield f"sessions are not done: {overview['stages']}"
    if overview["callbacks_pending"] or overview["callbacks_dead"]:
        yield f"callbacks: {overview['callbacks_pending']} are pending, {overview['callbacks_dead']} are dead"
    for node in await trainer.patient("GET", "/v1/gateways"):
        if node["state"] != "ready" or node["held"]:
            yield f"gateway {node['name']} is {node['state']} and has {node['held']} sessions"
    for url, state in gateways:
        if held := await trainer.patient("GET", "/v1/sessions", url=url):
            yield f"{state.name} holds {held}"
        if left := await asyncio.to_thread(_unanswered, state):
            yield f"{state.name} has {left} reports that were never answered"
        figures = (await trainer.fetch("/metrics", url=url)).decode()
        taken = dict(re.findall(r'^polar_gateway_places_taken{stage="(\w+)"} (\S+)$', figures, re.MULTILINE))
        if set(taken.values()) != {"0.0"}:
            yield f"{state.name} has places that nobody gave back: {taken}"


def _logs(logs: Sequence[Path]) -> list[str]:
    """No fault that is foreseen ends in a traceback."""
    texts = [(log.name, STRAY.sub("", log.read_text(errors="replace"))) for log in logs if log.exists()]
    return [f"{name} has {count} tracebacks" for name, text in texts if (count := text.count("Traceback"))]


def _unanswered(state: Path) -> int:
    return len(list(state.glob("sessions/*/assignment.json")))


async def _files(trainer: Trainer, results: Sequence[dict[str, Any]]) -> AsyncIterator[str]:
    for result in results[:: max(1, len(results) // OPENED)]:
        session_id = result["session"]["session_id"]
        names = {file["name"] for file in result["files"]}
        if not {"session.json", "trajectory.json"} <= names or not names & {"calls.jsonl", "calls.jsonl.zst"}:
            yield f"session {session_id} has only {sorted(names)}"
        for file in result["files"]:
            try:
                data = await trainer.fetch(f"/v1/sessions/{session_id}/files/{file['name']}")
            except aiohttp.ClientError as error:
                yield f"session {session_id}: {file['name']} cannot be had: {error}"
                continue
            if hashlib.sha256(data).hexdigest() != file["sha256"]:
                yield f"session {session_id}: {file['name']} is not what was reported"
