"""The official JavaScript SDKs as clients of the real proxy: the objects that they build, field by field.

The scripts in `js/` do what harnesses do with these SDKs; the engine is a stand-in, so that every reply is known.
"""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from polar_mitm.harnesses import node
from polar_mitm.harnesses.versions import version_tuple
from polar_mitm.home import home
from polar_mitm.providers.openai_responses_seal import seal
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.needs import need
from tests.proxy.asks import SCHEMA
from tests.proxy.stage import Stage

pytestmark = pytest.mark.live

SCRIPTS = Path(__file__).parent / "js"
OLDEST_NODE = "22.0.0"
"""The SDKs ask for it. Where npm has a Node for this machine, that one is installed with them."""
NPM_LIMIT_S = 600
RUN_LIMIT_S = 60

PLAIN, STREAMED, CALLED, SECOND = (
    Reply("Hello there.", reasoning="A greeting."),
    Reply("Grüße, \U0001f600!", reasoning="Or so."),
    Reply("", tool_calls=[("run", '{"cmd": "ls"}')]),
    Reply("There is a.txt."),
)
REPLIES = (PLAIN, STREAMED, CALLED, SECOND)
TOOL = {"name": "run", "description": "Runs a command.", "parameters": SCHEMA}


@dataclass(frozen=True)
class Sdks:
    node: str
    modules: Path


@pytest.fixture(scope="session")
def sdks() -> Iterator[Sdks]:
    """The SDKs in polar's home, installed from npm unless they are there."""
    folder = home() / "js-sdks"
    wanted = json.loads((SCRIPTS / "package.json").read_text())
    if node.private():
        wanted["dependencies"] |= dict([node.PINNED.rsplit("@", 1)])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(folder, wanted)
    own = folder / "node_modules" / node.PACKAGE / "bin" / "node"
    found = str(own) if own.is_file() else shutil.which("node")
    need([] if found else [f"node is not on PATH: install Node {OLDEST_NODE} or newer"])
    assert found
    version = subprocess.check_output([found, "--version"], text=True, timeout=60).strip()
    old = version_tuple(version) < version_tuple(OLDEST_NODE)
    need([f"the SDKs need Node {OLDEST_NODE} or newer, not {version}"] if old else [])
    yield Sdks(found, folder / "node_modules")


def _install(folder: Path, wanted: dict[str, Any]) -> None:
    """The manifest beside `.installed` says what is there; it is written when npm has succeeded."""
    done = folder / ".installed"
    if done.is_file() and json.loads(done.read_text()) == wanted:
        return
    npm = shutil.which("npm")
    need([] if npm else ["npm is not on PATH, and the JavaScript SDKs come from npm: install Node with npm"])
    assert npm
    (folder / "package.json").write_text(json.dumps(wanted, indent=2))
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    ran = subprocess.run(
        [npm, "install", *options], cwd=folder, capture_output=True, text=True, timeout=NPM_LIMIT_S, check=False
    )
    need([f"npm install failed: {ran.stderr.strip()[-500:]}"] if ran.returncode else [])
    done.write_text(json.dumps(wanted))


