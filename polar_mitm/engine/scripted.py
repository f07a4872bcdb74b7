"""Regular expressions that make the engine write exactly one given text: how a scenario's script fixes a model's calls.

The dialect is xgrammar's, a plain one: only the signs below mean anything outside brackets. Python's `re` reads the
results the same way, so that what came back can be checked. The tokens are still the engine's own, though forced.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

_SIGNS: Final = frozenset("\\.^$|?*+()[]{}")
_CONTROLS: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def literal_regex(text: str) -> str:
    """A regular expression that matches exactly this text. ValueError when the text has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate at {error.start} cannot be written by a model") from error
    return "".join(_CONTROLS.get(sign) or ("\\" + sign if sign in _SIGNS else sign) for sign in text)


def tool_call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """The call in hermes form, as the tool templates show it to a model."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    # vLLM's hermes parser looks for these tags in JSON strings too, and would cut the call there.
    call = call.replace("<tool_call>", "\\u003ctool_call>").replace("</tool_call>", "\\u003c/tool_call>")
    return f"<tool_call>\n{call}\n</tool_call>"


def tool_call_regex(name: str, arguments: Mapping[str, Any]) -> str:
    """A regular expression that matches exactly one call of this tool with these arguments, and nothing else.

    ValueError when the arguments have no UTF-8 form; TypeError when they are not JSON.
    """
    return literal_regex(tool_call_text(name, arguments))
