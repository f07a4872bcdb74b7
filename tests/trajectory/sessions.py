"""Synthetic sessions: a harness and an engine in a few lines, which know what was really sampled in which context.

world = World()
talk = world.talk()                      # a conversation with a system and a user message
world.answer(talk, "All is well.")       # a call: the prompt is rendered, an answer sampled, its message appended
talk.user("Go on.")
world.answer(talk, "", tool="read", arguments='{"path":"a"}')
folder = world.write(tmp_path)           # session.json and calls.jsonl, as polar writes them
"""

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.log import CallLog, verify
from polar_mitm.capture.record import (
    Asked,
    Call,
    Checks,
    Delivery,
    EngineInfo,
    Failure,
    Identity,
    Kind,
    Origin,
    Response,
)
from tests.trajectory.template import END, Template

type Message = dict[str, Any]

READ = {"type": "function", "function": {"name": "read", "description": "", "parameters": {"type": "object"}}}
WRITE = {"type": "function", "function": {"name": "write", "description": "", "parameters": {"type": "object"}}}


@dataclass(slots=True)
class Talk:
    """A conversation, as the harness keeps it."""

    messages: list[Message]
    tools: list[Message] = field(default_factory=lambda: [READ])
    agent: str | None = None
    kind: Kind = "turn"

    def user(self, text: str) -> Self:
        self.messages.append({"role": "user", "content": text})
        return self

    def tool(self, text: str) -> Self:
        """The result of the last answer's first tool call."""
        call = self.messages[-1]["tool_calls"][0]
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        return self

    def copy(self, upto: int | None = None, **changes: Any) -> "Talk":
        """The same conversation, its first `upto` messages."""
        kept = {"tools": list(self.tools), "agent": self.agent, "kind": self.kind, **changes}
        return Talk(deepcopy(self.messages[:upto]), **kept)


