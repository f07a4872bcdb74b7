"""Which step of a script a request gets."""

from polar_mitm.chat import Assistant, ChatRequest, Message, System, Text, Tool, ToolCall, ToolResult, User
from polar_mitm.proxy.scripting import Progress, Step, count, next_step

INNER = Step("bash", {"n": "inner"})
DEEPEST = Step("bash", {"n": "deepest"})
NESTED = Step("agent", {}, "Count the deepest.", (DEEPEST,))
DELEGATE = Step("agent", {}, "Count the files.", (INNER, NESTED))
SCRIPT = (Step("bash", {"n": 0}), DELEGATE, Step("bash", {"n": 2}), Step("bash", {"n": 3}))
TOOLS = (Tool("bash"), Tool("agent"))


def chat(made: int, *told: str, tools: tuple[Tool, ...] = TOOLS) -> ChatRequest:
    messages: list[Message] = [System("You are."), *(User((Text(text),)) for text in told or ("Do it.",))]
    for number in range(made):
        messages.append(Assistant(tool_calls=(ToolCall(f"c{number}", "bash", "{}"),)))
        messages.append(ToolResult(f"c{number}", (Text("done"),)))
    return ChatRequest(tuple(messages), tools)


def test_the_history_says_which_step_is_next_and_a_retry_gets_the_same() -> None:
    progress = Progress()
    given = [next_step(SCRIPT, progress, "turn", chat(made)) for made in (0, 0, 1, 2, 2, 3, 4, 9)]
    assert given == [SCRIPT[0], SCRIPT[0], SCRIPT[1], SCRIPT[2], SCRIPT[2], SCRIPT[3], None, None]


def test_a_compaction_takes_turns_out_of_the_history_and_none_out_of_the_script() -> None:
    progress = Progress()
    for made in range(2):
        assert next_step(SCRIPT, progress, "turn", chat(made)) == SCRIPT[made]
        progress.done("turn", made + 1)
    assert next_step(SCRIPT, progress, "compaction", chat(2)) is None
    progress.done("compaction", 2)
    for _ in range(2):  # the second is a retry
        assert next_step(SCRIPT, progress, "turn", chat(0)) == SCRIPT[2]
    progress.done("turn", 1)
    assert next_step(SCRIPT, progress, "turn", chat(1)) == SCRIPT[3]
    progress.done("turn", 2)
    progress.done("compaction", 2)
    assert next_step(SCRIPT, progress, "turn", chat(1)) is None


def test_a_turn_that_found_no_room_is_asked_for_again_after_the_compaction() -> None:
    progress = Progress()
    assert next_step(SCRIPT, progress, "turn", chat(0)) == SCRIPT[0]
    progress.done("turn", 1)
    assert next_step(SCRIPT, progress, "turn", chat(1)) == SCRIPT[1]
    progress.done("compaction", 1)  # and the turn was not answered
    assert next_step(SCRIPT, progress, "turn", chat(0)) == SCRIPT[1]


def test_a_compaction_that_took_nothing_out_changes_nothing() -> None:
    progress = Progress()
    progress.done("turn", 1)
    progress.done("compaction", 1)
    assert next_step(SCRIPT, progress, "turn", chat(1)) == SCRIPT[1]


def test_a_sub_agent_takes_the_steps_of_the_call_that_started_it() -> None:
    progress = Progress()
    told = "You are a part. Count the files."
    assert next_step(SCRIPT, progress, "subagent", chat(0, told)) == INNER
    assert next_step(SCRIPT, progress, "subagent", chat(1, "A list of agents.", told)) == NESTED
    assert next_step(SCRIPT, progress, "subagent", chat(2, told)) is None
    assert next_step(SCRIPT, progress, "subagent", chat(0, told, "Count the deepest.")) == DEEPEST
    assert next_step(SCRIPT, progress, "subagent", chat(0, "Another task.")) is None
    assert next_step(SCRIPT, progress, "turn", chat(0)) == SCRIPT[0], "and takes none of the main agent's"


def test_a_request_without_the_steps_tool_and_side_requests_take_none() -> None:
    assert next_step(SCRIPT, Progress(), "turn", chat(0, tools=(Tool("agent"),))) is None
    assert next_step(SCRIPT, Progress(), "title", chat(0)) is None


def test_all_steps_are_counted() -> None:
    assert count(SCRIPT) == 7
