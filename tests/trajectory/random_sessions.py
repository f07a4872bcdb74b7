"""Random sessions for property tests: conversations that interleave, retry, go back, compact, and come back changed."""

from collections.abc import Callable

from hypothesis import strategies as st

from tests.trajectory.sessions import READ, WRITE, Talk, World
from tests.trajectory.template import END, OTHER_END, Template

WORDS = ("all", "is well", "see", "the file", "7", "done.", "so", "{}")
ARGUMENTS = ('{"path":"a"}', '{"path": "b", "n": 1}', "{}")

texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)


@st.composite
def worlds(draw: st.DrawFn, max_steps: int = 12) -> World:
    template = Template(spaced=draw(st.booleans()), forgetful=draw(st.booleans()))
    world = World(template, status=draw(st.sampled_from(["completed"] * 5 + ["timeout"])))
    play = _Play(world, draw)
    for _ in range(draw(st.integers(0, max_steps))):
        play.step()
    return world


@st.composite
def faithful_worlds(draw: st.DrawFn) -> tuple[World, int]:
    """A session in which every answer comes back as it was sampled, and how many conversations it has."""
    world = World(Template())
    talks = [world.talk()]
    for number in range(draw(st.integers(0, 3))):
        agent = draw(st.sampled_from([None, f"agent{number}"]))
        talks.append(world.talk(f"You are helper {number}.", f"Do part {number}.", agent=agent, kind="subagent"))
    asked = set()
    for _ in range(draw(st.integers(1, 12))):
        talk = draw(st.sampled_from(talks))
        asked.add(id(talk))
        _go_on(talk)
        end = draw(st.sampled_from([END, END, None]))
        tool = draw(st.sampled_from([None, "read"])) if end is not None else None
        world.answer(talk, draw(texts) or "yes", tool=tool, arguments=draw(st.sampled_from(ARGUMENTS)), end=end)
    return world, len(asked)


def _go_on(talk: Talk) -> None:
    """Say what comes after the last answer, if that is the last message."""
    last = talk.messages[-1]
    if last["role"] == "assistant":
        if last.get("tool_calls"):
            talk.tool("the text of it")
        else:
            talk.user("Go on.")


