"""A run's folder with what can be in one: forks, a sub-agent, forced tokens, sessions that may not be trained on."""

from pathlib import Path
from typing import Any

from tests.trajectory.sessions import World
from tests.trajectory.template import Template

VOCABULARY = 1024
"""More than the template's ids."""
TASKS = ("fix", "write")
MASKED = {
    "ses_late": "timeout: it took 10 s",
    "ses_lost": "poisoned: disk full",
    "ses_none": "error: no sandbox",
    "ses_open": "no reward: no test ran",
}


def write_run(out: Path) -> Path:
    """Two tasks of three good samples each, and a group's worth of sessions that are masked. Some hold odd text."""
    for task in TASKS:
        for sample, reward in enumerate((1.0, 0.0, 0.5)):
            _good(out, f"ses_{task}_{sample}", task, sample, reward)
    for sample, (name, status) in enumerate(
        {
            "ses_late": {"status": "timeout", "status_reason": "it took 10 s"},
            "ses_lost": {"poisoned": "disk full"},
            "ses_open": {"reward": None, "evaluation_error": "no test ran"},
        }.items(),
        start=3,
    ):
        world = World(session_id=name, task_id="fix", sample=sample, **status)
        talk = world.talk(user="cut \ud83d off")
        world.answer(talk, "", tool="read", arguments='{"path":"a"}')
        world.answer(talk.tool("b"), "Yes.")
        world.write(out)
    nothing: dict[str, Any] = {"status": "error", "status_reason": "no sandbox", "reward": None}
    World(session_id="ses_none", task_id="fix", sample=6, **nothing).write(out)
    return out


def _good(out: Path, name: str, task: str, sample: int, reward: float) -> None:
    """Three turns; sample 1 forks, as its arguments come back re-rendered, and sample 2 calls a sub-agent."""
    rewards = {"tests": reward, f"style-{task}": 0.5}
    world = World(
        Template(spaced=sample == 1),
        session_id=name,
        task_id=task,
        sample=sample,
        reward=reward,
        rewards=rewards,
        harness="pi",
        harness_version="1.2.3",
    )
    talk = world.talk(user=f"Please {task} it.")
    world.answer(talk, "I look.", reasoning="Where is it?", tool="read", arguments='{"path":"a"}', forced=((3, 5),))
    talk.tool("caf\u00e9 \U0001f600 \udc00")
    if sample == 2:
        helper = world.talk(system="You help.", user="Look it up in the file.", agent="helper", kind="subagent")
        world.answer(helper, "It is found.")
    world.answer(talk, "", tool="write", arguments='{"path":"a","text":"b"}')
    world.answer(talk.tool("ok"), f"It is done: {reward}.")
    world.write(out)
