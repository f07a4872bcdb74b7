"""The sessions in line, and who of them goes where when gateways have places.

By priority, then by the order of tasks. Samples of one group go to one gateway where they can, since their prompts
begin alike; no place stays empty for that.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from polar_mitm.rollout.store.entries import Lane, Queued

LOOK = 32
"""Sessions at the head of the line among which one of a gateway's own group is looked for. So often, too, the first may
be passed over for them."""

MOST_HOMES = 100_000


@dataclass(slots=True, order=True)
class _Entry:
    place: tuple[int, int, int]
    queued: Queued = field(compare=False)
    passed: int = field(default=0, compare=False)


class Line:
    def __init__(self) -> None:
        self._lanes: dict[Lane, list[_Entry]] = {}
        self._waiting: dict[str, Queued] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._homes: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def add(self, queued: Queued) -> None:
        if queued.session_id in self._waiting:
            return
        self._waiting[queued.session_id] = queued
        heapq.heappush(self._lanes.setdefault(queued.lane, []), _Entry(queued.place, queued))
        if queued.deadline is not None:
            heapq.heappush(self._deadlines, (queued.deadline, queued.session_id))

    def remove(self, session_id: str) -> None:
        """Its entry goes when it comes to the head."""
        self._waiting.pop(session_id, None)

    def expired(self, now: float) -> list[Queued]:
        """Take out those who have waited for too long."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, session_id = heapq.heappop(self._deadlines)
            if queued := self._waiting.pop(session_id, None):
                late.append(queued)
        return late

    def take(self, places: dict[str, int], fitting: Callable[[Lane], Sequence[str]]) -> list[tuple[Queued, str]]:
        """Take out who goes now: (session, gateway). `places` by gateway, counted down; `fitting`: who can run it."""
        picks: list[tuple[Queued, str]] = []
        windows = [window for lane in list(self._lanes) if (window := self._window(lane))]
        heads = [(window[0].place, number) for number, window in enumerate(windows)]
        heapq.heapify(heads)
        while heads:
            _, number = heapq.heappop(heads)
            window = windows[number]
            lane = window[0].queued.lane
            gateways = [name for name in fitting(lane) if places.get(name, 0) > 0]
            if not gateways:
                continue
            entry, gateway = self._choose(window, gateways, places)
            window.remove(entry)
            del self._waiting[entry.queued.session_id]
            places[gateway] -= 1
            picks.append((entry.queued, gateway))
            if not window:
                window += self._window(lane)
            if window:
                heapq.heappush(heads, (window[0].place, number))
        for entry in (entry for window in windows for entry in window):
            heapq.heappush(self._lanes.setdefault(entry.queued.lane, []), entry)
        return picks

    def _window(self, lane: Lane) -> list[_Entry]:
        """The head of a lane, taken from its heap; without those who left."""
        heap = self._lanes.get(lane, [])
        window: list[_Entry] = []
        while heap and len(window) < LOOK:
            entry = heapq.heappop(heap)
            if self._waiting.get(entry.queued.session_id) is entry.queued:
                window.append(entry)
        if not heap:
            self._lanes.pop(lane, None)
        return window

    def _choose(self, window: list[_Entry], gateways: Iterable[str], places: dict[str, int]) -> tuple[_Entry, str]:
        head = window[0]
        free = set(gateways)
        if head.passed < LOOK:
            for entry in window:
                if entry.place[0] != head.place[0]:
                    break
                home = self._homes.get(entry.queued.group_id)
                if home in free:
                    if entry is not head:
                        head.passed += 1
                    self._homes.move_to_end(entry.queued.group_id)
                    return entry, home
        gateway = max(gateways, key=lambda name: places[name])
        group = head.queued.group_id
        if self._homes.get(group) not in places:  # it has none, or one that takes nothing now
            self._homes[group] = gateway
            self._homes.move_to_end(group)
            if len(self._homes) > MOST_HOMES:
                self._homes.popitem(last=False)
        return head, gateway