class _Play:
    def __init__(self, world: World, draw: st.DrawFn) -> None:
        self.world = world
        self.draw = draw
        self.talks: list[Talk] = [world.talk()]
        turns = [self.turn] * 5
        self.actions: list[Callable[[Talk], object]] = [
            *turns,
            self.retry,
            self.twins,
            self.prefix,
            self.rewind,
            self.subagent,
            self.fork,
            self.compact,
            self.title,
            self.edit,
            self.break_down,
            self.repeat,
        ]

    def step(self) -> None:
        talk = self.draw(st.sampled_from(self.talks))
        _go_on(talk)
        self.draw(st.sampled_from(self.actions))(talk)

    def turn(self, talk: Talk, **changes: object) -> None:
        draw = self.draw
        text = draw(texts)
        end = draw(st.sampled_from([END, END, END, OTHER_END, None]))
        forced = draw(st.sampled_from([(), (), ((0, 1),)]))
        options: dict[str, object] = {
            "tool": draw(st.sampled_from([None, "read", "write"])) if end is not None else None,
            "arguments": draw(st.sampled_from(ARGUMENTS)),
            "reasoning": draw(st.sampled_from(["", "", "hm"])),
            "spelled": draw(st.sampled_from([False, False, True])),
            "delivery": draw(st.sampled_from(["delivered"] * 6 + ["partial", "aborted"])),
            "seconds": draw(st.sampled_from([0.5, 0.5, 3.5])),
            "end": end,
            **changes,
        }
        if options["spelled"] and (options["tool"] or options["reasoning"] or not text):
            options["spelled"] = False
        if forced and (text or options["tool"] or options["reasoning"] or end is not None):
            options["forced"] = forced
        if not text and not options["tool"] and not options["reasoning"] and end is None:
            options["end"] = END
        self.world.answer(talk, text, **options)  # type: ignore[arg-type]  # drawn by name

    def retry(self, talk: Talk) -> None:
        self.turn(talk, append=False, delivery=self.draw(st.sampled_from(["aborted", "partial", "delivered"])))
        self.turn(talk)

    def prefix(self, talk: Talk) -> None:
        """A lost answer that the one that arrives begins with, as it comes back at least."""
        tool = self.draw(st.sampled_from([None, "read"]))
        self.world.answer(talk, "all is", end=None, append=False, delivery="aborted")
        self.world.answer(talk, "all is well", tool=tool, spelled=tool is None)
        _go_on(talk)
        self.turn(talk)

    def twins(self, talk: Talk) -> None:
        """Two equal answers to one prompt, and a call that continues one of them."""
        delivery = self.draw(st.sampled_from(["delivered", "aborted"]))
        self.world.answer(talk, "Yes.", append=False, delivery=delivery)
        self.world.answer(talk, "Yes.")
        talk.user("Go on.")
        self.turn(talk)

    def rewind(self, talk: Talk) -> None:
        asked = [n for n, message in enumerate(talk.messages) if n and message["role"] in ("user", "tool")]
        back = talk.copy(self.draw(st.sampled_from(asked)) + 1)
        if self.draw(st.booleans()):
            back.user("Otherwise.")
        self.talks.append(back)
        self.turn(back)

    def subagent(self, talk: Talk) -> None:
        agent = self.draw(st.sampled_from([None, "a", "b"]))
        task = self.draw(st.sampled_from(["Count the files.", "Read it all."]))
        sub = self.world.talk("You help.", task, agent=agent, kind="subagent")
        self.talks.append(sub)
        self.turn(sub)

    def fork(self, talk: Talk) -> None:
        """A sub-agent that begins with its caller's history."""
        sub = talk.copy(agent="c", kind="subagent").user("You are a helper now.")
        self.talks.append(sub)
        self.turn(sub)

    def compact(self, talk: Talk) -> None:
        summing = talk.copy(kind="compaction").user("Sum up.")
        self.turn(summing, delivery="delivered")
        said = summing.messages[-1].get("content", "")
        talk.messages[1:] = [{"role": "user", "content": f"Before: {said} Now go on."}]
        self.turn(talk)

    def title(self, talk: Talk) -> None:
        self.turn(self.world.talk("Give a title.", "Look into it.", tools=[], kind="title"))

    def edit(self, talk: Talk) -> None:
        match self.draw(st.sampled_from(["system", "tools", "text", "thinking", "drop", "cut"])):
            case "system":
                talk.messages[0]["content"] = f"Be brief. It is {len(self.world.calls)} o'clock."
            case "tools":
                talk.tools = [READ, WRITE] if len(talk.tools) == 1 else [READ]
            case "text":
                talk.messages[-1]["content"] = "something else"
            case "thinking":
                for message in talk.messages:
                    message.pop("reasoning", None)
            case "drop":
                talk.messages[:] = [m for m in talk.messages if m["role"] != "assistant" or m.get("tool_calls")]
            case "cut":
                del talk.messages[2:-1]
        self.turn(talk)

    def break_down(self, talk: Talk) -> None:
        match self.draw(st.sampled_from(["logprobs", "no prompt", "no answer", "error", "no ids", "negative"])):
            case "logprobs":
                self.turn(talk, logprobs=[])
            case "no prompt":
                self.turn(talk, prompt_ids=[])
            case "no ids":
                self.turn(talk, response_ids=[], logprobs=[])
            case "negative":
                self.turn(talk, response_ids=[-5, 7], logprobs=[-1.0, -1.0])
            case "no answer":
                self.world.call(f"call_{len(self.world.calls):026x}", talk, None, failure="the engine is away")
            case "error":
                self.turn(talk, failure="the engine gave up this request", finish="abort")

    def repeat(self, talk: Talk) -> None:
        self.turn(talk, append=False, delivery="aborted")
        self.world.repeat(talk, self.world.calls[-1], delivery=self.draw(st.sampled_from(["delivered", "aborted"])))
