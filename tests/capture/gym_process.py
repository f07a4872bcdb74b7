"""What tests ask of a process that has Gym: `python -m tests.capture.gym_process WHAT FOLDER [ROLLOUT]` prints JSON."""

import asyncio
import json
import os
import sys
from importlib import import_module
from typing import Any

sys.path.append(os.environ["GYM_PACKAGES"])  # behind polar's own, of which Gym's token capture needs two

from polar_mitm.capture.gym.lineage import Lineage
from polar_mitm.capture.gym.store import Store


def gym(name: str) -> Any:
    return import_module(f"nemo_gym.token_id_capture.{name}")


async def conformance(out: str) -> Any:
    """The names of the checks that Gym's own suite passed."""
    return await gym("conformance").run_conformance(lambda: Store(out), lambda: Store(out), lambda: Lineage(out))


async def freeze(out: str, rollout: str) -> Any:
    snapshot = await Store(out).freeze(rollout)
    entries = {entry.model_call_id: entry.model_dump(mode="json") for entry in snapshot.entries}
    return [snapshot.snapshot_id, snapshot.version, snapshot.incomplete, entries]


async def put(out: str, rollout: str, *names: str) -> Any:
    records = gym("records")
    for name in names:
        entry = records.TokenEntry(
            rollout_id=rollout,
            model_call_id=name,
            prompt_token_ids=[1, 2, 3],
            generation_token_ids=[4],
            generation_log_probs=[-0.5],
            created_at=1.0,
        )
        await Store(out).put(entry)
    return len(names)


async def delta(out: str, rollout: str) -> Any:
    """A rollout whose second entry holds the suffix of its prompt only, as Gym stores it."""
    records = gym("records")
    parts = {"rollout_id": rollout, "generation_log_probs": [-0.5, -0.25], "created_at": 1.0}
    root = records.TokenEntry(model_call_id="a", prompt_token_ids=[1, 2], generation_token_ids=[3, 4], **parts)
    records.stamp_lineage(root, None, parent_resolution="root")
    child = records.TokenEntry(
        model_call_id="b",
        prompt_token_ids=[5],
        generation_token_ids=[6, 7],
        parent_call_id="a",
        parent_resolution="resolved",
        prompt_is_delta=True,
        **parts,
    )
    records.stamp_lineage(child, "a", parent_resolution="resolved", cumulative=[1, 2, 3, 4, 5, 6, 7])
    for entry in (root, child):
        await Store(out).put(entry)
    snapshot = await Store(out).freeze(rollout)
    assert {entry.model_call_id: entry for entry in snapshot.entries} == {"a": root, "b": child}
    return await chains(out, rollout)


async def chains(out: str, rollout: str) -> Any:
    """What Gym's own builder makes of it: the calls of each chain, and those it quarantined."""
    snapshot = await Store(out).freeze(rollout)
    built = gym("builder").run_builder(list(snapshot.entries), "prefix_merging")
    return [[[link.entry.model_call_id for link in chain.links] for chain in built.chains], built.quarantined]


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    actions = {"conformance": conformance, "freeze": freeze, "put": put, "delta": delta, "chains": chains}
    print(json.dumps(asyncio.run(actions[what](*arguments))))