class World:
    """A session in the making. `calls` holds its calls whole, which is the truth to hold a trajectory against."""

    def __init__(self, template: Template | None = None, session_id: str = "ses_1", **record: Any) -> None:
        self.template = template or Template()
        self.record: dict[str, Any] = {"status": "completed", "reward": 1.0, "task_id": "task", "sample": 0, **record}
        self.session_id = session_id
        self.calls: list[Call] = []
        self.clock = 100.0

    def __repr__(self) -> str:
        """A line a call, for a property that fails."""
        lines = [f"World {self.record['status']}, {self.template.spaced=}, {self.template.forgetful=}"]
        for call in self.calls:
            said = [message.get("content") or message.get("tool_calls") for message in call.request.messages]
            made = call.response and (call.response.text, call.response.response_ids, call.response.tool_calls)
            fate = (call.delivery.status, call.checks.invalid_reason, call.error and call.error.what)
            lines.append(f"{call.identity.call_id[-2:]} {call.origin.kind} {fate} {said} {call.prompt_ids} -> {made}")
        return "\n".join(lines)

    def talk(self, system: str = "Be brief.", user: str = "Look into it.", **changes: Any) -> Talk:
        return Talk([{"role": "system", "content": system}, {"role": "user", "content": user}], **changes)

    def answer(
        self,
        talk: Talk,
        text: str = "Done.",
        *,
        tool: str | None = None,
        arguments: str = "{}",
        reasoning: str = "",
        end: int | None = END,
        finish: str | None = None,
        spelled: bool = False,
        forced: tuple[tuple[int, int], ...] = (),
        delivery: str = "delivered",
        failure: str | None = None,
        ids: dict[str, str] | None = None,
        seconds: float = 1.0,
        sampling: dict[str, Any] | None = None,
        append: bool = True,
        **changes: Any,
    ) -> Call:
        """Sample this answer to the conversation and, if it arrives, append it there.

        `end` is the end of turn that was sampled, None when the answer was cut off. `spelled` samples the text letter
        by letter. `changes` go into the call: `prompt_ids`, `response_ids`, `logprobs`, `call_id`.
        """
        call_id = changes.pop("call_id", f"call_{len(self.calls):026x}")
        message: Message = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning"] = reasoning
        if tool:
            function = {"name": tool, "arguments": arguments}
            message["tool_calls"] = [{"id": f"{call_id}00", "type": "function", "function": function}]
        sampled = self.template.spell(text) if spelled else self.template.answer(message)
        sampled += [] if end is None else [end]
        response_ids = changes.pop("response_ids", sampled)
        finish = finish or ("length" if end is None else "tool_calls" if tool else "stop")
        call = self.call(
            call_id,
            talk,
            Response(
                text=text,
                reasoning=reasoning,
                tool_calls=message.get("tool_calls", []),
                response_ids=response_ids,
                logprobs=changes.pop("logprobs", [-0.01 * (n + 1) - len(self.calls) for n in range(len(response_ids))]),
                forced=list(forced),
                finish_reason=finish,
            ),
            prompt_ids=changes.pop("prompt_ids", None),
            delivery=delivery,
            failure=failure,
            ids=ids,
            seconds=seconds,
            sampling=sampling,
        )
        assert not changes, changes
        if append and delivery == "delivered" and failure is None:
            talk.messages.append(deepcopy(message))
        return call

    def call(
        self,
        call_id: str,
        talk: Talk,
        response: Response | None,
        *,
        prompt_ids: list[int] | None = None,
        delivery: str = "delivered",
        failure: str | None = None,
        ids: dict[str, str] | None = None,
        kind_reason: str = "",
        seconds: float = 1.0,
        sampling: dict[str, Any] | None = None,
    ) -> Call:
        """Add a call as it is. It starts a second after the one before, and takes `seconds`."""
        self.clock += 1.0
        agent = {"x-claude-code-agent-id": talk.agent} if talk.agent else {}
        call = Call(
            identity=Identity(
                session_id=self.session_id,
                call_id=call_id,
                task_id=self.record["task_id"],
                started_at=self.clock,
                finished_at=self.clock + seconds,
            ),
            origin=Origin(
                provider="openai-chat",
                path="/v1/chat/completions",
                streamed=False,
                harness_ids={**agent, **(ids or {})},
                kind=talk.kind,
                kind_reason=kind_reason,
            ),
            request=Asked(
                messages=deepcopy(talk.messages),
                tools=list(talk.tools),
                sampling_sent=sampling or {"temperature": 1.0},
            ),
            engine=EngineInfo(model="tiny", policy_version="v1") if response else None,
            prompt_ids=self.template.render(talk.messages, talk.tools) if prompt_ids is None else prompt_ids,
            response=response,
            checks=Checks(valid=True),
            delivery=Delivery.model_validate({"status": delivery}),
            error=Failure(what=failure, kind="engine", fault="engine") if failure else None,
        )
        call.checks = verify(call)
        self.calls.append(call)
        return call

    def repeat(self, talk: Talk, original: Call, *, delivery: str = "delivered") -> Call:
        """A marked retry of a call that was sampled: it gets that call's answer, and samples nothing."""
        name = original.identity.call_id
        again = talk.copy(kind="retry")
        reason = f"repeats {name}: x-stainless-retry-count"
        call = self.call(f"{name}_retry", again, None, prompt_ids=[], delivery=delivery, kind_reason=reason)
        call.checks = Checks(valid=False, invalid_reason=f"answered from {name}")
        return call

    @property
    def sampled(self) -> int:
        return sum(len(call.response.response_ids) for call in self.calls if call.response)

    def write(self, out: Path) -> Path:
        """The session's folder below `out`, calls in the order in which they ended."""
        folder = SessionFolder.create(out, self.session_id)
        with CallLog(folder.calls, durability="none") as log:
            for call in sorted(self.calls, key=lambda call: call.identity.finished_at):
                log.append(call)
            counts = {
                "calls": log.calls,
                "prompt_tokens": log.prompt_tokens,
                "response_tokens": log.response_tokens,
            }
        folder.write(
            SessionRecord.model_validate(
                {"session_id": self.session_id, "started_at": 100.0, "finished_at": 9e9, **counts, **self.record}
            )
        )
        return folder.path
