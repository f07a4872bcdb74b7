"""The change of the weights that a pool's engines serve: pause, load, resume; and what of it outlives the process.

serving --pause--> pausing --> paused --load--> updating --> paused --resume--> resuming --> serving

In all but `serving` new calls are held at the gate. A step that fails leaves the phase it was in, says why, and can be
asked for again; nothing is sampled meanwhile. What was not ended when the process stopped is not ended by its next one:
calls are held until somebody says how it goes on.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from polar_mitm.client.policy import PauseMode, PolicyPhase, PolicyState
from polar_mitm.engine.capabilities import EngineNotReady
from polar_mitm.engine.control import MEND, ControlFailed
from polar_mitm.engine.pool.gate import Gate, Hangs
from polar_mitm.engine.pool.member import Member, Weights

logger = logging.getLogger(__name__)


class PolicyFailed(Exception):
    """A step was not done. The message says which engine or call is in the way."""


class PolicyBusy(Exception):
    """Another step is under way, or this one has no place here."""


class Policy:
    def __init__(self, members: Sequence[Member], version: str | None, kept: Path | None) -> None:
        """`version`: of the weights at the start, where no earlier life has changed them and `kept` that."""
        self.members = members
        self.gate = Gate(list(members))
        self.version = version
        self.phase: PolicyPhase = "serving"
        self.since = time.time()
        self.trouble: str | None = None
        self.changes = 0
        """Done by this process."""
        self._kept = kept
        self._known: dict[str, Weights] | None = None
        """What the engines had when it was last written down; None while the weights were never changed."""
        self._step: str | None = None
        self._read()

    @property
    def interrupted(self) -> bool:
        """Whether an earlier life did not end a change."""
        return self.phase != "serving"

    def state(self) -> PolicyState:
        return PolicyState(
            phase=self.phase,
            version=self.version,
            trouble=self.trouble,
            since=self.since,
            held=0 if self.gate.is_open else self.gate.held,
            engines=[member.shown() for member in self.members],
        )

    async def admit(self, member: Member) -> None:
        """An engine that has just been opened, or has come back: calls go there if it has the pool's weights."""
        found = await member.find_weights()
        if self._known is None:
            if self.version is not None and found.version not in (None, self.version):
                member.strange(f"has the weights {found.version}, and not {self.version}")
                return
            member.weights = Weights(found.version or self.version, found.name, found.began)
        elif found.version == self.version or self._known.get(member.url, Weights()).same(found):
            member.weights = Weights(self.version, found.name, found.began)
        else:
            has = f"has the weights {found.version}" if found.version else "was started again"
            member.strange(f"{has}, and may not have those of {self.version}: update the policy, or resume it")
            return
        member.up()

    async def pause(self, mode: PauseMode, limit_s: float, *, to_load: bool = False) -> None:
        """Hold new calls, and see to those that run. `to_load`: only where every engine can load weights then.

        Raises PolicyFailed and PolicyBusy.
        """
        async with self._alone("pausing"):
            if to_load:
                await self._can_load()
            after: PolicyPhase = "updating" if self.phase == "updating" else "paused"
            self._enter("pausing" if after == "paused" else after)
            self.gate.shut()
            try:
                match mode:
                    case "drain":
                        await self.gate.drained(limit_s)
                    case "abort":
                        await self.gate.cut(limit_s)
                    case "keep":
                        await self.gate.cut(limit_s, only_chat=True)
                        await asyncio.gather(*(m.engine.control.pause() for m in self._named(None)))
            except (Hangs, ControlFailed) as error:
                raise self._failed(str(error)) from error
            self._enter(after)

    async def load(
        self, version: str, weights: str | None, limit_s: float, engines: Collection[str] | None = None
    ) -> None:
        """Have engines load weights, or take note of which they have. Raises PolicyFailed and PolicyBusy."""
        async with self._alone("loading weights"):
            if self.phase not in ("paused", "updating"):
                raise PolicyBusy(f"weights are changed in a pause, and calls are let through now ({self.phase})")
            if not (named := self._named(engines)):
                raise self._failed("no engine answers that could load them")
            self._enter("updating")
            done = await asyncio.gather(
                *(self._load(member, version, weights, limit_s) for member in named), return_exceptions=True
            )
            if troubles := [str(error) for error in done if error is not None]:
                raise self._failed("; ".join(troubles))
            self._enter("paused")

    async def resume(self, version: str | None) -> None:
        """Probe the engines and let calls go on. `version`: of the weights that they have now; None: as before.

        An engine that does not answer, or has other weights, is left out. Raises PolicyFailed where that leaves none,
        and PolicyBusy.
        """
        async with self._alone("resuming"):
            was = self.phase
            if was == "serving":
                if version in (None, self.version):
                    return
                raise PolicyBusy(f"calls are let through, with the weights {self.version}: pause first")
            if was == "updating":
                raise PolicyBusy("which weights the engines have is not known: load them again first")
            wanted = version if version is not None else self.version
            self._enter("resuming")
            await asyncio.gather(*(self._probe(member, wanted, told=version is not None) for member in self.members))
            if not any(member.state == "up" for member in self.members):
                self._enter(was)
                troubles = (f"the engine at {member.url} {member.trouble}" for member in self.members)
                raise self._failed("; ".join(troubles))
            if version is not None:
                self.version = version
                self.changes += 1
            if version is not None or self._known is not None:
                self._known = {member.url: member.weights for member in self.members if member.state == "up"}
            self._enter("serving")
            self.gate.open()
            logger.info("polar: calls go on, with the weights %s", self.version or "as they are")

    async def _can_load(self) -> None:
        members = self._named(None)
        offered = await asyncio.gather(*(member.engine.control.offered() for member in members))
        if cannot := [member.url for member, can in zip(members, offered, strict=True) if not can]:
            raise PolicyFailed(f"no weights can be loaded by the engine at {', '.join(cannot)}: {MEND}")

    def _named(self, engines: Collection[str] | None) -> list[Member]:
        """Of those that answer."""
        return [m for m in self.members if (engines is None or m.url in engines) and m.state != "down"]

    async def _load(self, member: Member, version: str, weights: str | None, limit_s: float) -> None:
        control = member.engine.control
        if await control.offered():
            # Whatever samples meanwhile, and whoever finds the engine so, is told that nobody knows its weights.
            await control.rename(f"{version} (loading)")
            if weights is not None:
                await control.load(weights, limit_s)
            await control.reset_prefix_cache()
            await control.rename(version)
        elif weights is not None:
            await control.load(weights, limit_s)

    async def _probe(self, member: Member, wanted: str | None, *, told: bool) -> None:
        if member.state == "down":
            return
        control = member.engine.control
        model = member.engine.capabilities.model
        try:
            offered = await control.offered()
            if offered and await control.paused():
                await control.resume()
            found = await member.engine.probe()
        except (ControlFailed, EngineNotReady) as error:
            member.down(f"did not go on: {error}")
            return
        if found.model != model:
            member.strange(f"serves {found.model} now, and not {model}")
            return
        if not told:
            await self.admit(member)
            return
        weights = await member.find_weights()
        if weights.name not in (None, wanted):
            member.strange(f"has the weights {weights.name}, and not {wanted}")
            return
        member.salted = not offered
        member.weights = Weights(wanted, weights.name, weights.began)
        member.up()

    @asynccontextmanager
    async def _alone(self, step: str) -> AsyncIterator[None]:
        if self._step is not None:
            raise PolicyBusy(f"{self._step} is under way")
        self._step = step
        try:
            yield
        finally:
            self._step = None

    def _enter(self, phase: PolicyPhase) -> None:
        """Write it down first: the next life must not sample where this one would not."""
        if phase != self.phase:
            self.since = time.time()
        self.phase, self.trouble = phase, None
        if self._kept is None:
            return
        known = self._known or {member.url: member.weights for member in self.members if member.state == "up"}
        text = json.dumps(
            {
                "phase": phase,
                "version": self.version,
                "changed": self._known is not None,
                "engines": {url: asdict(weights) for url, weights in known.items()},
            },
            indent=1,
        )
        new = self._kept.with_name(f".{self._kept.name}")
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._kept)
        except OSError as error:
            raise self._failed(f"{self._kept} cannot be written: {error.strerror or error}") from error

    def _failed(self, why: str) -> PolicyFailed:
        self.trouble = why
        logger.warning("polar: the policy is %s: %s", self.phase, why)
        return PolicyFailed(why)

    def _read(self) -> None:
        """What an earlier life left. OSError and ValueError where it cannot be read: the weights would not be known."""
        if self._kept is None or not self._kept.exists():
            return
        kept = json.loads(self._kept.read_text(encoding="utf-8"))
        if kept["changed"] or kept["phase"] != "serving":
            self.version = kept["version"]
        if kept["changed"]:
            self._known = {url: Weights(**weights) for url, weights in kept["engines"].items()}
        if kept["phase"] != "serving":
            self.gate.shut()
            self.phase = "updating" if kept["phase"] == "updating" else "paused"
            self.trouble = "a change of the weights was not ended when polar stopped: make it again, or resume"
