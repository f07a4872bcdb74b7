"""Integers over 64 bits through the whole proxy and back: in a schema, in a call, in the next turn's history."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polar_mitm.cli import app
from tests.conformance import test_anthropic, test_google
from tests.conformance.sampled import last
from tests.conformance.test_google import types
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.stage import Stage

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

BIG, LOW = 2**64 + 1, -(2**63) - 1
ARGUMENTS = {"id": BIG, "under": [LOW]}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer", "enum": [BIG, LOW]}}}
CALLING = Reply("", tool_calls=[("shell", json.dumps(ARGUMENTS))])


def check(on: Stage) -> None:
    """The engine was sent, and the record holds, every digit."""
    sent = on.fake.requests[-1]
    assert sent["tools"][0]["function"]["parameters"] == SCHEMA
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == json.dumps(ARGUMENTS)
    call = last(on).call
    assert (call.request.messages, call.request.tools) == (sent["messages"], sent["tools"])
    assert call.response and call.response.repairs == []
    assert call.parent_call_id == on.calls()[0].identity.call_id


def check_shown(folder: Path) -> None:
    """What a person is shown of the call is every digit as well."""
    for more in ([], ["--json"]):
        shown = CliRunner().invoke(app, ["calls", str(folder), "--call", "1", "--full", *more])
        assert (shown.exit_code, shown.exception) == (0, None)
        assert str(BIG) in shown.output and str(LOW) in shown.output


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_as_anthropics_objects(as_stream: bool, stage: Staged) -> None:
    asked: Any = {**test_anthropic.ASKED, "tools": [{"name": "shell", "input_schema": SCHEMA}]}
    async with stage(CALLING) as on, test_anthropic.sdk(on) as client:
        if as_stream:
            async with client.messages.stream(**asked) as stream:
                message = await stream.get_final_message()
        else:
            message = await client.messages.create(**asked)
        (block,) = message.content
        assert block.type == "tool_use" and block.input == ARGUMENTS
        result = {"type": "tool_result", "tool_use_id": block.id, "content": "ok"}
        history = [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        await client.messages.create(**{**asked, "messages": [*asked["messages"], *history]})
        check(on)
    check_shown(on.out)


@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
async def test_as_googles_objects(as_stream: bool, stage: Staged) -> None:
    function = types.FunctionDeclaration(name="shell", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[function])])
    contents: list[Any] = [types.UserContent("hi")]
    async with stage(CALLING) as on:
        client = test_google.sdk(on)
        if as_stream:
            response = test_google.joined(await test_google.streamed(client, contents, config))
        else:
            response = await client.models.generate_content(model="m", contents=contents, config=config)
        (call,) = response.function_calls or []
        assert call.args == ARGUMENTS
        assert response.candidates and response.candidates[0].content
        result = types.FunctionResponse(id=call.id, name="shell", response={"output": "ok"})
        contents += [response.candidates[0].content, types.UserContent(types.Part(function_response=result))]
        await client.models.generate_content(model="m", contents=contents, config=config)
        check(on)
