"""What becomes of each field of an Anthropic Messages request.

`*` stands for a position in a list; the fields of every kind of content block share one name each. An object that is
ignored or refused as a whole has no rows for its parts.
"""

from collections.abc import Mapping, Sequence

from polar_mitm.providers.base import Fate
from polar_mitm.providers.common import BUDGET, ONE_CALL, WHERE_FORCED, Notes, settle
from polar_mitm.providers.fields import Fields

CARRIED = Fate("carried")
CACHED = Fate("emulated", "the engine caches every prefix by itself")
SHOWN = Fate("ignored", "thinking is always shown whole, so that it comes back as it was sampled")
ON_THIS_MACHINE = Fate("ignored", "every call is served by the one engine on this machine")
NOT_BILLED = Fate("ignored", "nothing is billed here")
SESSION = Fate("emulated", "the session id in it is kept on the record; the model is not told")
NO_SERVER_TOOLS = Fate("ignored", "nothing here runs Anthropic's server tools")
DESCRIBED = Fate("emulated", "said in the description")
EXTRA = Fate("refused", "Extra inputs are not permitted")
NO_CITATIONS = Fate("ignored", "the model is not asked to cite")

FATES: Mapping[str, Fate] = {
    "model": Fate("emulated", "the served model answers; the name comes back in the reply"),
    "max_tokens": CARRIED,
    "messages": CARRIED,
    "messages.*.role": CARRIED,
    "messages.*.content": CARRIED,
    "messages.*.clear_at": Fate("ignored", "a system text stays where it was said, so that prompts keep their prefix"),
    "messages.*.output_config": Fate("ignored", "only the request's own output_config counts"),
    "messages.*.content.*.type": CARRIED,
    "messages.*.content.*.cache_control": CACHED,
    "messages.*.content.*.text": CARRIED,
    "messages.*.content.*.citations": NO_CITATIONS,
    "messages.*.content.*.source": CARRIED,
    "messages.*.content.*.title": CARRIED,
    "messages.*.content.*.context": CARRIED,
    "messages.*.content.*.content": CARRIED,
    "messages.*.content.*.transformations": Fate("ignored", "images reach the engine as they were sent"),
    "messages.*.content.*.thinking": CARRIED,
    "messages.*.content.*.signature": Fate("emulated", "accepted unread: it says nothing that the thinking does not"),
    "messages.*.content.*.data": Fate("ignored", "only Anthropic's servers can read redacted thinking"),
    "messages.*.content.*.id": CARRIED,
    "messages.*.content.*.name": CARRIED,
    "messages.*.content.*.input": CARRIED,
    "messages.*.content.*.caller": NO_SERVER_TOOLS,
    "messages.*.content.*.toolset_name": Fate("emulated", "stands before the name of the function"),
    "messages.*.content.*.tool_use_id": CARRIED,
    "messages.*.content.*.tabs": Fate("emulated", "written out, a line a tab"),
    "messages.*.content.*.state_changes": Fate("emulated", "written out, a line each"),
    "messages.*.content.*.is_error": Fate("emulated", "a failure without a word reads `error`, others read as sent"),
    "messages.*.content.*.tool_name": CARRIED,
    "system": Fate("carried", "without Claude Code's billing line, which is new in every request"),
    "temperature": CARRIED,
    "top_p": CARRIED,
    "top_k": CARRIED,
    "stop_sequences": CARRIED,
    "stream": CARRIED,
    "tools": CARRIED,
    "tools.*.type": Fate(
        "emulated",
        "a client's tool without a schema has the published one; one that others run is left out, or refused if forced",
    ),
    "tools.*.name": CARRIED,
    "tools.*.description": CARRIED,
    "tools.*.input_schema": CARRIED,
    "tools.*.strict": WHERE_FORCED,
    "tools.*.cache_control": CACHED,
    "tools.*.defer_loading": Fate("emulated", "hidden from the model until a tool_reference or tool_addition names it"),
    "tools.*.input_examples": Fate("emulated", "written out at the end of the description"),
    "tools.*.eager_input_streaming": Fate("emulated", "a call's whole input comes in one delta"),
    "tools.*.allowed_callers": NO_SERVER_TOOLS,
    "tools.*.max_characters": DESCRIBED,
    "tools.*.display_width_px": DESCRIBED,
    "tools.*.display_height_px": DESCRIBED,
    "tools.*.display_number": DESCRIBED,
    "tools.*.enable_zoom": CARRIED,
    "tools.*.configs": Fate("carried", "which tools of a toolset are on, and deferred"),
    "tool_choice": CARRIED,
    "tool_choice.type": CARRIED,
    "tool_choice.name": CARRIED,
    "tool_choice.disable_parallel_tool_use": ONE_CALL,
    "thinking": Fate("emulated", "asked of the chat template"),
    "thinking.type": Fate("emulated", "enabled and adaptive let the model think; disabled and between_tools do not"),
    "thinking.budget_tokens": BUDGET,
    "thinking.display": SHOWN,
    "thinking.block_binding": Fate("ignored", "thinking is accepted back in any conversation"),
    "output_config": CARRIED,
    "output_config.format": CARRIED,
    "output_config.effort": Fate("emulated", "asked of the chat template"),
    "output_config.task_budget": Fate("ignored", "the engine does not tell a model of a budget over several calls"),
    "output_format": Fate("carried", "the former place of output_config.format"),
    "metadata": SESSION,
    "metadata.user_id": SESSION,
    "cache_control": CACHED,
    "cache_control.type": CACHED,
    "cache_control.ttl": CACHED,
    "context_management": Fate("ignored", "the conversation is never edited on the way to the model"),
    "compaction": EXTRA,
    # A continued thread holds the new messages only.
    "thread": EXTRA,
    "container": NO_SERVER_TOOLS,
    "mcp_servers": Fate("ignored", "nothing here connects to MCP servers; a client's own MCP tools are plain tools"),
    "fallbacks": ON_THIS_MACHINE,
    "fallback_credit_token": NOT_BILLED,
    "billing_policy": NOT_BILLED,
    "inference_geo": ON_THIS_MACHINE,
    "service_tier": ON_THIS_MACHINE,
    "speed": ON_THIS_MACHINE,
    "diagnostics": Fate("ignored", "the engine's prefix cache is not compared between requests"),
}

# Values of ignored fields that ask for nothing beyond what happens anyway.
IDLE: Mapping[str, Sequence[object]] = {
    "messages.*.content.*.caller": ({"type": "direct"},),
    "messages.*.content.*.citations": ([], {"enabled": False}),
    "tools.*.allowed_callers": (["direct"],),
    "thinking.display": ("summarized",),
    "context_management": ({"edits": []},),
    "mcp_servers": ([],),
    "fallbacks": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
}


def give_fates(fields: Fields, notes: Notes, under: str = "") -> None:
    """Notes what of this object is not carried; `under` is the table's name for it. Raises CallError."""
    settle(fields, FATES, IDLE, notes, under)