async def run(sdks: Sdks, on: Stage, name: str, folder: Path) -> Any:
    """What the script printed. It stands beside the packages, where its imports look for them."""
    script = folder / f"{name}.js"
    shutil.copy(SCRIPTS / f"{name}.js", script)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "node_modules").symlink_to(sdks.modules)
    env = {"PATH": os.defpath, "HOME": str(folder), "BASE_URL": on.base_url(), "API_KEY": on.session.token}
    process = await asyncio.create_subprocess_exec(
        sdks.node, str(script), env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(RUN_LIMIT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, err.decode()[-2000:]
    return json.loads(out)


type Json = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """What the call's record says, which its answer must say too."""

    id: str
    created: int
    prompt: int
    completion: int
    thought: int
    """Tokens of the reasoning, a byte each."""


def recorded(on: Stage) -> list[Recorded]:
    return [
        Recorded(
            call.identity.call_id.removeprefix("call_"),
            int(call.identity.started_at),
            len(call.prompt_ids),
            len(call.response.response_ids),
            len(call.response.reasoning.encode()),
        )
        for call in on.calls()
        if call.response
    ]


def second_turn(call: Recorded, sent: Json) -> None:
    """The engine was given the first turn as it was sampled, and the tool's result."""
    assert sent["messages"] == [
        {"role": "user", "content": "Say hello."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": f"call_{call.id}00",
                    "type": "function",
                    "function": {"name": "run", "arguments": '{"cmd": "ls"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": f"call_{call.id}00", "content": "a.txt"},
    ]
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["run"]


def chat_completion(call: Recorded, message: Json, *, finish: str = "stop") -> Json:
    return {
        "id": f"chatcmpl-{call.id}",
        "object": "chat.completion",
        "created": call.created,
        "model": "gpt-9",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "refusal": None, **message},
                "logprobs": None,
                "finish_reason": finish,
            }
        ],
        "usage": {
            "prompt_tokens": call.prompt,
            "completion_tokens": call.completion,
            "total_tokens": call.prompt + call.completion,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": call.thought},
        },
    }


def response(call: Recorded, *output: Json, text: str, tools: list[Json], **more: Any) -> Json:
    return {
        "id": f"resp_{call.id}",
        "object": "response",
        "created_at": call.created,
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": "gpt-9",
        "output": list(output),
        "output_text": text,
        "previous_response_id": None,
        "store": False,
        "usage": {
            "input_tokens": call.prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": call.completion,
            "output_tokens_details": {"reasoning_tokens": call.thought},
            "total_tokens": call.prompt + call.completion,
        },
        "user": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": tools,
        "top_p": None,
        "truncation": "disabled",
        **more,
    }


def thought_item(call: Recorded, text: str) -> Json:
    return {
        "id": f"rs_{call.id}",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "encrypted_content": seal(text),
    }


def message_item(call: Recorded, text: str, **more: Any) -> Json:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": [], **more}
    return {"id": f"msg_{call.id}", "type": "message", "status": "completed", "role": "assistant", "content": [part]}


async def test_the_openai_sdk_builds_the_engines_replies_through_both_of_its_apis(
    sdks: Sdks, stage: Staged, tmp_path: Path
) -> None:
    async with stage(*REPLIES, *REPLIES) as on:
        got = await run(sdks, on, "openai", tmp_path)
        plain, streamed, called, second, *others = recorded(on)
        second_turn(called, on.fake.requests[3])
        second_turn(others[2], on.fake.requests[7])
    function = {"name": "run", "arguments": '{"cmd": "ls"}'}
    chat = got["chat"]
    assert chat["plain"] == chat_completion(plain, {"content": PLAIN.text, "reasoning_content": PLAIN.reasoning})
    assert chat["events"] == [
        {"role": "assistant", "content": "", "refusal": None},
        {"reasoning_content": STREAMED.reasoning},
        {"content": STREAMED.text},
        {},
        "usage",
    ]
    assert chat["streamed"] == chat_completion(
        streamed, {"content": STREAMED.text, "reasoning_content": STREAMED.reasoning, "parsed": None}
    )
    without_usage = chat_completion(
        called,
        {"parsed": None, "tool_calls": [{"id": f"call_{called.id}00", "type": "function", "function": function}]},
        finish="tool_calls",
    )
    del without_usage["usage"]  # which this stream was not asked for
    assert chat["called"] == without_usage
    assert chat["second"] == chat_completion(second, {"content": SECOND.text})

    plain, streamed, called, second = others
    responses, tool = got["responses"], {"type": "function", "strict": False, **TOOL}
    output = thought_item(plain, "A greeting."), message_item(plain, PLAIN.text)
    assert responses["plain"] == response(plain, *output, text=PLAIN.text, tools=[])
    output = thought_item(streamed, "Or so."), message_item(streamed, STREAMED.text, parsed=None)
    assert responses["streamed"] == response(streamed, *output, text=STREAMED.text, tools=[], output_parsed=None)
    assert responses["events"] == [
        "response.created",
        "response.in_progress",
        *item("reasoning_text"),
        *item("output_text"),
        "response.completed",
    ]
    call = {"id": f"fc_{called.id}0", "type": "function_call", "status": "completed", "parsed_arguments": None}
    call |= {"call_id": f"call_{called.id}00", **function}
    assert responses["called"] == response(called, call, text="", tools=[tool], output_parsed=None)
    assert responses["second"] == response(second, message_item(second, SECOND.text), text=SECOND.text, tools=[tool])
    refused = {"status": 400, "type": "invalid_request_error", "param": "messages.0.role"}
    assert got["failed"] == {"name": "BadRequestError", **refused}


def item(kind: str) -> list[str]:
    """The events of one output item with one part."""
    names = ("output_item.added", "content_part.added", f"{kind}.delta", f"{kind}.done")
    return [f"response.{name}" for name in (*names, "content_part.done", "output_item.done")]


def message(call: Recorded, *content: Json, stop: str = "end_turn", **more: Any) -> Json:
    return {
        "id": f"msg_{call.id}",
        "type": "message",
        "role": "assistant",
        "model": "claude-9",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": call.prompt,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": call.completion,
        },
        **more,
    }


