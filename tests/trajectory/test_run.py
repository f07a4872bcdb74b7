"""A folder of sessions: groups, attempts, sums, and what cannot be used."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from polar_mitm.trajectory.builders import build
from polar_mitm.trajectory.files import TrajectoryFileError, read_trajectories, write_trajectories
from polar_mitm.trajectory.ledger import LedgerError
from polar_mitm.trajectory.run import Unusable, build_run
from polar_mitm.trajectory.schema import files, trajectory_schema
from polar_mitm.trajectory.seen import TrajectoryError
from tests.trajectory.sessions import World
from tests.trajectory.template import Template

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas"


def session(out: Path, name: str, reward: float | None = 1.0, **record: object) -> Path:
    world = World(Template(spaced=True), session_id=name, reward=reward, **record)
    talk = world.talk()
    world.answer(talk, "", tool="read", arguments='{"path":"a"}')
    world.answer(talk.tool("text"), f"It says {name}.")
    return world.write(out)


def test_the_samples_of_a_task_are_a_group_and_their_traces_share_the_advantage(tmp_path: Path) -> None:
    for number, reward in enumerate((1.0, 0.0, 0.0)):
        session(tmp_path, f"ses_{number}", reward, sample=number)
    session(tmp_path, "ses_other", task_id="other")
    run = build_run(tmp_path)
    found = {trajectory.session_id: trajectory for trajectory in run}
    assert [(group.group_id, len(group.members)) for group in run.groups] == [("task", 3), ("other", 1)]
    assert [trace.advantage for trace in found["ses_0"].traces] == pytest.approx([2 / 3**0.5] * 2)
    assert [trace.advantage for trace in found["ses_other"].traces] == [None, None]
    assert {trajectory.rollout_id for trajectory in found.values()} == set(found)
    loo = {t.session_id: t.traces[0].advantage for t in build_run(tmp_path, advantages="leave_one_out")}
    assert loo == {"ses_0": 1.0, "ses_1": -0.5, "ses_2": -0.5, "ses_other": None}


def test_harnesses_are_not_compared_with_each_other(tmp_path: Path) -> None:
    for number, harness in enumerate(("pi", "codex", "pi")):
        session(tmp_path, f"ses_{number}", float(number), sample=number // 2, harness=harness)
    run = build_run(tmp_path)
    assert [t.group_id for t in run] == ["task/pi", "task/codex", "task/pi"]
    assert [t.masked for t in run] == [None] * 3
    assert [sorted(group.advantages.values(), key=str) for group in run.groups][1] == [None]


def test_a_session_that_failed_keeps_its_place_masked_and_moves_no_mean(tmp_path: Path) -> None:
    session(tmp_path, "ses_0", 1.0, sample=0)
    session(tmp_path, "ses_1", 0.0, sample=1)
    session(tmp_path, "ses_2", 0.0, sample=2, status="timeout")
    session(tmp_path, "ses_3", None, sample=3, evaluation_error="no test ran")
    session(tmp_path, "ses_4", 1.0, sample=4, poisoned="disk full")
    session(tmp_path, "ses_5", 1.0, sample=5, status="open")
    run = build_run(tmp_path)
    masked = {trajectory.session_id: trajectory.masked for trajectory in run}
    assert list(masked.values()) == [
        None,
        None,
        "timeout",
        "no reward: no test ran",
        "poisoned: disk full",
        "incomplete: it was never closed",
    ]
    [group] = run.groups
    assert len(group.members) == 6 and group.mean == 0.5
    assert run.totals.bins["masked"] == 4 * 20 and sum(run.totals.masked.values()) == 4


def test_of_two_attempts_at_a_sample_the_first_that_is_not_masked_counts(tmp_path: Path) -> None:
    session(tmp_path, "ses_a", 0.0, sample=0, attempt=1, status="error")
    session(tmp_path, "ses_b", 1.0, sample=0, attempt=2)
    session(tmp_path, "ses_c", 0.0, sample=0, attempt=3)
    session(tmp_path, "ses_d", 0.0, sample=1)
    run = build_run(tmp_path)
    assert {t.session_id: t.masked for t in run} == {
        "ses_a": "error",
        "ses_b": None,
        "ses_c": "attempt 2 of this sample counts already",
        "ses_d": None,
    }
    assert run.groups[0].rewards == [1.0, 0.0]


def test_two_runs_into_one_folder_both_count(tmp_path: Path) -> None:
    session(tmp_path, "ses_a", 0.0, sample=0)
    session(tmp_path, "ses_b", 1.0, sample=0)
    run = build_run(tmp_path)
    assert [trajectory.masked for trajectory in run] == [None, None] and run.groups[0].rewards == [0.0, 1.0]


def test_the_runs_ledger_is_the_sum_of_the_sessions(tmp_path: Path) -> None:
    for number in range(3):
        session(tmp_path, f"ses_{number}", sample=number)
    run = build_run(tmp_path)
    trajectories = list(run)
    assert run.totals.sessions == 3 and run.totals.traces == 6
    assert run.totals.sampled == sum(t.ledger.sampled for t in trajectories) == run.totals.bins.total()
    assert run.totals.relations == {"root": 3, "rewritten": 3} and run.totals.causes == {"arguments_rerendered": 3}
    assert list(run) == trajectories and run.totals.sessions == 3


def test_step_and_trace_rewards_stand_where_they_belong(tmp_path: Path) -> None:
    names = ("call_" + "0" * 26, "call_" + "0" * 25 + "1")
    folder = session(tmp_path, "ses_1", step_rewards={names[1]: 0.25}, trace_rewards={names[0]: -1.0})
    first, second = build(folder).traces
    assert (first.reward, second.reward) == (-1.0, 1.0)
    assert [turn.reward for trace in (first, second) for turn in trace.turns] == [None, 0.25]
    unknown = session(tmp_path, "ses_2", step_rewards={"call_x": 1.0})
    with pytest.raises(TrajectoryError, match="call_x"):
        build(unknown)


def test_a_session_that_cannot_be_used_is_named_and_the_others_are_built(tmp_path: Path) -> None:
    session(tmp_path, "ses_good", sample=0)
    damaged = session(tmp_path, "ses_damaged", sample=1) / "calls.jsonl"
    damaged.write_bytes(b"nonsense\n" + damaged.read_bytes())
    with pytest.raises(Exception, match=r"calls\.jsonl, line 1"):
        list(build_run(tmp_path))
    heard: list[tuple[Path, Unusable]] = []
    run = build_run(tmp_path, unusable=lambda folder, error: heard.append((folder, error)))
    assert [t.session_id for t in run] == ["ses_good"]
    assert [folder.name for folder, _ in heard] == ["ses_damaged"]


def test_one_session_in_two_folders_is_refused(tmp_path: Path) -> None:
    session(tmp_path / "a", "ses_1")
    session(tmp_path / "b", "ses_1")
    with pytest.raises(TrajectoryError, match="the same session"):
        build_run(tmp_path)


def test_tokens_that_session_json_counts_and_no_call_has_are_an_error(tmp_path: Path) -> None:
    folder = session(tmp_path, "ses_1")
    lines = (folder / "calls.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "calls.jsonl").write_bytes(lines[0])
    with pytest.raises(LedgerError, match=r"ses_1 does not balance: session\.json counts 20 sampled tokens"):
        build(folder)


def test_trajectories_are_written_and_read_back_the_same(tmp_path: Path) -> None:
    for number in range(2):
        session(tmp_path / "runs", f"ses_{number}", sample=number)
    trajectories = list(build_run(tmp_path / "runs"))
    path = tmp_path / "trajectories.jsonl"
    assert write_trajectories(iter(trajectories), path) == 2
    assert list(read_trajectories(path)) == trajectories
    assert [name.name for name in tmp_path.iterdir() if name.is_file()] == ["trajectories.jsonl"]


def test_half_an_emoji_is_written_and_read_back(tmp_path: Path) -> None:
    world = World(session_id="ses_1")
    world.answer(world.talk(user="cut \ud83d off"), "Yes.")
    world.write(tmp_path / "runs")
    trajectories = list(build_run(tmp_path / "runs"))
    write_trajectories(trajectories, tmp_path / "t.jsonl")
    assert list(read_trajectories(tmp_path / "t.jsonl")) == trajectories


def test_what_is_written_fits_the_published_schema(tmp_path: Path) -> None:
    session(tmp_path / "runs", "ses_1")
    path = tmp_path / "trajectories.jsonl"
    write_trajectories(build_run(tmp_path / "runs"), path)
    Draft202012Validator.check_schema(trajectory_schema())
    [line] = path.read_text().splitlines()
    Draft202012Validator(trajectory_schema()).validate(json.loads(line))
    for name, text in files().items():
        assert (PUBLISHED / name).read_bytes() == text, "run: make schemas"


def test_a_newer_file_is_refused_with_the_mend(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text('{"schema": 99}\n')
    with pytest.raises(TrajectoryFileError, match=r"line 1: it has schema version 99.*newer polar-mitm"):
        list(read_trajectories(path))


def test_writing_that_fails_leaves_no_file(tmp_path: Path) -> None:
    session(tmp_path / "runs", "ses_1")
    damaged = session(tmp_path / "runs", "ses_2") / "calls.jsonl"
    damaged.write_bytes(b"nonsense\n" + damaged.read_bytes())
    with pytest.raises(Exception, match="line 1"):
        write_trajectories(build_run(tmp_path / "runs"), tmp_path / "t.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
