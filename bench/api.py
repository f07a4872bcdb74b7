"""python -m bench.api [--seconds 120] [--seed 0]: schemathesis against the OpenAPI documents of both services.

A real server and a real gateway are asked everything that their documents allow, and what they do not. Exit code 1 when
one of them answered with a 5xx, with what its document does not name, or without the token.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.chaos.processes import Program, rollout_server
from bench.chaos.simulated import serve
from polar_mitm.rollout.gateway.settings import Settings, Workers
from tests.fakes.vllm import FakeVllm
from tests.ports import free_port

TOKEN = "the-token-of-the-bench"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "ignored_auth",
    "negative_data_rejection",
)
ENDLESS = "/v1/events"
"""A stream without an end has no answer to check."""


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.api")
    parser.add_argument("--seconds", type=int, default=120, help="for each service")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["POLAR_ROLLOUT_TOKEN"] = TOKEN
    with tempfile.TemporaryDirectory(prefix="polar-api-") as temporary:
        out = Path(temporary)
        async with FakeVllm() as engine:
            at, own = free_port(), free_port()
            arguments = ["--state", str(out / "server"), "--port", str(at)]
            server = Program("server", rollout_server, (arguments,), out / "server.log", at)
            settings = Settings(
                server_url=f"http://127.0.0.1:{at}",
                token=TOKEN,
                engine_urls=[engine.url],
                state=out / "gateway",
                name="gw",
                port=own,
                workers=Workers(waiting=100_000),
            )
            gateway = Program("gateway", serve, (settings, out / "ledger"), out / "gateway.log", own)
            failed: list[Program] = []
            try:
                for program in (server, gateway):
                    program.start()
                    await program.up()
                for program in (server, gateway):
                    code = await asyncio.to_thread(attack, program, given.seconds, given.seed, out)
                    failed += [program] if code or not program.alive else []
            finally:
                for program in (server, gateway):
                    program.kill()
        for program in failed:
            print(f"{program.name}:\n{program.log.read_text(errors='replace')[-4000:]}", file=sys.stderr)
    return 1 if failed else 0


def attack(program: Program, seconds: int, seed: int, scratch: Path) -> int:
    """The exit code of schemathesis, which has said what it found. It keeps what it found in the folder."""
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"]
    url = f"http://127.0.0.1:{program.port}"
    options = {
        "--header": f"Authorization: Bearer {TOKEN}",
        "--checks": ",".join(CHECKS),
        "--exclude-path": ENDLESS,
        "--seed": str(seed),
        "--max-time": str(seconds),
        "--request-timeout": "30",
        "--warnings": "off",
    }
    flat = [part for option in options.items() for part in option]
    return subprocess.run([*command, f"{url}/openapi.json", *flat, "--no-color"], check=False, cwd=scratch).returncode


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(asyncio.run(main()))
