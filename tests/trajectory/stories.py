"""Sessions to look at: what a synthetic world said, with a `tokenizer.json` that decodes it."""

from pathlib import Path
from typing import Any

from polar_mitm.tokens.vocabulary import FileVocabulary
from tests.tokens.samples import spell
from tests.tokens.samples import vocabulary as read_from
from tests.tokens.samples import write as write_tokenizer
from tests.trajectory.sessions import World
from tests.trajectory.template import (
    ASSISTANT,
    CALL,
    CALLED,
    END,
    IMAGE,
    OTHER_END,
    SYSTEM,
    THINK,
    THOUGHT,
    TOOL,
    USER,
    Template,
)

MARKERS = {
    SYSTEM: "<|system|>",
    USER: "<|user|>",
    ASSISTANT: "<|assistant|>",
    TOOL: "<|tool|>",
    CALL: "<tool_call>",
    CALLED: "</tool_call>",
    THINK: "<think>",
    THOUGHT: "</think>",
    IMAGE: "<|image|>",
    END: "<|end|>",
    OTHER_END: "<|stop|>",
}


def tokenizer(template: Template) -> dict[str, Any]:
    """The template's tokens so far, as a byte-level `tokenizer.json` says it."""
    return {
        "added_tokens": [{"id": token, "content": text, "special": True} for token, text in MARKERS.items()],
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {spell(text.encode()): token for token, text in template.texts.items()}},
    }


def vocabulary(world: World, folder: Path) -> FileVocabulary:
    return read_from(folder, tokenizer(world.template))


def with_model(world: World, home: Path) -> None:
    """Put the tokenizer where the model `tiny` is looked for."""
    write_tokenizer(home / "models" / "tiny", tokenizer(world.template))


def a_long_day(session_id: str = "ses_1", **record: Any) -> World:
    """Five turns with tools, a fork where arguments came back re-rendered, a forced turn, a sub-agent, a title."""
    world = World(Template(spaced=True), session_id, harness="pi", scenario="mend the total", **record)
    world.clock = 1_796_000_000.0
    talk = world.talk("You mend small programs.", "The total in report.py is wrong. Find out why and mend it.")
    world.answer(talk.copy(kind="title", tools=[]), "Mending a total", append=False)
    world.answer(talk, "I read the file first.", tool="read", arguments='{"path": "report.py"}', forced=((0, 4),))
    talk.tool("total = 0\nfor row in rows:\n    total = row.amount\nprint(total)\n")
    world.answer(talk, "The loop forgets what it had: += is missing.", tool="write", arguments='{"path":"report.py"}')
    talk.tool("1 line changed")
    world.answer(talk, "", tool="ask", arguments='{"task": "Check the sums of report.py by hand."}')
    helper = world.talk("You are a helper.", "Check the sums of report.py by hand.", agent="a1", kind="subagent")
    world.answer(helper, "By hand it is 42: 7 + 14 + 21.")
    talk.tool("42\n")
    world.answer(talk, "Done: report.py prints 42, as counted by hand.")
    for place, call in enumerate(world.calls):
        assert call.response and call.engine
        call.identity.harness = "pi"
        call.engine.logprobs_mode = "raw_logprobs"
        call.delivery.bytes_sent = 40 * len(call.response.response_ids)
        call.response.logprobs = [
            -((((place + 3) * (n * n + 5)) % 23) ** 2) / 80 for n in range(len(call.response.response_ids))
        ]
    return world
