"""What the token routes answered, as the chat completion that the chat route would have given for it. Pure.

Two things the route that parses does not do: it neither leaves out the token that ended the reply, nor cuts the text
before a stop string. So it is given the ids of the text alone.
"""

from typing import Final

from pydantic import BaseModel, Field, ValidationError

from polar_mitm.chat import Json
from polar_mitm.engine.sample import Completion, pieces_of

type Spans = list[tuple[int, int, str]]
"""Half-open spans of the response's ids, and the version of the weights that sampled them."""

_ENDED: Final = "stop"


class _Span(BaseModel):
    version: str
    start: int
    end: int


class _Choice(BaseModel):
    text: str
    """Without the token that ended the reply, and cut before a stop string."""
    token_ids: list[int] | None = None
    logprobs: object = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    weight_versions: list[_Span] | None = None


class Generated(BaseModel):
    """The parts of the generate route's answer that polar reads."""

    request_id: str = ""
    choices: list[_Choice] = Field(min_length=1)
    usage: Json = {}
    prompt_token_ids: object = None

    @property
    def choice(self) -> _Choice:
        return self.choices[0]

    @property
    def ids(self) -> list[int]:
        return self.choice.token_ids or []

    @property
    def ended(self) -> bool:
        """Whether the model ended its reply with a token of its own, the last one."""
        choice = self.choice
        return choice.finish_reason == _ENDED and not isinstance(choice.stop_reason, str) and bool(self.ids)

    @property
    def weight_versions(self) -> Spans:
        return [(span.start, span.end, span.version) for span in self.choice.weight_versions or []]


class Derendered(BaseModel):
    class _Choice(BaseModel):
        message: Json

    choices: list[_Choice] = Field(min_length=1)


def shown_ids(generated: Generated) -> tuple[list[int], str]:
    """The ids that the text consists of, and the end of it that is but a part of a token.

    Tokens that the text leaves out: the one that ended the reply, special ones where the request has them left out,
    and those of a stop string, of which one may begin with the end of the text.
    """
    choice = generated.choice
    kept: list[int] = []
    at = 0
    for token_id, piece in zip(generated.ids, pieces_of(choice.logprobs) or [], strict=False):
        if choice.text.startswith(piece, at):
            kept.append(token_id)
            at += len(piece)
    if at == len(choice.text) or isinstance(choice.stop_reason, str):
        return kept, choice.text[at:]
    # Tokens that read otherwise alone than in the text, as with a tokenizer that marks words by their leading blank.
    return generated.ids[:-1] if generated.ended else generated.ids, ""


def with_rest(message: Json, rest: str) -> Json:
    """The parsed message with the end of its text that no whole token holds. Behind calls there is no text."""
    if not rest or message.get("tool_calls"):
        return message
    part = "reasoning" if message.get("reasoning") and not message.get("content") else "content"
    return {**message, part: (message.get(part) or "") + rest}


def completion_from(generated: Generated, message: Json, tool_choice: object) -> Completion:
    """`tool_choice` as the chat route was asked. ValueError when the message is none."""
    choice = generated.choice
    finish = choice.finish_reason
    # The chat route's words (chat_completion_full_generator).
    if (tool_choice == "auto" and message.get("tool_calls")) or (tool_choice == "required" and finish == _ENDED):
        finish = "tool_calls"
    usage = generated.usage
    if reasoning := message.get("reasoning"):
        usage = {**usage, "completion_tokens_details": {"reasoning_tokens": _tokens_of(str(reasoning), generated)}}
    try:
        return Completion.model_validate(
            {
                "choices": [
                    {
                        "message": message,
                        "finish_reason": finish,
                        "stop_reason": choice.stop_reason,
                        "token_ids": choice.token_ids,
                        "logprobs": choice.logprobs,
                    }
                ],
                "usage": usage or None,
                "prompt_token_ids": generated.prompt_token_ids,
            }
        )
    except ValidationError as error:
        raise ValueError(str(error)) from error


def _tokens_of(part: str, generated: Generated) -> int:
    """How many tokens hold a letter of this part of the text."""
    choice = generated.choice
    begin = choice.text.find(part)
    if begin < 0:
        return 0
    count = at = 0
    for piece in pieces_of(choice.logprobs) or []:
        if at < begin + len(part) and at + len(piece) > begin:
            count += 1
        at += len(piece)
    return count
