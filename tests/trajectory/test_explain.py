"""Each cause of a break, made by a harness or a template that does just that."""

from pathlib import Path

from polar_mitm.capture.record import Built
from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.trace import Break
from tests.trajectory.sessions import READ, WRITE, Talk, World
from tests.trajectory.template import Template

SYSTEM = "You are a program.\nIt is Monday.\nYou can read.\nYou can write.\nBe brief."


def begun(template: Template | None = None, *, tool: bool = False, **options: object) -> tuple[World, Talk]:
    """A session of one answered call."""
    world = World(template)
    talk = world.talk(system=SYSTEM)
    world.answer(talk, "" if tool else "One.", tool="read" if tool else None, **options)  # type: ignore[arg-type]
    return world, talk.tool("text") if tool else talk.user("More.")


def broken(world: World, talk: Talk, out: Path) -> Break:
    """The break of one more call."""
    world.answer(talk, "Two.")
    trajectory = build(world.write(out), Options(decode=world.template.decode))
    [found] = trajectory.breaks
    return found


def test_arguments_in_another_text(tmp_path: Path) -> None:
    world, talk = begun(tool=True, arguments='{"path":"a"}')
    talk.messages[-2]["tool_calls"][0]["function"]["arguments"] = '{"path": "a"}'
    found = broken(world, talk, tmp_path)
    assert (found.cause, found.why) == (
        "arguments_rerendered",
        "the arguments of read are the same JSON in another text",
    )
    assert found.parent_text and found.parent_text.endswith('read{"path":"a"}<6><20>')
    assert found.prompt_text and 'read{"path": "a"}<6><20><4>text' in found.prompt_text


def test_arguments_that_the_template_renders_otherwise(tmp_path: Path) -> None:
    world, talk = begun(Template(spaced=True), tool=True, arguments='{"path":"a"}')
    found = broken(world, talk, tmp_path)
    assert found.cause == "arguments_rerendered" and "came back as they were" in found.why


def test_arguments_with_other_values(tmp_path: Path) -> None:
    world, talk = begun(tool=True, arguments='{"path":"a"}')
    talk.messages[-2]["tool_calls"][0]["function"]["arguments"] = '{"path":"a","limit":10}'
    assert broken(world, talk, tmp_path).why == "the arguments of read came back with other values"


def test_thinking_that_the_harness_left_out(tmp_path: Path) -> None:
    world, talk = begun(reasoning="hm")
    del talk.messages[-2]["reasoning"]
    found = broken(world, talk, tmp_path)
    assert (found.cause, found.why) == ("reasoning_stripped", "the thinking of the answer was left out")


def test_thinking_that_the_template_leaves_out(tmp_path: Path) -> None:
    world, talk = begun(Template(forgetful=True), reasoning="hm")
    assert broken(world, talk, tmp_path).cause == "reasoning_stripped"


def test_thinking_of_an_earlier_turn_that_the_template_leaves_out(tmp_path: Path) -> None:
    world, talk = begun(Template(forgetful=True), tool=True, reasoning="hm")
    world.answer(talk, "Read.")
    found = broken(world, talk.user("More."), tmp_path)
    assert found.cause == "reasoning_stripped" and "earlier turns" in found.why


def test_a_tool_that_was_added(tmp_path: Path) -> None:
    world, talk = begun()
    talk.tools = [READ, WRITE]
    found = broken(world, talk, tmp_path)
    assert (found.cause, found.why) == ("tools_changed", "the list of tools changed: 1 added (write)")


def test_tools_in_another_order(tmp_path: Path) -> None:
    world = World()
    talk = world.talk(tools=[READ, WRITE])
    world.answer(talk, "One.")
    talk.tools = [WRITE, READ]
    assert broken(world, talk.user("More."), tmp_path).why == "the order of the tools changed"


def test_a_line_of_the_system_text_that_rotates(tmp_path: Path) -> None:
    world, talk = begun()
    talk.messages[0]["content"] = SYSTEM.replace("Monday", "Tuesday")
    found = broken(world, talk, tmp_path)
    assert found.cause == "rotating_line" and "'It is Monday.' became 'It is Tuesday.'" in found.why
    assert found.position < len(world.calls[0].prompt_ids)


def test_another_system_text(tmp_path: Path) -> None:
    world, talk = begun()
    talk.messages[0]["content"] = "Be someone else."
    assert broken(world, talk, tmp_path).cause == "system_changed"


def test_a_system_message_that_moved(tmp_path: Path) -> None:
    world, talk = begun()
    talk.messages.insert(1, talk.messages.pop(0))
    found = broken(world, talk, tmp_path)
    assert found.cause == "system_changed" and "moved" in found.why


def test_an_image_that_is_gone(tmp_path: Path) -> None:
    world = World()
    talk = world.talk()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    talk.messages[1]["content"] = [{"type": "text", "text": "Look."}, image]
    world.answer(talk, "One.")
    talk.user("More.").messages[1]["content"] = "Look."
    found = broken(world, talk, tmp_path)
    assert found.cause == "image" and "1 before, 0 now" in found.why


def test_messages_that_were_taken_out(tmp_path: Path) -> None:
    world, talk = begun(tool=True)
    world.answer(talk, "", tool="read")
    talk.tool("more text")
    del talk.messages[2:4]
    found = broken(world, talk, tmp_path)
    assert found.cause == "truncation" and "taken out" in found.why


def test_a_tool_result_that_was_cleared(tmp_path: Path) -> None:
    world, talk = begun(tool=True)
    talk.messages[-1]["content"] = "a long text " * 20
    world.answer(talk, "", tool="read")
    talk.tool("more text").messages[3]["content"] = "[cleared]"
    found = broken(world, talk, tmp_path)
    assert (found.cause, found.why) == ("truncation", "message 3 (tool) was cut from 240 to 9 characters")


def test_an_answer_with_another_text(tmp_path: Path) -> None:
    world, talk = begun()
    talk.messages[-2]["content"] = "One, or two."
    found = broken(world, talk, tmp_path)
    assert found.cause == "message_edited" and "from character 3 on the answer was '.' and is ', or two.'" in found.why


def test_an_answer_that_was_left_out(tmp_path: Path) -> None:
    world, talk = begun()
    del talk.messages[-2]
    found = broken(world, talk, tmp_path)
    assert (found.cause, found.why) == ("message_edited", "the answer was left out of the history")


def test_the_same_text_in_other_tokens(tmp_path: Path) -> None:
    world, talk = begun(spelled=True)
    found = broken(world, talk, tmp_path)
    assert found.cause == "retokenised"
    assert found.parent_text and found.prompt_text and found.prompt_text.startswith(found.parent_text)


def test_without_a_decoder_the_ids_are_there_and_no_text(tmp_path: Path) -> None:
    world, talk = begun(spelled=True)
    world.answer(talk, "Two.")
    [found] = build(world.write(tmp_path)).breaks
    assert found.parent_around and found.parent_text is None and found.prompt_text is None


def test_what_the_proxy_knew_of_a_prompt_is_the_last_resort(tmp_path: Path) -> None:
    world, talk = begun()
    call = world.answer(talk, "Two.", prompt_ids=[1, 2, 3])
    call.built = Built(broken="window", why="the history did not fit the window")
    [found] = build(world.write(tmp_path)).breaks
    assert (found.cause, found.why) == ("unknown", "the history did not fit the window")
