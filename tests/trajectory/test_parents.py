"""Which call a request continues, where tokens alone would say another."""

from pathlib import Path

from polar_mitm.trajectory.builders import build
from polar_mitm.trajectory.trace import Trajectory
from tests.trajectory.sessions import READ, WRITE, World
from tests.trajectory.template import Template


def bins(trajectory: Trajectory) -> dict[str, str]:
    return {entry.call_id[-2:]: entry.bin for entry in trajectory.ledger.entries}


def test_a_lost_answer_that_the_next_prompt_begins_with_is_no_parent(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "all is", end=None, delivery="aborted")
    world.answer(talk, "all is well", spelled=True)
    world.answer(talk.user("More."), "Good.")
    trajectory = build(world.write(tmp_path))
    assert trajectory.relations == {"root": 1, "retried": 1, "rewritten": 1}
    assert bins(trajectory) == {"00": "superseded", "01": "trained", "02": "trained"}


def test_a_lost_answer_with_the_same_text_is_no_parent(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "Yes.", delivery="aborted")
    world.answer(talk, "Yes.", spelled=True)
    world.answer(talk.user("More."), "Good.")
    assert bins(build(world.write(tmp_path))) == {"00": "superseded", "01": "trained", "02": "trained"}


def test_an_equal_sample_that_was_lost_is_no_parent_for_one_without_ids(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "Yes.", delivery="partial")
    world.answer(talk, "Yes.", prompt_ids=[])
    world.answer(talk.user("More."), "Good.")
    trajectory = build(world.write(tmp_path))
    assert bins(trajectory) == {"00": "undelivered", "01": "invalid", "02": "trained"}
    assert trajectory.traces[-1].prompt_ids == world.calls[2].prompt_ids


