"""What is done to the processes and to the network between them, in an order that a seed fixes."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.chaos.processes import Program
from bench.chaos.relay import Relay

FULL = "gateway's disk full"
KINDS = (
    "kill gateway",
    "kill server",
    "pause gateway",
    "pause server",
    "cut connections",
    "no network",
    FULL,
    "server's disk full",
)
LONGEST_S = 4.0
"""Of a fault that lasts. A gateway that is silent for two seconds is given up on here."""


@dataclass(slots=True, frozen=True)
class Fault:
    """One that is over. Times are Unix seconds."""

    kind: str
    target: str
    """The process it was done to; that behind the stretch of network; `all`."""
    began: float
    ended: float


@dataclass(slots=True)
class Faults:
    server: Program
    gateways: list[Program]
    relays: list[Relay]
    """The server's, then the gateways' in their order."""
    dice: random.Random
    done: list[Fault] = field(default_factory=list)
    cut_off: int = 0
    """Connections."""
    restart_database: Callable[[], None] | None = None
    """Ends it as a crash would, and starts it again; None where it is the server's own file."""

    @property
    def counts(self) -> Counter[str]:
        return Counter(fault.kind for fault in self.done)

    async def one(self) -> None:
        """One fault, to its end: what was ended runs again, and what was kept from something has it back."""
        kind = self.dice.choice(KINDS if self.restart_database is None else [*KINDS, "restart database"])
        gateway, relay = self.dice.choice(self.gateways), self.dice.choice(self.relays)
        lasts = self.dice.uniform(0.1, LONGEST_S)
        target = gateway if "gateway" in kind else self.server
        began, struck = time.time(), target.name
        match kind.split():
            case ["kill", _]:
                target.kill()
                await asyncio.sleep(lasts / 4)
                target.start()
                await target.up()
            case ["pause", _]:
                target.stop()
                try:
                    await asyncio.sleep(lasts)
                finally:
                    target.go_on()
            case ["restart", _]:
                assert self.restart_database
                struck = "database"
                await asyncio.to_thread(self.restart_database)
            case ["cut", _]:
                struck = "all"
                for each in self.relays:
                    self.cut_off += each.cut()
            case ["no", _]:
                struck = [self.server, *self.gateways][self.relays.index(relay)].name
                relay.dark = True
                self.cut_off += relay.cut()
                try:
                    await asyncio.sleep(lasts)
                finally:
                    relay.dark = False
            case [_, "disk", _]:
                target.fill_disk()
                try:
                    await asyncio.sleep(lasts)
                finally:
                    target.free_disk()
        self.done.append(Fault(kind, struck, began, time.time()))

    def mend(self) -> int:
        """Begin what has ended by itself meanwhile; how many those were."""
        ended = [program for program in (self.server, *self.gateways) if not program.alive]
        for program in ended:
            program.start()
        return len(ended)
