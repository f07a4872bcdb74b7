"""Malformed requests against the providers in this process, then against the real proxy.

Whatever comes in, the answer is the provider's own: 200 where the request still makes sense, else a 4xx in its form;
never a 5xx, and the memory stays where it was.

python -m bench.fuzz [cases, 100000 when left out] [of them through the proxy, 4000] [seed, 1]
"""

import asyncio
import gc
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
from yarl import URL

from bench.malformed import Case, cases
from bench.report import machine, markdown, show, write_section
from polar_mitm.chat import CallError, ChatReply, Json, ToolCall, Usage, message_wire, tool_wire
from polar_mitm.json_text import dumps
from polar_mitm.providers import Provider, Request, Route, anthropic, google, recognise, speaker
from polar_mitm.providers.base import Begun, ModelCard
from polar_mitm.proxy.body import LARGEST_BODY, read_object
from tests.fakes.vllm import Reply
from tests.proxy.stage import LIMIT_S, Stage, staged

MOST_GROWTH = 64 * 2**20
"""Bytes of resident memory that the cases may leave behind after the first tenth, which fills caches and pools. A leak
of one body a case would be several times as much."""
AT_ONCE = 8
"""Requests in flight at the proxy."""
SHOWN = 10
"""Defects that are printed in full."""
PROMISED = 100_000
"""Cases at the least for what is written into docs/benchmarks.md."""

CARDS = (ModelCard("tiny", 4096),)
CALLED = ChatReply("ab", 1, "text", "thought", (ToolCall("c", "shell", '{"a": 1}'),), "tool_calls", Usage(3, 4))


@dataclass
class Outcome:
    """What came of some cases."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By the provider that a case was meant for, and the status of the answer."""
    defects: dict[str, Case] = field(default_factory=dict)
    """The first case of each kind of defect."""
    seconds: float = 0.0
    before: int = 0
    after: int = 0

    @property
    def total(self) -> int:
        return self.statuses.total()

    @property
    def growth(self) -> int:
        return self.after - self.before

    def add(self, case: Case, status: int, defect: str) -> None:
        self.statuses[case.meant, status] += 1
        if defect:
            self.defects.setdefault(defect, case)


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def measured(outcome: Outcome, wanted: Iterable[Case], warm: int) -> Iterator[Case]:
    """The cases, with the clock and the memory read around them."""
    began = time.monotonic()
    for number, case in enumerate(wanted):
        if number == warm:
            outcome.before = resident()
        yield case
    outcome.after = resident()
    outcome.seconds = time.monotonic() - began


def in_process(seed: int, number: int) -> Outcome:
    """Through recognising, reading, parsing and rendering."""
    outcome = Outcome()
    for case in measured(outcome, cases(seed, number), number // 10):
        try:
            status, defect = tried(case)
        except Exception as error:  # what is looked for: anything but a CallError
            at = traceback.extract_tb(error.__traceback__)[-1]
            status, defect = 500, f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno} {at.name}: {error}"
        outcome.add(case, status, defect)
    return outcome


def tried(case: Case) -> tuple[int, str]:
    """The status that the case gets, and what is wrong with the answer. Raises what a provider raises."""
    found = recognise(case.request)
    provider = found[0] if found else speaker(case.request)
    try:
        if not found:
            raise CallError("not_found", f"no {case.request.path}")
        answer = answered(case, *found)
    except CallError as error:
        status, body = provider.error(error)
        return status, refusal_defect(provider, status, dumps(body))
    dumps(answer)
    return 200, ""


def answered(case: Case, provider: Provider, route: Route) -> Json | None:
    """As the proxy answers; a reply is rendered in the form that was asked for. Raises CallError."""
    if route.action == "fixed":
        return provider.fixed(case.request)
    if route.action == "models":
        return provider.models(route, CARDS)
    _, body = read_object(case.content, case.request.headers.get("content-encoding", ""), limit=LARGEST_BODY)
    ask = provider.parse(case.request, route, body)
    dumps([message_wire(message) for message in ask.chat.messages])
    dumps([tool_wire(tool) for tool in ask.chat.tools])
    if route.action == "count":
        return provider.count(ask, 42)
    if ask.stream:
        b"".join(
            (
                *provider.stream(ask, CALLED),
                provider.stream_error(ask, CallError("engine", "it failed"), Begun("id", 1), 1),
            )
        )
    provider.repairs(ask, CALLED)
    return provider.render(ask, CALLED)


