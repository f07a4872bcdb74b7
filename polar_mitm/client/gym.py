"""NeMo Gym's rollouts over a rollout server: a data row becomes a task of one sample, its session a result row.

What `polar gym init` writes calls this and knows nothing more of polar. It does not import NeMo Gym.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from pydantic import ValidationError

from polar_mitm.client.aio import AsyncRolloutClient
from polar_mitm.client.models import Result, Task, TaskRequest
from polar_mitm.client.requests import RolloutError, Unreachable

OWN: Final = "polar"
"""The field of a data row with fields of a TaskRequest; they win over the agent's."""

SENT_FOR_S: Final = 60.0
"""A task is sent again for so long while the server does not answer: it may be starting."""
PAUSE_S: Final = 1.0

_SAMPLING: Final = {"temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_tokens"}
_CARRIED: Final = {"input", "instructions", *_SAMPLING}
_STAMPED: Final = ("_ng_task_index", "_ng_rollout_index", "_ng_rollout_id", "agent_ref", "responses_create_params")
"""Fields that Gym's collector sets, or that are the data row's own."""
_NOT_RUN: Final = ("cancelled", "error", "lost")


class RowRefused(Exception):
    """A data row that no session can be made of: what is wrong, and the mend."""


class BrokenChain(Exception):
    """A result row that is not one contiguous chain. A trainer would refuse it, or train on what was never sampled."""


def task_request(row: Mapping[str, Any], defaults: Mapping[str, Any], *, group: str) -> tuple[TaskRequest, list[str]]:
    """The request for a data row, and the row's fields that a harness has no place for.

    `defaults` are fields of a TaskRequest, and so is the row's field `polar`. The row's own other fields are the task's
    `data`, which an evaluator gets. `group` begins the name of the group of a row's rollouts. Raises RowRefused.
    """
    params = row["responses_create_params"]
    fields = dict(defaults) | dict(row.get(OWN) or {})
    changes = {**(defaults.get("changes") or {}), **(fields.get("changes") or {})}
    instruction, system = _said(params)
    if instruction:
        fields.setdefault("instruction", instruction)
    if system:
        changes.setdefault("extra_instructions", system)
    sampling = {ours: params[theirs] for theirs, ours in _SAMPLING.items() if params.get(theirs) is not None}
    if sampling:
        changes["sampling"] = {**(changes.get("sampling") or {}), **sampling}
    if "scenario" not in fields:
        raise RowRefused(f"no scenario: name one in the agent's configuration, or in the row as {OWN}.scenario")
    own = {name: value for name, value in row.items() if name not in (*_STAMPED, OWN)}
    index = row.get("_ng_task_index")
    fields |= {
        "changes": changes,
        "data": {**own, **(fields.get("data") or {})},
        "num_samples": 1,
        "group_id": f"{group}-{index}" if index is not None else group,
        "metadata": {name: row[name] for name in _STAMPED if name in row and name.startswith("_ng_")},
    }
    try:
        request = TaskRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RowRefused(f"{place}: {first['msg']}") from error
    # An empty list, false and Gym's own defaults ask for nothing.
    asked = {name for name, value in params.items() if value and (name, value) not in _DEFAULTS}
    return request, sorted(asked - _CARRIED)


_DEFAULTS: Final = (("parallel_tool_calls", True), ("tool_choice", "auto"))


def _said(params: Mapping[str, Any]) -> tuple[str, str]:
    """The instruction, empty for the scenario's own, and what is to be added to the harness's system text."""
    given = params.get("input") or []
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    user: list[str] = []
    system = [params["instructions"]] if params.get("instructions") else []
    for message in messages:
        role = message.get("role")
        if role not in ("user", "system", "developer") or message.get("type", "message") != "message":
            what = role or message.get("type")
            raise RowRefused(f"input has an item {what!r}: a harness begins a conversation; send user messages only")
        (user if role == "user" else system).append(_text(message.get("content")))
    return "\n\n".join(user), "\n\n".join(system)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    words = []
    for part in content or []:
        if not isinstance(part.get("text"), str):
            raise RowRefused(f"input has a part {part.get('type')!r}: only text can be an instruction")
        words.append(part["text"])
    return "\n".join(words)


async def rollout(client: AsyncRolloutClient, request: TaskRequest) -> dict[str, Any]:
    """Run the request's one sample to its end; its row, checked to be one contiguous chain.

    A session that did not let the harness run has `_ng_failure_class` beside its mask, by which Gym keeps it apart and
    runs it again on resume. Cancelling this cancels the task. Raises RolloutError, and BrokenChain.
    """
    task = await _submitted(client, request)
    try:
        task = await client.wait(task.task_id)
        result = await _result(client, task)
        [row] = await client.rows(result.session.session_id, "nemo-gym")
    except asyncio.CancelledError:
        await asyncio.shield(client.cancel(task.task_id))
        raise
    made = {name: value for name, value in row.items() if name not in _STAMPED}
    made |= {"group_id": task.group_id, "task_id": task.task_id, "status": result.session.status}
    if result.session.status in _NOT_RUN:
        made["_ng_failure_class"] = f"polar_{result.session.status}"
    one_chain(made)
    return made


def one_chain(row: Mapping[str, Any]) -> None:
    """Raises BrokenChain unless each item with tokens goes on where the one before it ended, a logprob to each token.

    A row that is not masked has at least one generated token.
    """
    name = row["session_id"]
    seen: list[int] = []
    for number, item in enumerate(_with_tokens(row["response"]["output"])):
        prompt, generated = item["prompt_token_ids"], item["generation_token_ids"]
        if prompt[: len(seen)] != seen or len(prompt) <= len(seen):
            raise BrokenChain(f"session {name}: item {number} does not continue the {len(seen)} tokens before it")
        logprobs = item["generation_log_probs"]
        if len(logprobs) != len(generated) or not all(math.isfinite(value) for value in logprobs):
            raise BrokenChain(f"session {name}: item {number} has not one log-probability for each of its tokens")
        seen = [*prompt, *generated]
    if not seen and not row["mask_sample"]:
        raise BrokenChain(f"session {name} is not masked and has no generated token")


def _with_tokens(output: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [item for item in output if item.get("generation_token_ids")]


async def _submitted(client: AsyncRolloutClient, request: TaskRequest) -> Task:
    """Sent until it is answered: the key makes it one task however often that is."""
    key = uuid4().hex
    left = SENT_FOR_S
    while True:
        try:
            return await client.submit(request, idempotency_key=key)
        except Unreachable:
            if left <= 0:
                raise
            left -= PAUSE_S
            await asyncio.sleep(PAUSE_S)


async def _result(client: AsyncRolloutClient, task: Task) -> Result:
    found = [result for result in (await client.results(task.task_id)).results if result.session.counts]
    if not found:
        raise RolloutError(f"task {task.task_id} is {task.status} and has no result: {task.status_reason}")
    return found[0]
