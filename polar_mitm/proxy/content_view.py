"""The content view `Polar tokens`: what a flow of polar's was, as text. mitmweb, the console and mitmdump show it.

On the request: what the harness sent, its Chat form, and what of it the model was not given. On the response: the
tokens that the model sampled, with their log-probabilities.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from mitmproxy.contentviews import Contentview, Metadata, SyntaxHighlight
from mitmproxy.http import HTTPFlow

from polar_mitm import json_text
from polar_mitm.capture.record import Call, Response
from polar_mitm.proxy.view import RECORD, TOKENS, built, recorded
from polar_mitm.tokens.find import find_vocabulary
from polar_mitm.tokens.pieces import level, spelled, text_of, visible
from polar_mitm.tokens.vocabulary import Vocabulary

BARS = ("█", "▆", "▄", "▂", "▁")
"""By level of log-probability: there are no colours in a content view."""
TAIL = 300
"""Tokens of a prompt's end that are shown."""


class TokensView(Contentview):
    @property
    def name(self) -> str:
        return "Polar tokens"

    @property
    def syntax_highlight(self) -> SyntaxHighlight:
        return "yaml"

    def __init__(self) -> None:
        self._vocabularies: dict[str, Vocabulary | None] = {}

    def render_priority(self, data: bytes, metadata: Metadata) -> float:
        """The default of flows that carry a call's record; out of the way of all others."""
        return 100 if metadata.flow and RECORD in metadata.flow.metadata else -1

    def prettify(self, data: bytes, metadata: Metadata) -> str:
        """Raises ValueError for a flow that carries no record."""
        flow = metadata.flow
        if not isinstance(flow, HTTPFlow) or (call := recorded(flow)) is None:
            raise ValueError("this is no call of polar's")
        if metadata.http_message is flow.request:
            return "\n".join([f"call: {visible(flow.comment)}", *_asked(call, data)])
        return "\n".join([f"call: {visible(flow.comment)}", *_answered(call, _texts(flow), self._vocabulary(call))])

    def _vocabulary(self, call: Call) -> Vocabulary | None:
        model = call.engine.model if call.engine else ""
        if model not in self._vocabularies:
            self._vocabularies[model] = find_vocabulary(model)
        return self._vocabularies[model]


def _asked(call: Call, data: bytes) -> Iterator[str]:
    origin, request = call.origin, call.request
    yield f"kind: {origin.kind}{f' ({visible(origin.kind_reason)})' if origin.kind_reason else ''}"
    yield f"asked: {_dumped(request.sampling_asked)}"
    yield f"sent: {_dumped(request.sampling_sent)}"
    yield from _lost(call)
    yield f"\n# Chat form: {len(request.messages)} messages, {len(request.tools)} tools\nmessages:"
    for message in request.messages:
        yield from _message(message)
    yield f"tools:{'' if request.tools else ' none'}"
    for tool in request.tools:
        function = tool.get("function", tool)
        yield f"  - {visible(str(function.get('name')))}: {_dumped(function.get('parameters'))}"
    yield f"\n# original request, {origin.provider} {visible(origin.path)}"
    yield visible(_indented(data)).replace("↵\n", "\n")


def _answered(call: Call, texts: list[str] | None, vocabulary: Vocabulary | None) -> Iterator[str]:
    valid = "yes" if call.checks.valid else f"no, never trained on: {visible(call.checks.invalid_reason or '')}"
    yield f"valid: {valid}"
    yield f"prompt: {visible(built(call))}"
    if call.error:
        yield f"error: {call.error.fault}: {visible(call.error.what)}"
    yield from _lost(call)
    if response := call.response:
        told = f", told the harness as {visible(response.stop_reason)}" if response.stop_reason else ""
        yield f"finish: {visible(response.finish_reason)}{told}"
        yield from _sampled(response, _spelled(response, texts, vocabulary))
    if call.prompt_ids:
        yield f"\n# the end of the prompt, of {len(call.prompt_ids)} tokens"
        yield visible(text_of(call.prompt_ids[-TAIL:], vocabulary)).replace("↵\n", "\n")


def _spelled(response: Response, texts: list[str] | None, vocabulary: Vocabulary | None) -> list[str]:
    """Each token's text: by the model's tokenizer, else as the engine told it, else its id."""
    if vocabulary:
        return [spelled(vocabulary.bytes_of(token_id)) for token_id in response.response_ids]
    if texts and len(texts) == len(response.response_ids):
        return texts
    return [f"⟨{token_id}⟩" for token_id in response.response_ids]


def _sampled(response: Response, texts: Sequence[str]) -> Iterator[str]:
    yield f"\n# sampled: {len(response.response_ids)} tokens"
    yield visible("".join(texts)).replace("↵\n", "\n")
    yield f"\n# place      id  logprob      token ({BARS[0]} sure … {BARS[-1]} surprising)"
    for place, (token_id, text) in enumerate(zip(response.response_ids, texts, strict=True)):
        logprob = response.logprobs[place] if place < len(response.logprobs) else float("nan")
        held = level(logprob)
        forced = " forced" if any(start <= place < end for start, end in response.forced) else ""
        bar = " " if held is None else BARS[held]
        yield f"{place:7} {token_id:7}  {logprob:7.3f}  {bar}{forced}  {_dumped(text)}"


def _lost(call: Call) -> Iterator[str]:
    lost = call.request.not_carried
    yield f"the model was not given:{'' if lost else ' nothing is missing'}"
    for item in lost:
        yield f"  {visible(item.field)}: {visible(item.why)}"


def _message(message: dict[str, Any]) -> Iterator[str]:
    said = {name: value for name, value in message.items() if name != "role"}
    yield f"  - {visible(str(message.get('role')))}:"
    for name, value in said.items():
        if isinstance(value, str):
            lines = visible(value).replace("↵\n", "\n").splitlines()
            yield f"      {visible(name)}: |"
            yield from (f"        {line}" for line in lines)
        else:
            yield f"      {visible(name)}: {_dumped(value)}"


def _texts(flow: HTTPFlow) -> list[str] | None:
    try:
        texts = orjson.loads(flow.metadata.get(TOKENS, ""))
    except orjson.JSONDecodeError:
        return None
    return texts if isinstance(texts, list) and all(isinstance(text, str) for text in texts) else None


def _indented(data: bytes) -> str:
    try:
        return json_text.dumps(json_text.loads(data), indent=True).decode()
    except ValueError:
        return data.decode(errors="replace")


def _dumped(value: object) -> str:
    return visible(json_text.dumps(value).decode())
