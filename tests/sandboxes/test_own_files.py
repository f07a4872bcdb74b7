"""Runs in the image's own files: nothing of the host takes their place."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from polar_mitm.sandboxes import SANDBOXES, SandboxError
from polar_mitm.sandboxes.base import Own, Ready
from polar_mitm.sandboxes.images import build, extract, said
from polar_mitm.sandboxes.limits import Limits
from tests.needs import need
from tests.sandboxes.conftest import Run, make_run

DOCKERFILE = """\
FROM {base}
RUN useradd --create-home worker && mkdir -p /app /data /opt/tools && chown worker /app && echo old > /data/old \\
    && printf '#!/bin/sh\\nexec "$@"\\n' > /entry.sh \\
    && printf '#!/bin/sh\\necho from-image\\n' > /opt/tools/tool && chmod +x /entry.sh /opt/tools/tool
RUN sed -i '2i echo service > /run/service; export FROM_ENTRY=yes' /entry.sh
ENV PATH=/opt/tools:$PATH OF_IMAGE=1
VOLUME ["/data", "/fresh"]
WORKDIR /app
COPY --chown=worker given.txt .
ENTRYPOINT ["/entry.sh"]
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need(SANDBOXES["container"].check())
    folder = tmp_path_factory.mktemp("image")
    base = make_run("container", tmp_path_factory.mktemp("run"), folder).image
    (folder / "Dockerfile").write_text(DOCKERFILE.format(base=base))
    (folder / "given.txt").write_text("given\n")
    tag = f"localhost/polar-test-own:{os.getpid()}"
    build(folder, folder / "Dockerfile", tag)
    yield tag
    said("rmi", "--force", tag)


@pytest.fixture
def run(tmp_path: Path, ca: Path, image: str) -> Iterator[Run]:
    run = make_run("container", tmp_path, ca)
    run.image, run.workdir, run.own = image, PurePosixPath("/app"), Own("root")
    run.env = {"HOME": "/root"}
    yield run
    run.sandbox.sweep(run.marker)


pytestmark = pytest.mark.live


async def test_the_images_files_owners_path_variables_and_entrypoint_are_there(run: Run) -> None:
    ended = await run("pwd; stat -c %U given.txt; tool; echo $OF_IMAGE $FROM_ENTRY; cat /run/service; echo x > new.txt")
    assert ended.code == 0, run.stderr
    assert run.stdout == "/app\nworker\nfrom-image\n1 yes\nservice\n"
    assert list(run.workspace.iterdir()) == []


async def test_it_runs_as_the_user_it_is_given_in_that_users_home(run: Run) -> None:
    run.own = Own("worker")
    run.env["HOME"] = "/home/worker"
    (run.home / ".tool").mkdir()
    (run.home / ".tool" / "config").write_text("mine\n")
    (run.home / ".tool" / "config").chmod(0o600)
    (run.home / ".rc").write_text("rc\n")
    script = "id -un; cat ~/.tool/config; echo more > ~/.tool/state; echo seen >> ~/.rc; stat -c %U ~/.tool/config"
    ended = await run(script)
    assert ended.code == 0, run.stderr
    assert run.stdout == "worker\nmine\nworker\n"
    assert (run.home / ".tool" / "state").read_text() == "more\n"
    assert (run.home / ".rc").read_text() == "rc\nseen\n"


async def test_what_is_kept_holds_workspace_and_home(run: Run, tmp_path: Path, ca: Path) -> None:
    run.keep = True
    ended = await run("echo one > /app/one; echo two > ~/two; mkdir -p /srv/x; echo three > /srv/x/three")
    (tmp_path / "second").mkdir()
    second = make_run("container", tmp_path / "second", ca)
    second.image, second.own, second.env = ended.image, Own("root"), run.env
    await second("cat /app/one ~/two /srv/x/three")
    assert second.stdout == "one\ntwo\nthree\n"


