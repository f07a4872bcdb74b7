"""Record what a real harness sends: `python -m tests.wire.record pi`, or `make wire HARNESS=pi`.

Installs the pinned version from npm into a folder of its own, runs it in the bwrap sandbox (no network but loopback)
against a provider with canned answers, scrubs what it sent and writes it to `tests/wire/<harness>-<version>/`. Not a
test, and not part of CI: Linux x64, a minute or two a harness, a few hundred megabytes from npm.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from polar_mitm.home import home
from polar_mitm.proxy.kinds import TITLE
from polar_mitm.sandboxes import RunSpec, UnixBridge
from polar_mitm.sandboxes.bwrap import BASE_PORT, CA, CA_BUNDLE, PROXY_PORT, Bwrap
from tests.ports import free_port, wait_for_port
from tests.wire.canned import DONE, Answer, Asked, CannedProvider, Json, serving
from tests.wire.docs import DOCS, with_table
from tests.wire.fixtures import DIFFERENCES, EXPECTED, fixtures, summaries
from tests.wire.oracle import Oracle, comparable, explain
from tests.wire.scenes import AGENT, HAND_BACK, SPAWN, SUB_INSTRUCTION, WIRES, Scene, Wire
from tests.wire.scrub import Scrubber

HERE = Path(__file__).parent
RUN_S = 60.0
"""All recorded runs ended within 35 s on two busy cores."""

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
TRUST = {
    "NODE_EXTRA_CA_CERTS": str(CA),
    "CODEX_CA_CERTIFICATE": str(CA),
    "SSL_CERT_FILE": str(CA_BUNDLE),
    "NODE_USE_SYSTEM_CA": "1",
}


class Director:
    """Decides what a scene's requests are, and what they get.

    A conversation that holds the sub-agent's instruction before anyone has called for a sub-agent is the sub-agent's.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._turns = 0
        self.labels: dict[int, str] = {}
        """By `id` of the request."""

    def answer(self, asked: Asked) -> Answer:
        text = json.dumps(asked.body)
        kind, answer = self._kind(asked.body.get("request") or asked.body, text)
        if kind == "turn":
            label = self._scene.labels[self._turns] if self._turns < len(self._scene.labels) else f"more-{self._turns}"
            if self._turns < len(self._scene.answers):
                answer = _filled(self._scene.answers[self._turns], text)
            self._turns += 1
        else:
            label = f"{kind}-{1 + sum(known.startswith(f'{kind}-') for known in self.labels.values())}"
        self.labels[id(asked)] = label
        return answer

    def _kind(self, body: Json, text: str) -> tuple[str, Answer]:
        if "responseJsonSchema" in (body.get("generationConfig") or {}):
            verdict = {"complexity_reasoning": "One command.", "complexity_score": 20}
            return "classifier", Answer(json.dumps(verdict))
        if SUB_INSTRUCTION in text and f'_{SPAWN}"' not in text:
            return "sub", HAND_BACK if "complete_task" in text else DONE
        thread = body.get("thread") or {}
        has_tools = body.get("tools") or thread.get("type") == "continue" or '"additional_tools"' in text
        if has_tools or ("compaction" in self._scene.labels and not _is_about_titles(body)):
            return "turn", DONE
        return "title", Answer("Hello")


def _is_about_titles(body: Json) -> bool:
    first = (body.get("messages") or [{}])[0]
    return first.get("role") == "system" and TITLE.search(str(first["content"])) is not None


def _filled(answer: Answer, text: str) -> Answer:
    """The answer with the id of the agent that was started, which only the harness knows, in its place."""
    started = re.search(r'agent_id\\*": ?\\*"([0-9a-f-]{36})', text)
    if started is None or answer.call is None:
        return answer
    arguments = json.loads(json.dumps(answer.call.arguments).replace(AGENT, started[1]))
    return replace(answer, call=replace(answer.call, arguments=arguments))


async def record(wire: Wire, installed: Path, only: str | None) -> list[Json]:
    """The fixtures of a harness, each with its file name under `file`."""
    recorded: list[Json] = []
    for scene in wire.scenes:
        if only and scene.name != only:
            continue
        requests = await _run(wire, scene, installed)
        print(f"{wire.name} {scene.name}: {', '.join(label for label, _ in requests)}", flush=True)
        scrubber = Scrubber()
        recorded += [
            _fixture(wire, scene, label, replace(asked, body=_without(installed, asked.body)), scrubber)
            for label, asked in requests
        ]
    return recorded


def _without(installed: Path, body: Json) -> Json:
    """The body as if the harness were installed in the same place everywhere: pi tells the model where its docs are."""
    found: Json = json.loads(json.dumps(body).replace(str(installed), "/opt/harness"))
    return found


def _fixture(wire: Wire, scene: Scene, label: str, asked: Asked, scrubber: Scrubber) -> Json:
    host = asked.host if scene.mode == "proxy" else "127.0.0.1"
    return {
        "harness": wire.name,
        "version": wire.version,
        "scene": scene.name,
        "label": label,
        "method": asked.method,
        "host": host,
        "path": asked.path,
        "query": {name: scrubber.body(value) for name, value in sorted(asked.query.items()) if name != "key"},
        "headers": scrubber.headers(asked.headers),
        "body": scrubber.body(asked.body),
    }


