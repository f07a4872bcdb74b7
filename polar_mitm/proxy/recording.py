"""The record of a call: drafted when the request is read, filled in when the engine has answered."""

import time
from dataclasses import asdict
from typing import Any

from polar_mitm.capture.log import verify
from polar_mitm.capture.record import (
    Asked,
    Built,
    Call,
    Checks,
    Delivery,
    EngineInfo,
    Identity,
    Lost,
    Origin,
    Response,
)
from polar_mitm.capture.session import new_call_id
from polar_mitm.chat import ChatRequest, NotCarried, ToolCall, message_wire, tool_wire
from polar_mitm.engine.client import Sample
from polar_mitm.providers import Ask, Provider, Request
from polar_mitm.proxy.chains import Reading
from polar_mitm.proxy.sessions import Session


def draft(session: Session, provider: Provider, request: Request, ask: Ask) -> Call:
    """The record of a call that has no answer yet."""
    now = time.time()
    return Call(
        identity=Identity(
            session_id=session.id, call_id=new_call_id(), started_at=now, finished_at=now, **session.identity
        ),
        origin=Origin(
            provider=provider.NAME,
            path=request.path,
            streamed=ask.stream,
            harness_ids=_harness_ids(provider, request, ask),
        ),
        request=Asked(
            messages=[message_wire(message) for message in ask.chat.messages],
            tools=[tool_wire(tool) for tool in ask.chat.tools],
            sampling_asked=_asked(ask.chat),
            not_carried=_lost(ask.chat.not_carried),
        ),
        checks=Checks(valid=False, invalid_reason="the engine gave no answer"),
        delivery=Delivery(status="aborted"),
    )


def fill(call: Call, sample: Sample, session: Session, reading: Reading | None) -> None:
    """Write down what was sampled, whether it is an answer or not."""
    capabilities = sample.engine or session.engine.capabilities
    call.request.messages = sample.request_messages
    call.request.tools = sample.request_tools
    call.request.sampling_sent = sample.sampling_sent
    call.request.not_carried += _lost(sample.not_carried)
    call.engine = EngineInfo(
        url=capabilities.url,
        model=capabilities.model,
        engine_version=capabilities.engine_version,
        policy_version=sample.policy_version,
        logprobs_mode=capabilities.logprobs_mode,
        template_hash=capabilities.template_hash,
        tokenizer_hash=capabilities.tokenizer_hash,
        tokens=sample.tokens,
    )
    call.prompt_ids = sample.prompt_ids
    if session.tokens == "exact":
        call.built = _built(sample, reading)
    if reading and reading.parent:
        call.parent_call_id = reading.parent
    calls = minted(call, sample)
    call.response = Response(
        text=sample.text,
        reasoning=sample.reasoning,
        tool_calls=[
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
        ],
        response_ids=sample.response_ids,
        logprobs=sample.logprobs,
        forced=sample.forced,
        finish_reason=sample.finish_reason,
        weight_versions=sample.weight_versions,
    )
    call.checks = verify(call)
    call.checks.decode_matches_text = sample.decode_matches_text
    if sample.invalid_reason:
        call.checks.valid, call.checks.invalid_reason = False, sample.invalid_reason


def minted(call: Call, sample: Sample) -> tuple[ToolCall, ...]:
    """The sampled tool calls under ids of our own, the same in the answer, the record and later histories."""
    return tuple(
        ToolCall(f"{call.identity.call_id}{index:02d}", made.name, made.arguments)
        for index, made in enumerate(sample.tool_calls)
    )


def _asked(chat: ChatRequest) -> dict[str, Any]:
    """What the client said of sampling and tool choice; what it left out is left out."""
    asked = {name: value for name, value in asdict(chat.sampling).items() if value not in (None, ())}
    if chat.tool_choice.mode != "auto":
        asked["tool_choice"] = chat.tool_choice.name or chat.tool_choice.mode
    if chat.parallel_tool_calls is not None:
        asked["parallel_tool_calls"] = chat.parallel_tool_calls
    if chat.json_schema is not None:
        asked["json_schema"] = chat.json_schema
    if chat.choices:
        asked["choices"] = list(chat.choices)
    return asked


def _harness_ids(provider: Provider, request: Request, ask: Ask) -> dict[str, str]:
    headers = {name: request.headers[name] for name in provider.SESSION_HEADERS if name in request.headers}
    return {**headers, **ask.harness_ids}


def _lost(items: tuple[NotCarried, ...]) -> list[Lost]:
    return [Lost(field=item.field, why=item.why, times=item.times) for item in items]


def _built(sample: Sample, reading: Reading | None) -> Built:
    reply = reading.reply if reading and sample.built_ids else None
    broken, why = sample.broken, sample.why
    if broken is None and reading:
        broken, why = reading.broken, reading.why
    return Built(from_call_id=reply.call_id if reply else None, ids=sample.built_ids, broken=broken, why=why)
