"""The page about what becomes of every request field, made from the tables in the provider modules.

python -m polar_mitm.providers.fates docs/providers.md
"""

import sys
from pathlib import Path

from polar_mitm.providers import PROVIDERS
from polar_mitm.providers.base import Provider

TITLES = {
    "anthropic": "Anthropic Messages",
    "google": "Google generateContent",
    "openai-chat": "OpenAI Chat Completions",
    "openai-responses": "OpenAI Responses",
}

HEAD = """\
# What becomes of every request field

Each call is translated to one OpenAI Chat request for the engine. The tables say what that does to every field which
the provider's official SDK, or a harness that polar knows, can send. They are made from the tables that the code itself
reads: `python -m polar_mitm.providers.fates docs/providers.md`.

| fate | meaning |
|---|---|
| carried | the model or the sampler gets what was said |
| emulated | the same end by other means, which the last column names |
| ignored | left out on purpose; the call's record names the field and the reason, unless the value asks for nothing |
| refused | the request is answered with the provider's own 400 |

`*` stands for a position in a list. An object that is ignored or refused as a whole has no rows for its parts. A field
that no table knows is left out, and noted too.

Integers of any size reach the model, and come back, exactly. Numbers with a fraction or an exponent are 64-bit floats,
as they are to nearly every JSON reader; one out of their range is a 400. Of two members of one name in an object the
last counts.
"""


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([HEAD, *map(_section, PROVIDERS)])


def _section(provider: Provider) -> str:
    rows = [
        f"| `{name}` | {fate.kind} | {fate.why.replace('|', chr(92) + '|')} |" for name, fate in provider.FATES.items()
    ]
    return "\n".join([f"## {TITLES[provider.NAME]}", "", "| field | fate | why |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