async def _run(wire: Wire, scene: Scene, installed: Path) -> list[tuple[str, Asked]]:
    director = Director(scene)
    provider = CannedProvider(director.answer, scene.fixed, scene.refuse_threads)
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wire-")))
        port = await stack.enter_async_context(serving(provider, root / "base.sock"))
        sockets, ca, env = {BASE_PORT: root / "base.sock"}, None, {}
        if scene.mode == "proxy":
            proxy_port, ca = await stack.enter_async_context(_proxy(root, port))
            bridge = await stack.enter_async_context(UnixBridge(proxy_port))
            sockets = {PROXY_PORT: bridge.path}
            env = dict.fromkeys(PROXY_VARIABLES, f"http://127.0.0.1:{PROXY_PORT}") | TRUST
        for name in ("home", "workspace"):
            (root / name).mkdir()
        for name, text in scene.files.items():
            (root / "home" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "home" / name).write_text(text)
        command = wire.command(installed)
        ended = await Bwrap().run(
            RunSpec(
                argv=[*command, *scene.argv],
                env=_environment(command[0]) | scene.env | env,
                workspace=root / "workspace",
                home=root / "home",
                stdout=root / "stdout",
                stderr=root / "stderr",
                timeout_s=RUN_S,
                marker="wire",
                ca=ca,
                read_only=[installed],
                sockets=sockets,
            )
        )
        wrote = (root / "workspace" / "out.txt").exists()
        said = (root / "stdout").read_text()[-1500:] + (root / "stderr").read_text()[-1500:]
    labels = [director.labels.get(id(asked), "refused") for asked in provider.asked]
    print(f"  {ended}, wrote out.txt: {wrote}, other requests: {sorted(set(provider.missed))}", flush=True)
    if ended.code != 0 or os.environ.get("WIRE_SHOW"):
        print(f"  {labels}\n{said}", file=sys.stderr)
    # Sub-agents and titles run beside the main agent: their place in time is chance, their place among their kind not.
    order = {name: place for place, name in enumerate(["refused", *scene.labels])}
    return sorted(zip(labels, provider.asked, strict=True), key=lambda pair: order.get(pair[0], len(order)))


def _environment(command: str) -> dict[str, str]:
    return {
        "PATH": f"{Path(command).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/home/agent",
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "NO_COLOR": "1",
    }


@asynccontextmanager
async def _proxy(root: Path, port: int) -> AsyncIterator[tuple[int, Path]]:
    """A mitmdump that sends everything to the canned provider: its port and its CA."""
    listen = free_port()
    mitmdump = Path(sys.executable).with_name("mitmdump")
    options = ("listen_host=127.0.0.1", f"listen_port={listen}", f"confdir={root / 'mitm'}")
    command = [str(mitmdump), "-q", "-s", str(HERE / "proxy_addon.py")]
    for option in (*options, "connection_strategy=lazy", "upstream_cert=false"):
        command += ["--set", option]
    env = os.environ | {"WIRE_PORT": str(port), "PYTHONPATH": str(HERE.parents[1])}
    process = await asyncio.create_subprocess_exec(*command, env=env)
    try:
        await asyncio.to_thread(wait_for_port, listen, seconds=60)
        certificate = root / "mitm" / "mitmproxy-ca-cert.pem"
        await asyncio.to_thread(_wait_for_file, certificate, seconds=20)
        yield listen, certificate
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 20)


def _wait_for_file(path: Path, *, seconds: float) -> None:
    """mitmdump listens before it has written its certificate."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path} was not written within {seconds:g} s")
        time.sleep(0.05)


def install(wire: Wire) -> Path:
    """The folder with the pinned packages, installed there unless they are."""
    folder = home() / "wire" / f"{wire.name}-{wire.version}"
    if not (folder / "node_modules").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        try:
            subprocess.run(
                ["npm", "install", "--prefix", str(folder), *flags, *wire.packages], check=True, timeout=1800
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return folder


def write(wire: Wire, recorded: list[Json]) -> Path:
    """Replace the harness's fixtures of this version."""
    folder = HERE / f"{wire.name}-{wire.version}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number, fixture in enumerate(recorded, start=1):
        name = f"{number:02d}-{fixture['scene']}-{fixture['label']}.json"
        (folder / name).write_text(json.dumps(fixture, indent=1, ensure_ascii=False) + "\n")
    return folder


def write_summaries() -> None:
    """What polar makes of every fixture, for a person to read in the diff."""
    EXPECTED.write_text(json.dumps(summaries(), indent=1) + "\n")
    DOCS.write_text(with_table(DOCS.read_text()))


def write_differences(url: str) -> None:
    """By fixture, why vLLM's own translation gives other ids. What the reasons mean is written by hand."""
    oracle = Oracle(url)
    table = json.loads(DIFFERENCES.read_bytes())
    found = {fixture.id: explain(oracle, fixture) for fixture in comparable(fixtures())}
    table["fixtures"] = {name: entry for name, entry in found.items() if entry}
    DIFFERENCES.write_text(json.dumps(table, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("harness", choices=WIRES, nargs="?")
    parser.add_argument("--installed", type=Path, help="a folder with node_modules, in place of an install")
    parser.add_argument("--scene", help="run this scene alone and write nothing")
    parser.add_argument("--summaries", action="store_true", help="write expected.json and the docs' table anew")
    parser.add_argument("--oracle", metavar="URL", help="the same, and oracle_differences.json by the vLLM at this URL")
    arguments = parser.parse_args()
    if arguments.oracle:
        write_differences(arguments.oracle)
    if arguments.summaries or arguments.oracle:
        write_summaries()
        return
    if arguments.harness is None:
        parser.error("name a harness")
    if problems := Bwrap().check():
        sys.exit("; ".join(problems))
    wire = WIRES[arguments.harness]
    recorded = asyncio.run(record(wire, arguments.installed or install(wire), arguments.scene))
    if arguments.scene:
        print(json.dumps(recorded, indent=1))
        return
    print(f"{len(recorded)} requests in {write(wire, recorded)}")
    write_summaries()


if __name__ == "__main__":
    main()
