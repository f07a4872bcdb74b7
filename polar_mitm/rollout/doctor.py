"""Looks at this machine: what a run would need, whether it is here, and the mend where it is not."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from polar_mitm.engine.client import Capabilities, Engine, EngineNotReady
from polar_mitm.engine.install import is_installed
from polar_mitm.engine.local import find
from polar_mitm.engine.models import MODELS, is_built
from polar_mitm.harnesses import HARNESSES
from polar_mitm.harnesses.base import HarnessMissing
from polar_mitm.proxy.master import ProxyFailed
from polar_mitm.rollout.proof import proofs
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.tasks.swebench import package


@dataclass(slots=True, frozen=True)
class Finding:
    part: str
    ok: bool
    says: str
    needed: bool = False
    """Whether the demo needs it and can't install it by itself."""
    possible: bool = True
    """False for what cannot be anywhere: nothing is missing here."""


def examine(engine_url: str | None = None) -> list[Finding]:
    """Everything that `polar demo` and `polar run-task` use, with the engine at this URL where one is given.

    Takes a second or two: it starts a sandbox, and has engines that run sample a token.
    """
    return list(_findings(engine_url))


def _findings(engine_url: str | None) -> Iterator[Finding]:
    for tool in ("git", "npm"):
        path = shutil.which(tool)
        yield Finding(tool, path is not None, path or f"not on PATH: install {tool}", needed=True)
    for name, sandbox in SANDBOXES.items():
        problems = sandbox.check()
        yield Finding(f"sandbox {name}", not problems, "; ".join(problems) or "works", needed=name == "bwrap")
    for name, harness in HARNESSES.items():
        try:
            yield Finding(f"harness {name}", True, harness.find().version or "a program of your own")
        except HarnessMissing as missing:
            yield Finding(f"harness {name}", False, str(missing))
    lacks = package.problems()
    yield Finding("evaluator swebench", not lacks, "; ".join(lacks) or package.VERSION)
    yield Finding("engine", is_installed(), "installed" if is_installed() else "not installed: polar model install")
    asked = []
    for model in MODELS:
        running = find(model)
        says = f"served at {running.url}" if running else "built" if is_built(model) else "not built"
        mend = "" if is_built(model) else f": polar model install {model}"
        yield Finding(f"model {model}", is_built(model), says + mend)
        if running:
            asked.append(running.url)
            yield _tokens(running.url)
    if engine_url and engine_url.rstrip("/").replace("//localhost", "//127.0.0.1") not in asked:
        yield _tokens(engine_url)


def _tokens(url: str) -> Finding:
    """How prompts go to this engine."""
    try:
        found = asyncio.run(_asked(url))
    except EngineNotReady as error:
        return Finding("tokens", False, str(error))
    if found.exact:
        return Finding("tokens", True, f"exact: prompts go to {found.url} as token ids")
    return Finding("tokens", False, f"chat: prompts go to {found.url} as messages, for it {found.not_exact}")


async def _asked(url: str) -> Capabilities:
    async with Engine(url) as engine:
        return engine.capabilities


async def prove_ways() -> list[Finding]:
    """A finding for each sandbox and intercept mode, from a real request. Takes a few seconds."""
    try:
        return [
            Finding(f"{proof.sandbox}, {proof.intercept}", proof.ok, proof.says, possible=proof.possible)
            async for proof in proofs()
        ]
    except ProxyFailed as error:
        return [Finding("the proxy", False, str(error), needed=True)]
