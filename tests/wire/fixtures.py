"""The recorded requests, and what polar makes of them."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polar_mitm.chat import CallError, message_wire
from polar_mitm.providers import Ask, Provider, Request, Route, recognise

type Json = dict[str, Any]

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"
DIFFERENCES = HERE / "oracle_differences.json"


@dataclass(slots=True, frozen=True)
class Fixture:
    id: str
    """`codex-0.171.0/01-classic-turn-1`."""
    data: Json

    @property
    def body(self) -> Json:
        body: Json = self.data["body"]
        return body

    @property
    def request(self) -> Request:
        return Request(*(self.data[name] for name in ("method", "host", "path", "query", "headers")))

    def route(self) -> tuple[Provider, Route]:
        found = recognise(self.request)
        assert found is not None, f"{self.id}: no provider knows {self.request.path}"
        return found

    def ask(self) -> Ask:
        """Raises CallError when polar refuses the request."""
        provider, route = self.route()
        return provider.parse(self.request, route, self.body)


def fixtures() -> list[Fixture]:
    paths = sorted(HERE.glob("*-*/*.json"))
    return [Fixture(f"{path.parent.name}/{path.stem}", json.loads(path.read_bytes())) for path in paths]


def scenes() -> dict[str, list[Fixture]]:
    """The main agent's requests of each run, in order."""
    runs: dict[str, list[Fixture]] = {}
    for fixture in fixtures():
        if fixture.data["label"] in ("turn-1", "turn-2", "turn-3", "compaction"):
            runs.setdefault(f"{fixture.id.split('/')[0]} {fixture.data['scene']}", []).append(fixture)
    return runs


def summary(fixture: Fixture) -> Json:
    """What polar understood, for a person to review."""
    provider, _ = fixture.route()
    try:
        ask = fixture.ask()
    except CallError as error:
        return {"provider": provider.NAME, "refused": error.message}
    return {
        "provider": provider.NAME,
        "stream": ask.stream,
        "messages": dict(Counter(message_wire(message)["role"] for message in ask.chat.messages)),
        "tools": [tool.name for tool in ask.chat.tools],
        "not_carried": [lost.field for lost in ask.chat.not_carried],
        "harness_ids": sorted(ask.harness_ids),
    }


def summaries() -> Json:
    return {fixture.id: summary(fixture) for fixture in fixtures()}


def offered(body: Json) -> Iterator[str]:
    """Names of the tools that a harness offered, in any of the four APIs; a hosted tool's is its type."""
    body = body.get("request", body)
    items = body.get("input")
    additional = [item for item in items if item.get("type") == "additional_tools"] if isinstance(items, list) else []
    for holder in (body, *additional):
        for tool in holder.get("tools") or []:
            yield from _names(tool)


def _names(tool: Json) -> Iterator[str]:
    if tool.get("type") == "namespace":
        for inner in tool["tools"]:
            yield from _names(inner)
    elif "functionDeclarations" in tool:
        yield from (function["name"] for function in tool["functionDeclarations"])
    elif "function" in tool:
        yield tool["function"]["name"]
    elif "name" in tool or "type" in tool:
        yield tool.get("name") or tool["type"]
    else:
        yield from tool
