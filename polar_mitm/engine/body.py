"""A Chat request as the JSON body that vLLM is sent. Pure; `client` sends it and `sample` reads the answer.

The rule behind the details: a grammar masks the sampler, and vLLM's log-probabilities under a mask are not the
policy's own. So nothing here turns a grammar on unless the answer's form is forced, and then the answer is marked so.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from polar_mitm.chat import (
    ChatRequest,
    Image,
    Json,
    Message,
    NotCarried,
    Part,
    Sampling,
    Text,
    Thinking,
    Tool,
    ToolResult,
    User,
    message_wire,
    tool_wire,
)

IMAGE_PLACEHOLDER: Final = "[image left out: the served model takes text only]"
TOKEN_DATA: Final[Json] = {
    "stream": False,
    "logprobs": True,
    "return_token_ids": True,
    # Token text becomes `token_id:17`, so that log-probabilities can be held against ids; the bytes stay (vLLM 0.32).
    "return_tokens_as_token_ids": True,
}
NOT_SAMPLING: Final = frozenset({"model", "messages", "tools", *TOKEN_DATA})
"""Body fields that say no more than what is asked and of whom; all others are how the answer is sampled."""
_NOT_TO_OVERRIDE: Final = NOT_SAMPLING | {"n", "tool_choice", "structured_outputs", "response_format", "top_logprobs"}

_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
"""The words that vLLM's `reasoning_effort` takes (0.32); it refuses the request for any other."""

_SEED: Final = NotCarried(
    "seed",
    "never sent: samples of one task must differ, and a seed on a long prompt ends vLLM's CPU engine",
)
_ARGUMENTS: Final = "messages.*.tool_calls.*.function.arguments"

_BUDGET: Final = NotCarried(
    "thinking.budget",
    "vLLM enforces it by putting in the end of the thinking itself: tokens that the model did not sample",
)


@dataclass(slots=True, frozen=True)
class Outgoing:
    """What is to be posted. `forced` says that a grammar will hold the whole answer."""

    body: Json
    forced: bool
    not_carried: tuple[NotCarried, ...]
    asked_max_tokens: int | None
    """Before any clamping."""

    @property
    def sampling(self) -> Json:
        return {key: value for key, value in self.body.items() if key not in NOT_SAMPLING}

    @property
    def max_tokens(self) -> int | None:
        value = self.body.get("max_tokens")
        return value if isinstance(value, int) else None

    @property
    def prompt(self) -> Json:
        """What the prompt is rendered from, as vLLM's /tokenize takes it, which knows no `reasoning_effort`."""
        prompt: Json = {key: self.body[key] for key in ("model", "messages", "tools") if key in self.body}
        template: Json = {}
        if effort := self.body.get("reasoning_effort"):
            # As vLLM's chat route hands it to the template (protocol.build_chat_params).
            template = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        template |= self.body.get("chat_template_kwargs", {})
        return {**prompt, "chat_template_kwargs": template} if template else prompt

    @property
    def stops(self) -> list[str]:
        """Strings that end the answer."""
        stops = self.body.get("stop") or []
        return [stops] if isinstance(stops, str) else stops

    def with_stops(self, most: int) -> "Outgoing":
        """The same with the first so many stop strings; the others are noted."""
        rest = len(self.stops) - most
        if rest <= 0:
            return self
        why = f"the engine takes {most} (VLLM_MAX_STOP_STRINGS): the last {rest} were not sent"
        body = {**self.body, "stop": self.stops[:most]}
        return replace(self, body=body, not_carried=(*self.not_carried, NotCarried("stop", why)))

    def within(self, tokens: int | None) -> "Outgoing":
        """The same, asking for no more tokens than this; None is no limit."""
        if tokens is None or self.max_tokens is None or self.max_tokens <= tokens:
            return self
        return replace(self, body={**self.body, "max_tokens": tokens})


