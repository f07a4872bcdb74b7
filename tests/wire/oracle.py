"""vLLM's own translation of a recorded request, and the known ways in which polar's is another.

A known way is a rewrite of the harness's body: what is left of the difference after it is unknown. There is no oracle
for Google's API: vLLM does not speak it.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

from polar_mitm.engine.body import compose
from tests.wire.filler import BILLING
from tests.wire.fixtures import Fixture

type Json = dict[str, Any]

ENDPOINTS: Final = {
    "anthropic": "/v1/messages/render",
    "openai-chat": "/v1/chat/completions/render",
    "openai-responses": "/v1/responses/render",
}


class Refused(Exception):
    """vLLM does not take the harness's body; says its status and the first words of its message."""


class Oracle:
    def __init__(self, url: str) -> None:
        self._url = url
        self._model: str = self._ask("/v1/models")["data"][0]["id"]

    def polar(self, fixture: Fixture) -> list[int]:
        """Prompt ids of the Chat request that polar sends."""
        body = compose(fixture.ask().chat, model=self._model, overrides={}).body
        return self._render(ENDPOINTS["openai-chat"], body)

    def vllm(self, fixture: Fixture, reasons: list[str]) -> list[int]:
        """Prompt ids of the harness's own body, rewritten for these reasons. Raises Refused."""
        provider, body = fixture.route()[0].NAME, deepcopy(fixture.body)
        for reason in reasons:
            REWRITES[provider][reason](body)
        return self._render(ENDPOINTS[provider], body | {"model": self._model})

    def _render(self, path: str, body: Json) -> list[int]:
        ids: list[int] = self._ask(path, json.dumps(body).encode())["token_ids"]
        return ids

    def _ask(self, path: str, body: bytes | None = None) -> Json:
        request = urllib.request.Request(self._url + path, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: Json = json.load(answer)
                return found
        except urllib.error.HTTPError as refusal:
            said = json.load(refusal)["error"]["message"].split()
            raise Refused(" ".join([str(refusal.code), *said[:6]])) from refusal


def _join_system_blocks(body: Json) -> None:
    texts = [block["text"] for block in _blocks(body["system"]) if not block["text"].startswith(BILLING)]
    body["system"] = "\n\n".join(texts)


def _fold_system_messages(body: Json) -> None:
    messages: list[Json] = []
    for message in body["messages"]:
        blocks = _blocks(message["content"])
        if message["role"] == "system":
            text = "\n\n".join(block["text"] for block in blocks)
            blocks, message = [{"type": "text", "text": f"<system>\n{text}\n</system>"}], {"role": "user"}
        if messages and messages[-1]["role"] == message["role"] == "user":
            messages[-1]["content"] += blocks
        else:
            messages.append({"role": message["role"], "content": list(blocks)})
    body["messages"] = messages


def _leave_out_deferred_tools(body: Json) -> None:
    body["tools"] = [tool for tool in body.get("tools", []) if not tool.get("defer_loading")]


def _say_what_a_namespace_is(body: Json) -> None:
    for tool in body.get("tools", []):
        if tool["type"] == "namespace":
            first = tool["tools"][0]
            first["description"] = f"{tool['description']}\n\n{first['description']}"


def _give_every_function_parameters(body: Json) -> None:
    for tool in body.get("tools", []):
        tool["function"].setdefault("parameters", {"type": "object", "properties": {}})


def _blocks(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


REWRITES: Final[dict[str, dict[str, Callable[[Json], None]]]] = {
    "anthropic": {
        "deferred tools": _leave_out_deferred_tools,
        "system blocks": _join_system_blocks,
        "system messages": _fold_system_messages,
    },
    "openai-chat": {"no parameters": _give_every_function_parameters},
    "openai-responses": {"namespace descriptions": _say_what_a_namespace_is},
}
"""By provider and reason; oracle_differences.json explains each reason."""


def explain(oracle: Oracle, fixture: Fixture) -> Json | None:
    """The entry of a fixture in oracle_differences.json: the fewest reasons that explain all; None when none is needed.

    Raises AssertionError when the known reasons do not explain the difference.
    """
    ours = oracle.polar(fixture)
    reasons: list[str] = []
    try:
        if oracle.vllm(fixture, reasons) == ours:
            return None
    except Refused as refused:
        return {"vllm_refuses": str(refused)}
    reasons = list(REWRITES[fixture.route()[0].NAME])
    assert oracle.vllm(fixture, reasons) == ours, f"{fixture.id}: {', '.join(reasons)} do not explain the difference"
    for reason in tuple(reasons):
        fewer = [other for other in reasons if other != reason]
        if oracle.vllm(fixture, fewer) == ours:
            reasons = fewer
    return {"reasons": reasons}


def comparable(fixtures: list[Fixture]) -> Iterator[Fixture]:
    """The fixtures that have an oracle: not Google's, and not the threads, which polar refuses."""
    for fixture in fixtures:
        if fixture.route()[0].NAME in ENDPOINTS and "thread" not in fixture.body:
            yield fixture