async def test_the_anthropic_sdk_builds_the_engines_replies(sdks: Sdks, stage: Staged, tmp_path: Path) -> None:
    async with stage(*REPLIES) as on:
        got = await run(sdks, on, "anthropic", tmp_path)
        plain, streamed, called, second = recorded(on)
        second_turn(called, on.fake.requests[3])
    messages = got["messages"]
    for reply in (messages["plain"], messages["streamed"]):
        assert reply["content"][0].pop("signature")
    thought = {"type": "thinking", "thinking": "A greeting."}
    assert messages["plain"] == message(plain, thought, {"type": "text", "text": PLAIN.text})
    thought = {"type": "thinking", "thinking": "Or so."}
    text = {"type": "text", "text": STREAMED.text}
    assert messages["streamed"] == message(streamed, thought, text, parsed_output=None)
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    thinking = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    assert messages["events"] == ["message_start", *thinking, *block, "message_delta", "message_stop"]
    use = {"type": "tool_use", "id": f"call_{called.id}00", "name": "run", "input": {"cmd": "ls"}}
    assert messages["called"] == message(called, use, stop="tool_use", parsed_output=None)
    assert messages["second"] == message(second, {"type": "text", "text": SECOND.text})
    assert messages["counted"] == {"input_tokens": plain.prompt}
    assert got["failed"] == {"name": "BadRequestError", "status": 400, "type": "invalid_request_error"}


def content(call: Recorded, *parts: Json, whole: bool = True) -> Json:
    """A reply, or a part of a stream that more follows."""
    candidate: Json = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    reply: Json = {"candidates": [candidate], "modelVersion": "gemini-9", "responseId": call.id}
    if whole:
        candidate["finishReason"] = "STOP"
        reply["usageMetadata"] = {
            "promptTokenCount": call.prompt,
            "candidatesTokenCount": call.completion - call.thought,
            "totalTokenCount": call.prompt + call.completion,
        }
        if call.thought:
            reply["usageMetadata"]["thoughtsTokenCount"] = call.thought
    return reply


async def test_the_google_sdk_builds_the_engines_replies(sdks: Sdks, stage: Staged, tmp_path: Path) -> None:
    async with stage(*REPLIES) as on:
        got = await run(sdks, on, "google", tmp_path)
        plain, streamed, called, second = recorded(on)
        second_turn(called, on.fake.requests[3])
    contents = got["contents"]
    assert contents["plain"] == content(plain, {"text": "A greeting.", "thought": True}, {"text": PLAIN.text})
    assert contents["text"] == PLAIN.text
    assert contents["streamed"] == [
        content(streamed, {"text": "Or so.", "thought": True}, whole=False),
        content(streamed, {"text": STREAMED.text}, whole=False),
        content(streamed, {"text": ""}),
    ]
    call = {"functionCall": {"id": f"call_{called.id}00", "name": "run", "args": {"cmd": "ls"}}}
    assert contents["called"] == [content(called, call)]
    assert contents["second"] == content(second, {"text": SECOND.text})
    assert contents["counted"] == {"totalTokens": plain.prompt}
    assert got["failed"] == {"name": "ApiError", "status": 400, "told": "INVALID_ARGUMENT"}
