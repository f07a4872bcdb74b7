"""Each harness for real, in each sandbox and intercept mode, against a provider with two canned turns."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from polar_mitm.harnesses import HARNESSES, Access, HarnessMissing
from polar_mitm.sandboxes import SANDBOXES, RunSpec, UnixBridge
from tests.harnesses.fake_provider import ANSWER, COMMAND, FakeProvider, serving
from tests.needs import need
from tests.ports import free_port, wait_for_port

pytestmark = pytest.mark.live

TOKEN = "token-of-this-run"


@dataclass
class Mitm:
    port: int
    ca: Path
    upstream: Path
    """File with the loopback port that all requests go to."""


@pytest.fixture(scope="module")
def mitm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitm]:
    """A real mitmdump that sends every request to a port of this machine."""
    folder = tmp_path_factory.mktemp("mitm")
    port = free_port()
    upstream = folder / "port"
    mitmdump, addon = Path(sys.executable).with_name("mitmdump"), Path(__file__).with_name("redirect_addon.py")
    command = [str(mitmdump), "-q", "-s", str(addon)]
    options = (
        "listen_host=127.0.0.1",
        f"listen_port={port}",
        f"confdir={folder}",
        "connection_strategy=lazy",
        "upstream_cert=false",
    )
    for option in options:
        command += ["--set", option]
    with subprocess.Popen(command, env=os.environ | {"FAKE_PROVIDER_PORT_FILE": str(upstream)}) as process:
        try:
            wait_for_port(port, seconds=60)  # a start on a loaded machine took over 20 s
            yield Mitm(port, folder / "mitmproxy-ca-cert.pem", upstream)
        finally:
            process.terminate()


@pytest.mark.parametrize("mode", ["base-url", "proxy"])
@pytest.mark.parametrize("sandbox_name", ["host", "bwrap"])
@pytest.mark.parametrize("harness_name", list(HARNESSES))
async def test_the_harness_runs_its_shell_tool_and_gives_its_answer(
    harness_name: str, sandbox_name: str, mode: Literal["base-url", "proxy"], mitm: Mitm, tmp_path: Path
) -> None:
    harness, sandbox = HARNESSES[harness_name], SANDBOXES[sandbox_name]
    need(sandbox.check())
    try:
        installed = harness.find()
    except HarnessMissing as missing:
        need([str(missing)])
        return
    tool, arguments = harness.shell_call(COMMAND)
    provider = FakeProvider(tool, arguments)
    workspace, home = tmp_path / "workspace", tmp_path / "home"
    workspace.mkdir()
    home.mkdir()
    async with (
        serving(provider) as base_port,
        UnixBridge(mitm.port) as proxy_socket,
        UnixBridge(base_port) as base_socket,
    ):
        mitm.upstream.write_text(str(base_port))
        layout = sandbox.layout(workspace=workspace, home=home, ca=mitm.ca, proxy_port=mitm.port, base_port=base_port)
        access = Access(
            mode=mode,
            base_url=f"http://127.0.0.1:{layout.base_port}/s/ses_live",
            proxy_url=f"http://ses_live:{TOKEN}@127.0.0.1:{layout.proxy_port}",
            key=TOKEN,
            model="local-model",
            max_model_len=32_768,
        )
        prepared = harness.prepare(installed, access, layout, "Write the word hello into out.txt.")
        for name, text in prepared.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        (tmp_path / "stdin").write_bytes(prepared.stdin or b"")
        started = time.monotonic()
        ended = await sandbox.run(
            RunSpec(
                argv=prepared.argv,
                env=prepared.env,
                workspace=workspace,
                home=home,
                ca=mitm.ca,
                stdin=tmp_path / "stdin",
                stdout=tmp_path / "stdout",
                stderr=tmp_path / "stderr",
                timeout_s=120,
                marker="ses_live",
                read_only=installed.read_only,
                sockets={layout.proxy_port: proxy_socket.path, layout.base_port: base_socket.path},
            )
        )
    print(f"{harness_name} {sandbox_name} {mode}: {time.monotonic() - started:.1f} s, missed {provider.missed}")
    stdout = (tmp_path / "stdout").read_text()
    assert replace(ended, seconds=0.0).code == 0, stdout + (tmp_path / "stderr").read_text()
    assert (workspace / "out.txt").read_text() == "hello\n"
    assert harness.answer(stdout) == ANSWER
    paths = {request.path for request in provider.requests}
    assert len(provider.requests) == 2
    assert all(path.startswith("/s/ses_live/v1/") for path in paths) == (mode == "base-url")
    for request in provider.requests:
        assert request.body["model"] == "local-model"
        assert TOKEN in (
            request.headers.get("x-api-key", ""),
            request.headers.get("authorization", "")[len("Bearer ") :],
        )
        assert (request.body.get("max_tokens") or request.body.get("max_completion_tokens")) == 8192