def compose(
    request: ChatRequest,
    *,
    model: str,
    overrides: Mapping[str, Any],
    force_regex: str | None = None,
    tool_choice_none: bool = False,
    text_only: bool = False,
) -> Outgoing:
    """The body for this request. ValueError when `overrides` would replace what is not sampling."""
    lost: list[NotCarried] = []
    body: Json = {"model": model, "messages": _messages(request, text_only, lost), **TOKEN_DATA}
    forced = _answer_form(request, body, force_regex, tool_choice_none, lost)
    if request.tools:
        body["tools"] = _tools(request.tools, body["tool_choice"], lost)
    _thinking(request.thinking, body, lost)
    _sampling(request.sampling, overrides, body, lost)
    return Outgoing(body, forced, tuple(lost), body.get("max_tokens"))


def has_images(request: ChatRequest) -> bool:
    return any(_image_count(message) for message in request.messages)


def _messages(request: ChatRequest, text_only: bool, lost: list[NotCarried]) -> list[Json]:
    images = sum(_image_count(message) for message in request.messages)
    if images and text_only:
        lost.append(NotCarried("images", f"{images} replaced by a line of text: the served model takes text only"))
        messages = [message_wire(_without_images(message)) for message in request.messages]
    else:
        messages = [message_wire(message) for message in request.messages]
    faults = {_mend_call(call) for message in messages for call in message.get("tool_calls", ())} - {None}
    lost.extend(NotCarried(_ARGUMENTS, str(fault)) for fault in sorted(filter(None, faults)))
    return messages


def _mend_call(call: Json) -> str | None:
    """Give a call of the history arguments that every vLLM can render; what was lost by that, None when nothing was.

    A template takes the arguments as an object. vLLM 0.32 puts {} where the text is none, older releases refuse the
    request, and a model that once wrote such a call would never get past it.
    """
    function, said = call["function"], call["function"]["arguments"]
    if said.strip() in ("", "null"):
        function["arguments"] = "{}"
        return None
    try:
        if isinstance(orjson.loads(said), dict):
            return None
    except orjson.JSONDecodeError:
        pass  # there is more that Python's reader, and so vLLM, takes for JSON
    try:
        value = json.loads(said)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        function["arguments"] = "{}"
        return "no JSON object: the model is shown {} in its place"
    text = json.dumps(value, ensure_ascii=False)
    if (whole := text.encode(errors="replace").decode()) != text:
        function["arguments"] = whole
        return "half of a character has no UTF-8 form: the model is shown ? in its place"
    return None


def _image_count(message: Message) -> int:
    match message:
        case User(parts=parts) | ToolResult(parts=parts):
            return sum(isinstance(part, Image) for part in parts)
        case _:
            return 0


def _without_images(message: Message) -> Message:
    match message:
        case User() | ToolResult():
            return replace(message, parts=tuple(_as_text(part) for part in message.parts))
        case _:
            return message


def _as_text(part: Part) -> Text:
    return part if isinstance(part, Text) else Text(IMAGE_PLACEHOLDER)


def _answer_form(
    request: ChatRequest, body: Json, force_regex: str | None, tool_choice_none: bool, lost: list[NotCarried]
) -> bool:
    """Put in what fixes the answer's form; True when a grammar will hold the whole of it.

    The strongest word wins: a script's regex, then a choice that forces a call, then a schema of the text.
    """
    choice: str | Json = request.tool_choice.mode
    if request.tool_choice.mode == "named":
        choice = {"type": "function", "function": {"name": request.tool_choice.name}}
    if force_regex is not None:
        body["structured_outputs"] = {"regex": force_regex}
        choice = _instead(choice, "auto", "a script fixes this turn", lost)
    elif tool_choice_none:
        choice = _instead(choice, "none", "the session lets the model call no tool in this turn", lost)
    if request.tools:
        body["tool_choice"] = choice
    elif choice not in ("auto", "none"):
        lost.append(NotCarried("tool_choice", "a call cannot be forced without tools"))
        choice = "auto"

    calls_forced = choice not in ("auto", "none")
    if calls_forced and request.parallel_tool_calls is False and request.tools:
        # Where a call is not forced, vLLM (0.32, abstract_parser) would keep to one by a grammar over its envelope.
        body["parallel_tool_calls"] = False
    text_held = _text_form(request, body, calls_forced, force_regex, lost)
    return force_regex is not None or calls_forced or text_held