async def test_what_is_kept_holds_the_volumes_of_the_image(run: Run, tmp_path: Path, ca: Path) -> None:
    run.keep = True
    ended = await run("cat /data/old; echo new > /data/new; rm /data/old; echo fresh > /fresh/file")
    assert (ended.code, run.stdout) == (0, "old\n"), run.stderr
    (tmp_path / "second").mkdir()
    second = make_run("container", tmp_path / "second", ca)
    second.image, second.own, second.env = ended.image, Own("root"), run.env
    await second("ls /data; cat /data/new /fresh/file")
    assert second.stdout == "new\nnew\nfresh\n", second.stderr
    assert ended.image is not None
    assert extract(ended.image, PurePosixPath("/data/new"), tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "new\n"


async def test_an_engine_that_would_lose_a_volume_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.keep = True
    monkeypatch.setattr("polar_mitm.sandboxes.images._is_podman", lambda: False)
    with pytest.raises(SandboxError, match=r"docker keeps nothing of /data, /fresh, a VOLUME of .*: take podman"):
        await run("true")


async def test_folders_and_files_that_are_mounted_take_what_is_written(run: Run) -> None:
    logs, one = run.folder / "logs", run.folder / "one.txt"
    logs.mkdir()
    logs.chmod(0o777)
    one.write_text("old\n")
    run.own = Own("worker", mounts={PurePosixPath("/logs"): logs, PurePosixPath("/srv/one.txt"): one})
    run.env["HOME"] = "/home/worker"
    await run("echo log > /logs/log.txt; cat /srv/one.txt")
    assert (logs / "log.txt").read_text() == "log\n"
    assert run.stdout == "old\n"


async def test_the_program_starts_when_the_command_before_it_succeeds(run: Run) -> None:
    run.own = Own("root", ready=Ready("test -e /tmp/up || { sleep 0.1; touch /tmp/up; exit 1; }", interval_s=0.1))
    assert (await run("cat /tmp/up && echo started")).code == 0
    assert run.stdout == "started\n"


async def test_it_does_not_when_that_fails_too_often(run: Run) -> None:
    run.own = Own("root", ready=Ready("echo x >> /tmp/tries; exit 7", interval_s=0.1, retries=2))
    with pytest.raises(SandboxError, match="the task's healthcheck failed 2 times in a row: echo x >> /tmp/tries"):
        await run("echo started")
    assert run.stdout == ""
    run.own = Own("root", ready=Ready("exit 7", interval_s=0.1, retries=2, required=False))
    await run("echo started")
    assert run.stdout == "started\n"


async def test_failures_in_the_start_period_do_not_count_and_a_try_that_hangs_is_ended(run: Run) -> None:
    slow = "test -e /tmp/up || { touch /tmp/up; sleep 60; }"
    run.own = Own("root", ready=Ready(slow, timeout_s=1, start_period_s=30, start_interval_s=0.1, retries=1))
    assert (await run("echo started")).code == 0
    assert run.stdout == "started\n"


async def test_there_is_no_network_unless_it_is_asked_for(run: Run) -> None:
    interfaces = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '"
    await run(interfaces)
    assert run.stdout == "lo "
    run.own = Own("root", network=True)
    await run(interfaces)
    assert run.stdout != "lo "


async def test_the_disk_limit_is_for_what_the_container_writes(run: Run) -> None:
    run.limits = Limits(disk_mb=5)
    ended = await run("head -c 20000000 /dev/zero > /srv/big; sleep 20")
    assert ended.over_limit is not None
    assert "the limit is 5 MiB" in ended.over_limit


@pytest.mark.parametrize("sandbox", ["host", "bwrap"])
async def test_no_other_sandbox_can(tmp_path: Path, ca: Path, sandbox: str) -> None:
    run = make_run(sandbox, tmp_path, ca)
    run.own = Own("root")
    with pytest.raises(SandboxError, match="needs the container sandbox"):
        await run("exit 0")
