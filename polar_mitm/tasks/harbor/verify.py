"""The tests of a Harbor task: they run in a fresh container of what the agent left, or of an image of their own.

The tests come into a container only here. No process of the agent's is there, and what lay in the places of rewards and
tests is gone.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from polar_mitm.sandboxes import Exit, RunSpec, Sandbox, images
from polar_mitm.sandboxes.base import Own
from polar_mitm.sandboxes.scratch import prefix
from polar_mitm.tasks.harbor import artifacts, inputs, reward, variables
from polar_mitm.tasks.harbor.config import Collect
from polar_mitm.tasks.harbor.folder import TEST, ImageSource
from polar_mitm.tasks.harbor.place import LOG_FOLDERS, LOGS, HarborPlace, image_of, limits_of, ready_of, workdir_of

TESTS: Final = PurePosixPath("/tests")
OUTPUT: Final = "test-stdout.txt"

# As harbor: by bash, which also runs a script without a first line; only an image without bash takes sh.
_SCRIPT: Final = f"""
command="({TESTS / TEST}) > {LOGS / "verifier" / OUTPUT} 2>&1"
command -v bash >/dev/null && exec bash -c "$command"
exec sh -c "$command"
"""
_RUN: Final = ("/bin/sh", "-c", _SCRIPT)


@dataclass(slots=True, frozen=True)
class Verified:
    ended: Exit
    output: Path
    """What the tests printed; may be missing."""


async def verify(place: HarborPlace, kept: str, session_id: str, sandbox: Sandbox) -> Verified:
    """Run the tests to their end; the rewards lie in the place's logs then.

    `kept` is the image of what the agent left. Raises SandboxError, OSError and ArtifactTooLarge.
    """
    task = place.setting.task
    with tempfile.TemporaryDirectory(prefix=prefix(f"{session_id}.evaluator")) as scratch:
        runner = _Runner(place, session_id, sandbox, Path(scratch))
        kept = await runner.collect(kept, task.config.verifier.collect)
        folder = place.logs.parent / "artifacts"
        found = await asyncio.to_thread(artifacts.collect, task.config.artifacts, kept, place.workdir, folder)
        await asyncio.to_thread(reward.remove, place.logs / "verifier")
        (place.logs / "verifier" / OUTPUT).unlink(missing_ok=True)
        own = task.verifier_image
        ended = await (runner.shared(kept) if own is None else runner.separate(own, found))
        return Verified(ended, place.logs / "verifier" / OUTPUT)


@dataclass(slots=True)
class _Runner:
    place: HarborPlace
    session_id: str
    sandbox: Sandbox
    scratch: Path

    async def collect(self, image: str, hooks: list[Collect]) -> str:
        """Run the task's hooks, one after the other, in what the agent left; what is left then. One that fails changes
        nothing for the next."""
        for number, hook in enumerate(hooks, 1):
            own = replace(self.place.own, user=await self._user(self.place.image, hook.user))
            argv = ["/bin/sh", "-c", hook.command]
            spec = await self._spec(argv, self.place.image, own, f"collect{number}", hook.timeout_sec)
            spec.image, spec.keep = image, True
            image = (await self.sandbox.run(spec)).image or image
        return image

    async def shared(self, kept: str) -> Exit:
        """In what the agent left."""
        config, image = self.place.setting.task.config, self.place.image
        own = Own(
            user=await self._user(image, config.verifier.user),
            mounts={**_logs(self.place, *LOG_FOLDERS), TESTS: await asyncio.to_thread(self._tests, image)},
            ready=ready_of(config.environment, required=False),
            network=self.place.setting.network_of_tests,
        )
        spec = await self._spec(_RUN, image, own, "evaluator", config.verifier.timeout_sec)
        spec.image = kept
        spec.env |= self._verifier_env()
        return await self.sandbox.run(spec)

    async def separate(self, source: ImageSource, found: dict[PurePosixPath, Path]) -> Exit:
        """In an image of their own, with nothing of the agent's but what the task names."""
        config = self.place.setting.task.config
        image = await asyncio.to_thread(image_of, source)
        mounts = {**_logs(self.place, "verifier", "artifacts"), **found}
        if not source.has_tests:
            mounts[TESTS] = await asyncio.to_thread(self._tests, image)
        own = Own(
            user=await self._user(image, config.verifier.user),
            mounts=mounts,
            ready=ready_of(source.environment, required=False),
            network=self.place.setting.network_of_tests,
        )
        spec = await self._spec(_RUN, image, own, "evaluator", config.verifier.timeout_sec)
        spec.workdir = await asyncio.to_thread(workdir_of, source.environment, image)
        spec.limits = limits_of(source.environment)
        home = {"HOME": spec.env["HOME"]}
        spec.env = variables.resolved(source.environment.env, self.place.setting.host_env) | home | self._verifier_env()
        return await self.sandbox.run(spec)

    async def _spec(self, argv: Sequence[str], image: str, own: Own, what: str, timeout_s: float) -> RunSpec:
        folder = self.scratch / what
        (folder / "home").mkdir(parents=True)
        home = await asyncio.to_thread(images.home_of, image, own.user)
        return RunSpec(
            argv=list(argv),
            env={"HOME": str(home)} | self.place.env,
            workspace=folder,
            home=folder / "home",
            stdout=folder / "stdout",
            stderr=folder / "stderr",
            timeout_s=timeout_s,
            marker=f"{self.session_id}.{what}",
            limits=limits_of(self.place.setting.task.config.environment),
            workdir=self.place.workdir,
            image=image,
            own=own,
        )

    async def _user(self, image: str, wanted: str | int | None) -> str:
        return str(wanted) if wanted is not None else await asyncio.to_thread(images.user, image)

    def _verifier_env(self) -> dict[str, str]:
        return variables.resolved(self.place.setting.task.config.verifier.env, self.place.setting.host_env)

    def _tests(self, image: str) -> Path:
        """The task's tests over what its image has in their place; nothing that the agent put there."""
        folder = self.scratch / "tests"
        images.extract(image, TESTS, folder)
        inputs.copy(self.place.setting.task.tests, folder)
        (folder / TEST).chmod(0o755)
        return folder


def _logs(place: HarborPlace, *names: str) -> dict[PurePosixPath, Path]:
    return {LOGS / name: place.logs / name for name in names}