def _instead(asked: str | Json, sent: str, why: str, lost: list[NotCarried]) -> str:
    if asked not in ("auto", sent):
        lost.append(NotCarried("tool_choice", f"{sent} was sent: {why}"))
    return sent


def _text_form(
    request: ChatRequest, body: Json, calls_forced: bool, force_regex: str | None, lost: list[NotCarried]
) -> bool:
    if request.json_schema is None and not request.choices:
        return False
    if force_regex is not None or calls_forced:
        why = "a script fixes this turn" if force_regex is not None else "the forced tool call leaves no room for it"
        lost.append(NotCarried("choices" if request.choices else "json_schema", why))
        return False
    if request.choices:
        body["structured_outputs"] = {"choice": list(request.choices)}
    elif request.json_schema:
        schema = {"name": "answer", "schema": request.json_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    else:
        body["response_format"] = {"type": "json_object"}
    if request.tools and body["tool_choice"] == "auto":
        lost.append(NotCarried("tools", "shown but not callable: the engine's grammar for the answer bars a call"))
    return True


def _tools(tools: tuple[Tool, ...], choice: str | Json, lost: list[NotCarried]) -> list[Json]:
    """`strict` goes out only where the call is forced anyway; there it makes vLLM enforce the arguments' schema.

    With an open choice it would turn the grammar on for every call, and most chat templates print it into the prompt.
    """
    forced = choice not in ("auto", "none")
    strict = [tool.name for tool in tools if tool.strict]
    if strict and choice == "auto":
        why = "vLLM enforces it by a grammar, which would falsify the log-probabilities"
        lost.append(NotCarried("tools.strict", f"{why} (asked for {', '.join(strict)})"))
    return [tool_wire(tool if forced and tool.strict else replace(tool, strict=None)) for tool in tools]


def _thinking(asked: Thinking, body: Json, lost: list[NotCarried]) -> None:
    """The switches of the chat template; one that its template does not know, vLLM leaves out without a word.

    Where the client said nothing, nothing is sent: the template's own default holds.
    """
    template: Json = {}
    if asked.enabled is not None:
        template["enable_thinking"] = asked.enabled
    if asked.effort in _EFFORTS:
        body["reasoning_effort"] = asked.effort
    elif asked.effort:
        template["reasoning_effort"] = asked.effort
    if template:
        body["chat_template_kwargs"] = template
    if asked.budget is not None:
        lost.append(_BUDGET)


def _sampling(asked: Sampling, overrides: Mapping[str, Any], body: Json, lost: list[NotCarried]) -> None:
    if misplaced := sorted(_NOT_TO_OVERRIDE & overrides.keys()):
        raise ValueError(f"not a sampling field: {', '.join(misplaced)}")
    if asked.seed is not None or "seed" in overrides:
        lost.append(_SEED)
    body.update(_asked(asked))
    for key, value in overrides.items():
        if key == "seed":
            continue
        if key in body and body[key] != value:
            lost.append(NotCarried(key, f"the session's sampling policy sends {value} in place of {body[key]}"))
        body[key] = value
    if body.get("top_k") == 0:
        # Some APIs say 0 for "no limit"; vLLM's word is -1.
        body["top_k"] = -1
    if body.get("top_p") == 0:
        # vLLM refuses it; to every API it means the likeliest token alone.
        del body["top_p"]
        body["top_k"] = 1


def _asked(sampling: Sampling) -> Json:
    said: Json = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": list(sampling.stop) or None,
    }
    return {key: value for key, value in said.items() if value is not None}
