"""How long each provider takes to read a request and to write a reply, and that the time grows as the size does.

Reading starts at the body's bytes and ends at the Chat request; writing starts at the Chat reply and ends at bytes.
The engine, the record and the network are not in it. Times are the processor's, so that other work on the machine does
not count.

python -m bench.providers
"""

import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from timeit import Timer

import orjson

from bench.report import machine, markdown, show, write_section
from bench.shapes import SHAPES, Shape, reply
from polar_mitm.chat import ChatReply, Json
from polar_mitm.json_text import dumps, loads
from polar_mitm.providers import Ask

SIZES = {"10 kB": 10_000, "100 kB": 100_000, "1 MB": 1_000_000}
COUNTS = (10, 100, 1000, 10_000)
REPEATS = 5
ENOUGH_S = 0.02
"""The shortest stretch that is timed as one: long against the clock's steps and a task switch."""
LINEAR = 3.0
"""How many times as long one item may take among the most as among fewer. Memory that no longer fits into the
processor's caches makes it up to twice as long; a quadratic reader takes ten times as long for ten times as many."""

type Work = Callable[[], object]


@dataclass
class Line:
    """Microseconds of one kind of work, by size or count."""

    provider: str
    work: str
    micros: list[float] = field(default_factory=list)
    growth: float = 0.0
    culprit: str = ""
    """The function with the most time of its own, where the growth is not linear."""


def seconds(work: Work) -> float:
    """Of processor time, for one call: the shortest of several repeats."""
    timer = Timer(work, timer=time.process_time)
    once = timer.timeit(1)
    if once > 10 * ENOUGH_S:
        return min(once, timer.timeit(1))
    number = max(1, int(ENOUGH_S / once))
    return min(timer.repeat(REPEATS, number)) / number


def parsing(shape: Shape, body: Json) -> Work:
    content, request = orjson.dumps(body), shape.request
    route = shape.provider.recognise(request)
    assert route
    return lambda: shape.provider.parse(request, route, loads(content))


def asking(shape: Shape) -> Ask:
    asked = parsing(shape, shape.conversation(0, 0))()
    assert isinstance(asked, Ask)
    return asked


def rendering(shape: Shape, answer: ChatReply) -> dict[str, Work]:
    ask, provider = asking(shape), shape.provider
    return {
        "render": lambda: dumps(provider.render(ask, answer)),
        "stream": lambda: b"".join(provider.stream(ask, answer)),
    }


def request_of(shape: Shape, size: int) -> Json:
    """A conversation whose body has this many bytes, within a few percent: longer ones have more rounds."""
    small = len(orjson.dumps(shape.conversation(0, 0)))
    one_round = len(orjson.dumps(shape.conversation(1, 400))) - small
    rounds = max(1, round((size - small) / one_round))
    return shape.conversation(rounds, 400)


def by_size() -> list[Line]:
    lines: list[Line] = []
    for shape in SHAPES:
        found: dict[str, Line] = {}
        for size in SIZES.values():
            works = {"parse": parsing(shape, request_of(shape, size)), **rendering(shape, reply(size, calls=4))}
            for name, work in works.items():
                line = found.setdefault(name, Line(shape.provider.NAME, name))
                line.micros.append(seconds(work) * 1e6)
                line.growth = line.micros[-1] / line.micros[0] * min(SIZES.values()) / size
        lines += found.values()
    return lines


def counted(shape: Shape) -> Mapping[str, Callable[[int], Work]]:
    """What there may be many of, and the work on so many."""

    def calls(number: int) -> list[tuple[str, str]]:
        return [(f"call_{index}", "x") for index in range(number)]

    def of(build: Callable[[int], Json]) -> Callable[[int], Work]:
        return lambda number: parsing(shape, build(number))

    return {
        "rounds": of(lambda number: shape.conversation(number, 8)),
        "tools": of(lambda number: shape.conversation(1, 8, tools=number)),
        "calls of one turn": of(lambda number: shape.asked(*shape.calls(calls(number)))),
        "parts of one message": of(lambda number: shape.asked(*shape.user(["x"] * number))),
        "user messages in a row": of(lambda number: shape.asked(*shape.user(["x"]) * number)),
        "answers in a row": of(lambda number: shape.asked(*shape.answer("x") * number, *shape.user(["x"]))),
        "empty answers between": of(lambda number: shape.asked(*[*shape.answer(""), *shape.user(["x"])] * number)),
        "calls of a reply": lambda number: rendering(shape, reply(8 * number, calls=number))["render"],
        "calls of a stream": lambda number: rendering(shape, reply(8 * number, calls=number))["stream"],
    }


def by_count() -> list[Line]:
    lines: list[Line] = []
    for shape in SHAPES:
        for name, build in counted(shape).items():
            line = Line(shape.provider.NAME, name)
            for number in COUNTS:
                work = build(number)
                line.micros.append(seconds(work) * 1e6)
            each = [micros / number for micros, number in zip(line.micros, COUNTS, strict=True)]
            line.growth = each[-1] / min(each[:-1])
            if line.growth > LINEAR:
                line.culprit = busiest(build(COUNTS[-1]))
            lines.append(line)
    return lines


def busiest(work: Work) -> str:
    """The function of polar's in which most of the time goes, builtins that it calls included."""
    profile = cProfile.Profile()
    profile.runcall(work)
    entries = pstats.Stats(profile).get_stats_profile().func_profiles
    ours = {name: entry for name, entry in entries.items() if "polar_mitm" in entry.file_name}
    return max(ours, key=lambda name: ours[name].tottime)


def main() -> int:
    sizes, counts = by_size(), by_count()
    size_columns = ["provider", "work", *SIZES, "growth"]
    size_rows = [
        [line.provider, line.work, *(f"{micros:,.0f}" for micros in line.micros), f"{line.growth:.2f}"]
        for line in sizes
    ]
    count_columns = ["provider", "number of", *(f"{number:,}" for number in COUNTS), "growth"]
    count_rows = [
        [line.provider, line.work, *(f"{micros:,.0f}" for micros in line.micros), f"{line.growth:.2f}"]
        for line in counts
    ]
    show("Microseconds a call, by size", size_columns, size_rows)
    show("Microseconds a call, by count", count_columns, count_rows)
    steep = [line for line in (*sizes, *counts) if line.growth > LINEAR]
    for line in steep:
        print(f"not linear: {line.provider}, {line.work}: {line.growth:.0f} times; most time in {line.culprit}")
    write_section(
        "Providers",
        f"""
`make bench-providers`, on {machine()}: processor microseconds a call, the best of {REPEATS}.
`parse` is from the body's bytes to the Chat request, `render` and `stream` from the Chat reply to the bytes of the
answer; engine, record and network are not in it. `growth` is the time per byte at 1 MB against that at 10 kB: 1 or
less is linear.

{markdown(size_columns, size_rows)}
The same where there is much of one thing: microseconds for requests, or replies, with so many. `growth` is the time
for each among {COUNTS[-1]:,} against the best among fewer; the command fails where it is over {LINEAR:g}.

{markdown(count_columns, count_rows)}""",
    )
    return 1 if steep else 0


if __name__ == "__main__":
    sys.exit(main())