def refusal_defect(provider: Provider, status: int, content: bytes) -> str:
    """What is wrong with an answer that is no 200; empty: nothing."""
    if not 400 <= status < 500:
        return f"{provider.NAME}: status {status}: {content[:200]!r}"
    if not in_form(provider, status, content):
        return f"{provider.NAME}: a {status} that is not in the provider's form: {content[:200]!r}"
    return ""


def in_form(provider: Provider, status: int, content: bytes) -> bool:
    try:
        body: Any = orjson.loads(content)
    except ValueError:
        return False
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not (isinstance(error.get("message"), str) and error["message"]):
        return False
    if provider is anthropic:
        return body.get("type") == "error" and isinstance(error.get("type"), str)
    if provider is google:
        return error.get("code") == status and isinstance(error.get("status"), str)
    return isinstance(error.get("type"), str) and "param" in error and "code" in error


async def through_proxy(on: Stage, seed: int, number: int) -> Outcome:
    """Through the base-URL port of a real proxy with a stand-in engine."""
    outcome = Outcome()
    left = measured(outcome, cases(seed, number), number // 10)

    async def work() -> None:
        for case in left:
            outcome.add(case, *await sent(on, case))
            on.fake.requests.clear()  # it keeps every body

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return outcome


async def sent(on: Stage, case: Case) -> tuple[int, str]:
    request = case.request
    key = {"right": on.session.token, "wrong": "sk-wrong"}.get(case.key)
    headers = {name: value.encode().decode("latin-1") for name, value in request.headers.items()}
    if key:
        name = {"anthropic": "x-api-key", "google": "x-goog-api-key"}.get(case.meant, "authorization")
        headers[name] = f"Bearer {key}" if name == "authorization" else key
    query = "&".join(f"{name}={value}" for name, value in request.query.items())
    url = URL(f"{on.base_url()}{request.path}?{query}", encoded=True)
    try:
        async with asyncio.timeout(LIMIT_S):
            async with on.http.request(request.method, url, data=case.content, headers=headers) as response:
                content = await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        return 0, f"no answer: {type(error).__name__}: {error}"
    if response.status == 200 or request.method == "HEAD":
        return response.status, "" if response.status < 500 else f"status {response.status}"
    # The form is that of the API of the path; where that is nobody's, of the one whose headers were sent.
    asked = Request(request.method, "127.0.0.1", request.path, request.query, headers)
    found = recognise(asked)
    return response.status, refusal_defect(found[0] if found else speaker(asked), response.status, content)


def table(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """How often each status was the answer, by provider: the columns and the rows."""
    statuses = sorted({status for _, status in outcome.statuses})
    names = sorted({name for name, _ in outcome.statuses})
    rows = [[name, *(f"{outcome.statuses[name, status]:,}" for status in statuses)] for name in names]
    return ["provider", *map(str, statuses)], rows


def told(title: str, outcome: Outcome) -> bool:
    """Print it; whether all is well."""
    show(f"{title}: {outcome.total:,} cases", *table(outcome))
    grown = f"{outcome.before / 2**20:.0f} MiB -> {outcome.after / 2**20:.0f} MiB"
    print(f"{outcome.seconds:.1f} s; resident {grown} (at most {MOST_GROWTH / 2**20:.0f} MiB more)")
    for defect, case in islice(outcome.defects.items(), SHOWN):
        print(f"\nDEFECT {defect}\n  {case}")
    return not outcome.defects and outcome.growth <= MOST_GROWTH


def main(number: int, sent_number: int, seed: int) -> int:
    logging.disable(logging.WARNING)  # one line for each refused request
    alone = in_process(seed, number)
    fine = told("In process", alone)

    async def proxied() -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            async with staged(Path(folder), Reply()) as on:
                return await through_proxy(on, seed + 1, sent_number)

    whole = asyncio.run(proxied())
    fine = told("Through the proxy", whole) and fine
    if fine and number >= PROMISED:
        publish(alone, whole)
    return 0 if fine else 1


def publish(alone: Outcome, whole: Outcome) -> None:
    """Write the section of docs/benchmarks.md."""
    text = (
        f"`make bench-fuzz`, on {machine()}: malformed requests over all endpoints. Each got an answer in its\n"
        "provider's form, and none a 5xx; how often each status was the answer:\n"
    )
    for where, outcome in (("in process", alone), ("through the real proxy", whole)):
        grown = f"{outcome.before / 2**20:.0f} MiB before and {outcome.after / 2**20:.0f} MiB after"
        text += f"\n{outcome.total:,} {where} (resident {grown}):\n\n{markdown(*table(outcome))}"
    write_section("Malformed requests", text)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*given, *(100_000, 4000, 1)[len(given) :]))