def test_the_id_of_a_tool_call_tells_which_of_two_equal_answers_came_back(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    other = talk.copy()
    world.answer(talk, "", tool="read")
    world.answer(other, "", tool="read")
    world.answer(talk.tool("text"), "One.")
    trajectory = build(world.write(tmp_path))
    assert bins(trajectory) == {"00": "trained", "01": "superseded", "02": "trained"}


def test_a_history_whose_beginning_changes_every_time_is_followed_by_its_tool_calls(tmp_path: Path) -> None:
    world = World()
    talk = world.talk(system="It is 0 o'clock.\nBe brief.")
    for hour in range(1, 4):
        world.answer(talk, "", tool="read")
        talk.tool("text").messages[0]["content"] = f"It is {hour} o'clock.\nBe brief."
    trajectory = build(world.write(tmp_path))
    assert trajectory.relations == {"root": 1, "diverges": 2}
    assert [found.cause for found in trajectory.breaks] == ["rotating_line"] * 2
    assert [found.parent_call_id[-2:] for found in trajectory.breaks] == ["00", "01"]


def test_the_same_by_the_texts_of_answers_that_are_alike(tmp_path: Path) -> None:
    world = World()
    talk = world.talk(system="It is 0 o'clock.\nBe brief.")
    for hour in range(1, 5):
        world.answer(talk, "Yes.")
        talk.user("More.").messages[0]["content"] = f"It is {hour} o'clock.\nBe brief."
    trajectory = build(world.write(tmp_path))
    assert trajectory.relations == {"root": 1, "diverges": 3}
    assert [found.parent_call_id[-2:] for found in trajectory.breaks] == ["00", "01", "02"]


def test_tools_that_change_and_change_back_join_the_conversation_they_left(tmp_path: Path) -> None:
    """The second call's prompt begins otherwise; the third's begins with all of the first's."""
    world, talk = World(), World().talk()
    world.answer(talk, "One.")
    talk.tools = [READ, WRITE]
    world.answer(talk.user("More."), "Two.")
    talk.tools = [READ]
    world.answer(talk.user("More."), "Three.")
    trajectory = build(world.write(tmp_path))
    assert [turn.call_id[-2:] for turn in trajectory.traces[0].turns] == ["00", "02"]
    assert trajectory.relations == {"root": 1, "diverges": 1, "extends": 1}
    assert bins(trajectory) == {"00": "trained", "01": "trained", "02": "trained"}


def test_parallel_sub_agents_without_ids_are_told_apart_by_their_tokens(tmp_path: Path) -> None:
    world = World(Template(spaced=True))
    talk = world.talk()
    caller = world.answer(talk, "", tool="task", arguments='{"a":"count the blue files","b":"count the red files"}')
    subs = [world.talk("You help.", f"Please count the {colour} files.", kind="subagent") for colour in ("blue", "red")]
    for _ in range(3):
        for sub in subs:
            world.answer(sub, "So.")
            sub.user("More.")
    trajectory = build(world.write(tmp_path))
    assert [(trace.lineage.kind, len(trace.turns)) for trace in trajectory.traces] == [
        ("main", 1),
        ("subagent", 3),
        ("subagent", 3),
    ]
    assert {trace.lineage.of_call for trace in trajectory.traces[1:]} == {caller.identity.call_id}


def test_a_sub_agent_that_nobody_waits_for_is_its_callers(tmp_path: Path) -> None:
    """Its first user message is not its task, and its caller goes on at once."""
    world, talk = World(), World().talk()
    caller = world.answer(talk, "", tool="spawn", arguments='{"message":"count the blue files"}')
    world.answer(talk.tool("spawned"), "", tool="shell", arguments='{"cmd":"sleep 3"}')
    sub = world.talk("You help.", "This is where you are.", agent="sub", kind="subagent").user("count the blue files")
    world.answer(sub, "Three.")
    trace = build(world.write(tmp_path)).traces[-1]
    assert (trace.lineage.kind, trace.lineage.of_call) == ("subagent", caller.identity.call_id)


def test_who_called_a_sub_agent_is_not_guessed(tmp_path: Path) -> None:
    world = World()
    world.answer(world.talk(), "", tool="task", arguments='{"prompt":"count the blue files"}')
    world.answer(world.talk("You help.", "Something else.", agent="sub", kind="subagent"), "So.")
    [_, sub] = build(world.write(tmp_path)).traces
    assert (sub.lineage.kind, sub.lineage.of_call, sub.lineage.of_trace) == ("subagent", None, None)


def test_a_conversation_may_begin_with_the_same_words_after_each_compaction(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.")
    for number in range(3):
        world.answer(talk.copy(kind="compaction").user("Sum up."), "All of it is done by now.")
        talk = world.talk(user="Before: All of it is done by now.")
        world.answer(talk, "", tool="read", arguments=f'{{"n":{number}}}')
    trajectory = build(world.write(tmp_path))
    assert trajectory.relations == {"root": 1, "side_request": 3, "compacted": 3}
    assert [name for name in bins(trajectory).values() if name != "side_request"] == ["trained"] * 4
    of = [trace.lineage.of_trace for trace in trajectory.traces if trace.lineage.kind == "compaction"]
    assert [name and name[-1] for name in of] == ["0", "2", "4"]


def test_the_call_after_a_compaction_can_be_retried(tmp_path: Path) -> None:
    for name, summary in (("ses_quoted", "All of it is done by now."), ("ses_not", "Brief.")):
        world, talk = World(session_id=name), World().talk()
        world.answer(talk, "One.")
        world.answer(talk.copy(kind="compaction").user("Sum up."), summary)
        after = world.talk(user=f"Before: {summary}")
        world.answer(after, "Lost.", delivery="aborted")
        world.answer(after, "Kept.")
        trajectory = build(world.write(tmp_path))
        assert trajectory.relations == {"root": 1, "side_request": 1, "compacted": 1, "retried": 1}
        assert list(bins(trajectory).values()) == ["trained", "side_request", "superseded", "trained"]
        assert [trace.lineage.kind for trace in trajectory.traces] == ["main", "side", "compaction", "compaction"]


def test_an_answer_that_a_compaction_sums_up_did_arrive(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk.copy(), "Lost.", append=False)
    world.answer(talk, "Kept.")
    world.answer(talk.copy(kind="compaction").user("Sum up."), "All of it is done by now.")
    assert bins(build(world.write(tmp_path))) == {"00": "superseded", "01": "trained", "02": "side_request"}


def test_a_summary_that_is_not_quoted_is_found_by_its_place(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    world.answer(talk, "One.")
    compaction = world.answer(talk.copy(kind="compaction").user("Sum up."), "Brief.")
    world.answer(world.talk(user="Where were we?"), "Two.")
    world.answer(world.talk(user="A new matter."), "Three.")
    trajectory = build(world.write(tmp_path))
    assert trajectory.relations == {"root": 2, "side_request": 1, "compacted": 1}
    assert trajectory.traces[2].lineage.of_call == compaction.identity.call_id
