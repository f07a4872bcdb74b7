"""What must be true once all is quiet: nothing lost, nothing doubled, every callback delivered, every slot returned."""

import asyncio
import hashlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.chaos.trainer import Trainer

OPENED = 25
"""Results whose files are fetched and held against their digests."""


async def check(
    trainer: Trainer, ledger: Path, gateways: Sequence[tuple[str, Path]]
) -> tuple[list[str], dict[str, Any]]:
    """What is wrong, and figures. `gateways`: the URL and the state folder of each."""
    tasks = await trainer.pages("/v1/tasks")
    sessions = await trainer.pages("/v1/sessions?order=oldest")
    results = await trainer.pages("/v1/results")
    late = await trainer.pages("/v1/results?late=true")
    begun = await asyncio.to_thread(_begun, ledger)
    wrong = [
        *_tasks(trainer, tasks),
        *_samples(trainer, sessions),
        *_results(results, sessions, begun),
        *_callbacks(trainer),
        *[line async for line in _slots(trainer, gateways)],
        *[line async for line in _files(trainer, results)],
    ]
    statuses = Counter(session["status"] for session in sessions)
    return wrong, {
        "tasks": len(tasks),
        "samples": sum(trainer.submitted.values()),
        "sessions": len(sessions),
        "sessions begun": sum(begun.values()),
        "lost": statuses["lost"],
        "error": statuses["error"],
        "late results, kept aside": len(late) - len(results),
        "usable": sum(session["usable"] and session["counts"] for session in sessions),
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
    for result in results:
        if not result["masked"] and not result["trained_tokens"]:  # calls that could not be kept mask their session
            yield f"session {result['session']['session_id']} has no calls, and nothing says why"


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


def _unanswered(state: Path) -> int:
    return len(list(state.glob("sessions/*/assignment.json")))


async def _files(trainer: Trainer, results: Sequence[dict[str, Any]]) -> AsyncIterator[str]:
    for result in results[:: max(1, len(results) // OPENED)]:
        session_id = result["session"]["session_id"]
        names = {file["name"] for file in result["files"]}
        if not {"session.json", "trajectory.json"} <= names or not names & {"calls.jsonl", "calls.jsonl.zst"}:
            yield f"session {session_id} has only {sorted(names)}"
        for file in result["files"]:
            data = await trainer.fetch(f"/v1/sessions/{session_id}/files/{file['name']}")
            if hashlib.sha256(data).hexdigest() != file["sha256"]:
                yield f"session {session_id}: {file['name']} is not what was reported"
