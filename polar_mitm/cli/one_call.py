"""One captured call, for a person: what was asked, what of it the model was given, and what it sampled."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from polar_mitm.capture.record import Call
from polar_mitm.cli.coloured import context, legend, sampled, token_table
from polar_mitm.cli.vocabularies import Known
from polar_mitm.json_text import dumps
from polar_mitm.proxy.view import built
from polar_mitm.rollout.outcome import mean_logprob
from polar_mitm.tokens.pieces import spelled, visible

SHOWN = 400
"""Characters of a message that are shown, the most at its end left out."""


def show_call(console: Console, call: Call, place: str, known: Known, *, full: bool, tokens: bool) -> None:
    """Print it. `place` says which of the session's calls it is; `full` leaves nothing out."""
    for title, body in _parts(call, place, known, full=full, tokens=tokens):
        console.print(Text(visible(title), style="bold"), soft_wrap=True)
        console.print(body, soft_wrap=isinstance(body, Text))
        console.print()
    if call.response and not tokens:
        console.print(legend(), soft_wrap=True)
    console.print(Text(visible(known.note), style="dim"), soft_wrap=True)


def call_json(call: Call, known: Known) -> dict[str, Any]:
    """The record, whole, and each sampled token with its text."""
    response = call.response
    tokens = [
        {
            "id": token_id,
            "text": spelled(known.vocabulary.bytes_of(token_id)) if known.vocabulary else None,
            "logprob": response.logprobs[place] if place < len(response.logprobs) else None,
            "forced": any(start <= place < end for start, end in response.forced),
        }
        for place, token_id in enumerate(response.response_ids if response else [])
        if response
    ]
    return {**call.model_dump(mode="json"), "tokens": tokens}


def _parts(call: Call, place: str, known: Known, *, full: bool, tokens: bool) -> Iterator[tuple[str, RenderableType]]:
    yield place, _facts(call)
    if call.request.not_carried:
        lost = {item.field: item.why for item in call.request.not_carried}
        yield "the model was not given", _pairs(lost)
    if call.request.tools:
        yield f"tools offered: {len(call.request.tools)}", _tools(call.request.tools, full=full)
    yield f"messages: {len(call.request.messages)}", _messages(call.request.messages, full=full)
    if call.prompt_ids:
        yield (
            f"prompt: {len(call.prompt_ids):,} tokens{_prefix(call)}",
            context(call.prompt_ids, known.vocabulary, full=full),
        )
    if response := call.response:
        of = (response.response_ids, response.logprobs, response.forced, known.vocabulary)
        yield _response_title(call), token_table(*of) if tokens else sampled(*of)
        if response.tool_calls:
            called = {tool["function"]["name"]: tool["function"]["arguments"] for tool in response.tool_calls}
            yield "tool calls, as the harness got them", _pairs(called)


def _facts(call: Call) -> Padding:
    identity, origin, engine = call.identity, call.origin, call.engine
    harness = " ".join(filter(None, [identity.harness, identity.harness_version])) or "any harness"
    began = datetime.fromtimestamp(identity.started_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    facts = {
        "session": identity.session_id,
        "asked by": f"{harness}, {origin.provider} {origin.path}{', streamed' if origin.streamed else ''}",
        "kind": origin.kind + (f" ({origin.kind_reason})" if origin.kind_reason else ""),
        "time": f"{began}, {identity.finished_at - identity.started_at:.1f} s",
        "engine": _engine(call) if engine else "it gave no answer",
        "prompt": built(call),
        "asked": _values(call.request.sampling_asked),
        "sent": _values(call.request.sampling_sent),
        "record": "valid" if call.checks.valid else f"not valid: {call.checks.invalid_reason}; never trained on",
        "delivery": f"{call.delivery.status}, {call.delivery.bytes_sent:,} bytes",
    }
    if call.checks.decode_matches_text is False:
        facts["record"] += "; its tokens do not hold the text that the harness got"
    if call.response and call.response.repairs:
        facts["repaired"] = "for the harness only: " + "; ".join(call.response.repairs)
    if call.error:
        facts["error"] = f"{call.error.fault}: {call.error.what} (told the client {call.error.status or 'nothing'})"
    return _pairs({"call": identity.call_id, **facts})


def _engine(call: Call) -> str:
    assert call.engine
    parts = [call.engine.model]
    if call.engine.engine_version:
        parts.append(f"vLLM {call.engine.engine_version}")
    if call.engine.policy_version:
        parts.append(f"policy {call.engine.policy_version}")
    return ", ".join([*parts, call.engine.logprobs_mode or "kind of logprobs unknown"])


def _prefix(call: Call) -> str:
    match call.checks.prefix:
        case "extends":
            return f", of which the first {call.checks.common_prefix_len:,} are {call.parent_call_id}'s"
        case "diverges":
            return f"; it leaves {call.parent_call_id} after {call.checks.common_prefix_len:,}"
    return ""


def _response_title(call: Call) -> str:
    response = call.response
    assert response
    mean = mean_logprob([call])
    told = f", told the harness as {response.stop_reason}" if response.stop_reason else ""
    chosen = "" if mean is None else f", mean logprob {mean:.2f}"
    return f"sampled: {len(response.response_ids):,} tokens{chosen}; finish {response.finish_reason}{told}"


def _tools(tools: list[dict[str, Any]], *, full: bool) -> RenderableType:
    functions = [tool.get("function", tool) for tool in tools]
    if not full:
        return Padding(Text(visible(", ".join(str(function.get("name")) for function in functions))), (0, 0, 0, 2))
    return Group(*(_pairs({str(f.get("name")): _dumped({k: f[k] for k in f if k != "name"})}) for f in functions))


def _messages(messages: list[dict[str, Any]], *, full: bool) -> RenderableType:
    return Group(*(_message(message, full=full) for message in messages))


def _message(message: Mapping[str, Any], *, full: bool) -> RenderableType:
    parts = [_content(message.get("content"))]
    if message.get("reasoning"):
        parts.insert(0, f"(thinking) {message['reasoning']}")
    parts += [f"{tool['function']['name']} {tool['function']['arguments']}" for tool in message.get("tool_calls") or []]
    said = "\n".join(part for part in parts if part)
    if not full and len(said) > SHOWN:
        said = f"{said[:SHOWN]} … {len(said) - SHOWN:,} characters"
    return _pairs({str(message.get("role")): said})


def _content(content: object) -> str:
    """Text as it is, anything else as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(part["text"] if set(part) == {"type", "text"} else _dumped(part) for part in content)
    return _dumped(content)


def _pairs(values: Mapping[str, str]) -> Padding:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="cyan", min_width=9)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(Text(visible(name).replace("\n", " ")), Text(visible(value).replace("↵\n", "\n")))
    return Padding(table, (0, 0, 0, 2))


def _values(values: Mapping[str, Any]) -> str:
    if not values:
        return "nothing of sampling"
    return ", ".join(f"{name}={value if isinstance(value, str) else _dumped(value)}" for name, value in values.items())


def _dumped(value: object) -> str:
    return dumps(value).decode()
