"""Compaction in the Responses API: a conversation is exchanged for a summary that the model itself writes.

Asked for at `.../responses/compact`, or by a `compaction_trigger` as the last input item. The summary goes out sealed
and comes back as a user's text. A harness that asks for a summary by an ordinary message is not seen here.
"""

import orjson

from polar_mitm.chat import ChatReply, Json, Text, User
from polar_mitm.providers.base import Request
from polar_mitm.providers.fields import Fields
from polar_mitm.providers.openai_responses_seal import seal

REQUEST = User(
    (
        Text(
            "Your next message will take the place of the conversation above. Write a summary for whoever carries on "
            "with the work: the task and its limits, what was done and what it showed (files, commands, results), what "
            "is still open, and the next steps. Answer with the summary's text alone and call no tool."
        ),
    )
)

CUT_SHORT = "the summary was cut off at the token limit and was sent as whole"


def recalled(summary: str) -> User:
    """The message that stands for what was compacted."""
    return User((Text(f"<summary of the conversation so far>\n{summary}\n</summary of the conversation so far>"),))


def is_trigger(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") == "compaction_trigger"


def is_compact_path(request: Request) -> bool:
    return request.path.rstrip("/").endswith("/responses/compact")


def named_compaction(metadata: str) -> bool:
    """Whether Codex's turn metadata, a JSON text, calls the request a compaction."""
    try:
        value = orjson.loads(metadata)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and value.get("request_kind") == "compaction"


def kept_messages(fields: Fields) -> list[Json]:
    """The user messages of a request's input, which a compacted conversation begins with."""
    if isinstance(fields.get("input"), str):
        return [{"status": "completed", **_user_message(fields.text("input"))}]
    items = (item for item in fields.list("input") if isinstance(item, dict) and item.get("role") == "user")
    return [{"status": "completed", **item, **_user_message(item.get("content"))} for item in items]


def _user_message(content: object) -> Json:
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"type": "message", "role": "user", "content": parts}


def compaction_item(reply: ChatReply) -> Json:
    """The one item that stands for the conversation. A model that only thought has summarised in its thoughts."""
    summary = reply.text or reply.reasoning
    return {"id": f"cmp_{reply.id}", "type": "compaction", "encrypted_content": seal(summary)}


def compacted(kept: list[Json], reply: ChatReply, usage: Json) -> Json:
    """The answer at `.../responses/compact`."""
    named = [{"id": f"msg_{reply.id}{number}", **item} for number, item in enumerate(kept)]
    return {
        "id": f"resp_{reply.id}",
        "object": "response.compaction",
        "created_at": reply.created,
        "output": [*named, compaction_item(reply)],
        "usage": usage,
    }
