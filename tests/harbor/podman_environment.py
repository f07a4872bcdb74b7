"""harbor's `--env podman_environment:PodmanEnvironment`: a podman container of this machine, held open as Docker's is.

It runs in harbor's own Python, not in polar's: everything that decides a reward is harbor's code. It builds and starts
as harbor's Docker environment does, executes by `bash -c`, and copies by `podman cp`.
"""

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

RUN_ARGUMENTS = json.loads(os.environ["PODMAN_RUN_ARGUMENTS"])
"""With which a container starts on this machine, as polar has found out."""


class PodmanEnvironment(BaseEnvironment):
    @staticmethod
    def type() -> str:
        return "podman-here"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        if not self.task_env_config.docker_image and not (self.environment_dir / "Dockerfile").exists():
            raise FileNotFoundError(f"no Dockerfile in {self.environment_dir}")

    @property
    def _name(self) -> str:
        return f"harbor-{hashlib.sha256(self.session_id.encode()).hexdigest()[:16]}"

    async def start(self, force_build: bool) -> None:
        image = self.task_env_config.docker_image
        if not image:
            image = f"localhost/harbor-test:{self.environment_id}"
            await self._podman(
                "build", "--isolation", "chroot", "-q", "-t", image, str(self.environment_dir), check=True
            )
        limits = []
        if self.task_env_config.cpus is not None:
            limits += ["--cpus", str(self.task_env_config.cpus)]
        if self.task_env_config.memory_mb is not None:
            limits += ["--memory", f"{self.task_env_config.memory_mb}m"]
        network = ["--network", "none"] if self._network_disabled else []
        variables = [part for name, value in self._startup_env().items() for part in ("--env", f"{name}={value}")]
        await self._podman(
            "run", "--detach", "--name", self._name, *RUN_ARGUMENTS, *network, *limits, *variables, image,
            "sh", "-c", "sleep infinity", check=True,
        )  # fmt: skip
        if targets := self._mount_targets(writable_only=True):
            await self.ensure_dirs(targets)
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        await self._podman("rm", "--force", "--time", "0", "--volumes", self._name)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._podman("cp", str(source_path), f"{self._name}:{target_path}", check=True)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._podman("exec", "--user", "root", self._name, "mkdir", "-p", target_dir, check=True)
        await self._podman("cp", f"{source_dir}/.", f"{self._name}:{target_dir}", check=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._podman("cp", f"{self._name}:{source_path}", str(target_path), check=True)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await asyncio.to_thread(Path(target_dir).mkdir, parents=True, exist_ok=True)
        await self._podman("cp", f"{self._name}:{source_dir}/.", str(target_dir), check=True)

    async def service_exec(self, command: str, *, service: str | None = None, **options: Any) -> ExecResult:
        assert service in (None, "main"), service
        return await self.exec(command, **options)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        arguments = ["exec"]
        user = self._resolve_user(user)
        if user is not None:
            arguments += ["--user", str(user)]
        if folder := cwd or self.task_env_config.workdir:
            arguments += ["--workdir", folder]
        for name, value in (self._merge_env(env) or {}).items():
            arguments += ["--env", f"{name}={value}"]
        return await self._podman(*arguments, self._name, "bash", "-c", command, timeout_s=timeout_sec)

    async def _podman(self, *arguments: str, check: bool = False, timeout_s: float | None = None) -> ExecResult:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "podman", *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        try:
            async with asyncio.timeout(timeout_s):
                stdout, stderr = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return ExecResult(stdout="", stderr="took too long", return_code=124)
        if check and process.returncode != 0:
            raise RuntimeError(f"podman {' '.join(arguments)}: {stderr.decode(errors='replace')}")
        return ExecResult(
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
            return_code=process.returncode or 0,
        )
