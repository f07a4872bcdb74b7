"""`--tokens` as a person uses it: what is used, what is said, and what is refused."""

import asyncio
import os
import sys
from pathlib import Path

import orjson
import pytest

from polar_mitm.capture.session import SessionFolder, SessionRecord
from tests.fakes.vllm import RENDER, TOKEN_ROUTES, FakeVllm

POLAR = Path(sys.executable).with_name("polar")
LIMIT_S = 90.0
"""A start on a loaded machine took over 20 s."""

SCENARIO = """\
name: ask
instruction: Hello?
harness: command
command: [python3, -c, {ask}]
sandbox: host
evaluator:
  type: session_completed
"""
ASK = """
import json, os, urllib.request as web
body = json.dumps({"model": "x", "messages": [{"role": "user", "content": "Hi."}]}).encode()
headers = {"authorization": "Bearer " + os.environ["POLAR_KEY"], "content-type": "application/json"}
web.urlopen(web.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
"""


async def polar(*arguments: str | Path, engine_url: str | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    env = {**os.environ, "COLUMNS": "200"} | ({"POLAR_ENGINE_URL": engine_url} if engine_url else {})
    process = await asyncio.create_subprocess_exec(
        *(POLAR, *map(str, arguments)), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env
    )
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
def scenario(proxy_home: Path, tmp_path: Path) -> Path:
    path = tmp_path / "ask.yaml"
    path.write_text(SCENARIO.format(ask=orjson.dumps(ASK).decode()))
    return path


def record(out: Path) -> SessionRecord:
    (path,) = out.glob("ses_*")
    return SessionFolder(path).load()


async def test_exact_is_the_default_and_chat_can_be_asked_for(scenario: Path, tmp_path: Path) -> None:
    async with FakeVllm() as fake:
        for given, used in ((), "exact"), (("--tokens", "chat"), "chat"), (("--tokens", "exact"), "exact"):
            out = tmp_path / f"{used}{len(given)}"
            code, _, said = await polar("run-task", scenario, "--engine-url", fake.url, "--out", out, *given)
            assert code == 0, said
            assert "token ids" not in said
            session = record(out)
            assert (session.tokens, session.tokens_reason, session.calls) == (used, None, 1)


async def test_an_engine_that_lacks_a_route_is_sent_messages_and_the_run_says_so(
    scenario: Path, tmp_path: Path
) -> None:
    async with FakeVllm(lacks=TOKEN_ROUTES) as fake:
        code, _, said = await polar("run-task", scenario, "--engine-url", fake.url, "--out", tmp_path / "out")
    assert code == 0, said
    (line,) = [line for line in said.splitlines() if "token ids" in line]
    why = f"the engine has no token routes: {RENDER} answered 403: Scale-out endpoints are disabled."
    assert line.startswith(f"prompts go as messages, not as token ids: {why}")
    session = record(tmp_path / "out")
    assert session.tokens == "chat"
    assert session.tokens_reason
    assert session.tokens_reason.startswith(why)


@pytest.mark.parametrize("command", ["run-task", "proxy"])
async def test_asking_such_an_engine_for_exact_is_refused_with_the_mend(
    command: str, scenario: Path, tmp_path: Path
) -> None:
    more = (scenario,) if command == "run-task" else ("--port", "0", "--base-url-port", "0")
    async with FakeVllm(lacks=TOKEN_ROUTES) as fake:
        options = ("--engine-url", fake.url, "--out", tmp_path / "out", "--tokens", "exact")
        code, out, said = await polar(command, *more, *options)
    assert code == 3, out + said
    told = " ".join(said.split())
    assert "prompts of token ids are asked for, but it has no token routes" in told
    assert "start vLLM with --enable-scale-out" in told
    assert not list((tmp_path / "out").glob("ses_*"))


async def test_another_word_is_bad_usage(scenario: Path) -> None:
    code, _, said = await polar("run-task", scenario, "--tokens", "ids")
    assert (code, "'ids' is not one of" in " ".join(said.split())) == (2, True)


@pytest.mark.parametrize(
    ("lacks", "ok", "says"),
    [((), True, "exact: prompts go to "), (TOKEN_ROUTES, False, "chat: prompts go to ")],
    ids=["offers", "lacks"],
)
async def test_doctor_says_which_is_used_and_why_not(
    lacks: tuple[str, ...], ok: bool, says: str, proxy_home: Path
) -> None:
    async with FakeVllm(lacks=lacks) as fake:
        _, out, _ = await polar("doctor", "--json", engine_url=fake.url)
    (finding,) = [
        finding for finding in orjson.loads(out) if finding["part"] == "tokens" and fake.url in finding["says"]
    ]
    assert (finding["ok"], finding["needed"], finding["says"].startswith(says)) == (ok, False, True)
    assert ("--enable-scale-out" in finding["says"]) == bool(lacks)


async def test_doctor_names_an_engine_that_does_not_answer(proxy_home: Path) -> None:
    _, out, _ = await polar("doctor", "--json", engine_url="http://127.0.0.1:9")
    (finding,) = [finding for finding in orjson.loads(out) if finding["part"] == "tokens"]
    assert (finding["ok"], "Is vLLM running there?" in finding["says"]) == (False, True)
