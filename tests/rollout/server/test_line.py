"""Who goes next, and where."""

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.rollout.server.line import LOOK, Line
from polar_mitm.rollout.store.entries import Lane, Queued


def queued(order: int, *, group: str = "g", priority: int = 0, lane: Lane | None = None, sample: int = 0) -> Queued:
    name = f"s{order}.{sample}"
    return Queued(order, name, f"t{order}", group, sample, 1, priority, lane or Lane(), None)


def on(*gateways: str) -> Callable[[Lane], Sequence[str]]:
    return lambda _: gateways


def test_by_priority_and_then_in_the_order_of_tasks() -> None:
    line = Line()
    for entry in (queued(3), queued(1), queued(2, priority=1), queued(0, priority=-1)):
        line.add(entry)
    picks = line.take({"a": 3}, on("a"))
    assert [entry.order for entry, _ in picks] == [2, 1, 3]
    assert len(line) == 1


def test_who_left_is_passed_over_and_who_came_back_is_not_taken_twice() -> None:
    line = Line()
    for n in range(5):
        line.add(queued(n))
    line.remove("s1.0")
    line.add(queued(2))
    (first, _), (second, _) = line.take({"a": 2}, on("a"))
    line.add(first)
    picks = line.take({"a": 9}, on("a"))
    assert (first.order, second.order) == (0, 2)
    assert [entry.order for entry, _ in picks] == [0, 3, 4]
    assert len(line) == 0


def test_what_nobody_can_run_holds_up_nobody() -> None:
    line = Line()
    strange = Lane(harness="x")
    for n in range(3):
        line.add(queued(n, lane=strange, priority=9))
        line.add(queued(n + 10))
    picks = line.take({"a": 9}, lambda lane: [] if lane == strange else ["a"])
    assert [entry.order for entry, _ in picks] == [10, 11, 12]
    assert len(line) == 3


def test_a_group_stays_where_it_is_and_no_place_stays_empty() -> None:
    line = Line()
    for n in range(4):
        line.add(queued(n, group="one" if n % 2 == 0 else "two"))
    homes = {entry.group_id: gateway for entry, gateway in line.take({"a": 1, "b": 1}, on("a", "b"))}
    assert set(homes) == {"one", "two"} or len(homes) == 1
    for n in range(4, 12):
        line.add(queued(n, group="one"))
    picks = line.take({"a": 20, "b": 0}, on("a", "b"))
    assert len(picks) == 10
    assert len(line) == 0


def test_the_first_in_line_is_passed_over_only_so_often() -> None:
    line = Line()
    line.add(queued(0, group="home"))
    line.take({"a": 1}, on("a"))
    line.add(queued(1, group="stranger"))
    for n in range(2, 200):
        line.add(queued(n, group="home"))
    taken = [line.take({"a": 1}, on("a"))[0][0].order for _ in range(LOOK + 1)]
    assert taken[0] == 2
    assert 1 in taken


def test_who_waited_for_too_long_is_taken_out() -> None:
    line = Line()
    late = Queued(1, "late", "t", "g", 0, 1, 0, Lane(), 5.0)
    line.add(late)
    line.add(queued(2))
    assert line.expired(4.9) == []
    assert line.expired(5.0) == [late]
    assert [entry.order for entry, _ in line.take({"a": 9}, on("a"))] == [2]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(-2, 2), st.sampled_from("ab"), st.sampled_from("xy")), max_size=60
    ),
    st.lists(st.dictionaries(st.sampled_from("ABC"), st.integers(0, 4)), max_size=12),
)
def test_each_is_taken_once_at_most_and_never_more_than_there_are_places(
    entries: list[tuple[int, int, str, str]], rounds: list[dict[str, int]]
) -> None:
    line = Line()
    for number, (order, priority, group, lane) in enumerate(entries):
        line.add(queued(order, group=group, priority=priority, lane=Lane(harness=lane), sample=number))
    fits = {"x": ["A", "B"], "y": ["B", "C"]}
    seen: list[str] = []
    for places in rounds:
        free = dict(places)
        before = len(line)
        picks = line.take(free, lambda lane: fits[lane.harness or ""])
        for entry, gateway in picks:
            assert gateway in fits[entry.lane.harness or ""]
        assert all(value >= 0 for value in free.values())
        assert before - len(line) == len(picks) == sum(places.values()) - sum(free.values())
        seen += [entry.session_id for entry, _ in picks]
    assert len(set(seen)) == len(seen)
    rest = line.take({"A": 999, "B": 999, "C": 999}, lambda lane: fits[lane.harness or ""])
    assert len(seen) + len(rest) == len(entries)
    if all(lane == "x" for *_, lane in entries):
        priorities = [entry.priority for entry, _ in rest]
        assert priorities == sorted(priorities, reverse=True)
