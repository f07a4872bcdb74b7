"""What becomes of each field of a Responses request, of a compaction's and of a token count's.

`*` stands for a position in a list; the input items that are translated share one name for each field, and so do the
tools. Items and tools that only OpenAI runs are left out whole and have no rows for their parts, nor has an object that
is ignored or refused as a whole.
"""

from typing import Any

from polar_mitm.providers.base import Fate
from polar_mitm.providers.common import ONE_CALL, WHERE_FORCED
from polar_mitm.providers.openai_common import (
    ALLOWED_TOOLS_WHY,
    ALWAYS_STRICT,
    CARRIED,
    Fates,
    carried,
    emulated,
    ignored,
    refused,
    under,
)

NO_USERS = "the engine knows no users"
NO_STORE = "nothing is stored at the service"
SEND_ALL = "nothing is stored at the service; send the whole conversation as input"
PREFIXES = "the engine finds shared prefixes itself"
LOGPROBS = "log-probabilities go to the call record, not to the client"
NO_SETTING = "the model takes no such setting"
TEMPLATE = emulated("the chat template is told, where it takes such a setting")
SCALES = ignored("the engine scales images by its own rule")
NO_MEANING = emulated("ids and states of replayed items say nothing to a model")
FORMAT: Fates = {
    **carried("type schema"),
    **dict.fromkeys(("name", "description", "strict"), ALWAYS_STRICT),
}
MODEL_CALLS = ignored("the model itself makes every call")

FATES: Fates = {
    **carried("model input instructions tools tool_choice max_output_tokens temperature top_p stream"),
    "parallel_tool_calls": ONE_CALL,
    "text": CARRIED,
    "text.format": CARRIED,
    **under("text.format", FORMAT),
    **under("tool_choice", {**carried("type mode name"), "tools": ignored(ALLOWED_TOOLS_WHY)}),
    "text.verbosity": ignored(NO_SETTING),
    "reasoning": CARRIED,
    "reasoning.effort": TEMPLATE,
    "reasoning.summary": emulated("the reasoning is given whole"),
    "reasoning.generate_summary": emulated("the reasoning is given whole"),
    "reasoning.context": ignored("the chat template decides which past reasoning it shows"),
    "reasoning.mode": ignored(NO_SETTING),
    "include": emulated("reasoning is always sealed into the reply; other words are noted each"),
    "stream_options": CARRIED,
    "stream_options.include_obfuscation": emulated("streams carry no obfuscation"),
    "background": emulated("the reply is given at once"),
    "background_options": ignored("the reply is given at once"),
    "prompt_cache_key": emulated("kept as a harness id; the engine finds shared prefixes itself"),
    "previous_response_id": refused("replies are not stored, send the whole conversation."),
    "conversation": refused(SEND_ALL),
    "prompt": refused(SEND_ALL),
    "access_programs": ignored("meant for the service, not for the model"),
    "context_management": ignored("the client's history is given to the model whole"),
    "image": ignored("images reach the engine as they were sent"),
    "max_tool_calls": ignored("it limits hosted tools, and nobody here runs those"),
    "metadata": ignored(NO_STORE),
    "moderation": ignored("there is no moderation service"),
    "personality": ignored(NO_SETTING),
    "prompt_cache_options": ignored(PREFIXES),
    "prompt_cache_retention": emulated(PREFIXES),
    "safety_identifier": ignored(NO_USERS),
    "service_tier": ignored("there is one engine"),
    "store": ignored(NO_STORE),
    "top_logprobs": ignored(LOGPROBS),
    "truncation": ignored("a history that is too long is an error, never cut"),
    "user": ignored(NO_USERS),
    **under(
        "input.*",
        {
            **carried("type role content call_id name namespace arguments input output summary tools execution"),
            "id": NO_MEANING,
            "status": NO_MEANING,
            "encrypted_content": emulated("what polar sealed is opened; what others sealed is noted"),
            "action": CARRIED,
            **under(
                "action",
                {
                    **carried("command commands timeout_ms working_directory max_output_length"),
                    "type": NO_MEANING,
                    **dict.fromkeys(("env", "user"), ignored("the model's function has no such argument")),
                },
            ),
            **carried("operation operation.type operation.path operation.diff summary.*.type summary.*.text"),
            **carried(
                "output.*.stdout output.*.stderr output.*.outcome output.*.outcome.type output.*.outcome.exit_code"
            ),
            "environment": ignored("the model has one place to run commands in"),
            "async": ignored("calls are answered in turn"),
            "max_output_length": NO_MEANING,
            "caller": MODEL_CALLS,
            "phase": ignored("chat templates have no place for it"),
            # A configuration_update's.
            "reasoning": CARRIED,
            "reasoning.effort": TEMPLATE,
            "text": CARRIED,
            "text.format": CARRIED,
            **under("text.format", FORMAT),
        },
    ),
    **under(
        "input.*.content.*",
        {
            **carried("type text refusal"),
            "image_url": Fate("carried", "a data: URL; an address leaves a placeholder and a note"),
            "annotations": ignored("the model reads text and images"),
            "logprobs": ignored("the model reads text and images"),
            "detail": SCALES,
            "file_id": emulated("there is no file store: a placeholder, and noted"),
            "file_url": emulated("nothing is fetched from the network: a placeholder, and noted"),
            "file_data": emulated("text is given as text; anything else is a placeholder, and noted"),
            "filename": CARRIED,
            "prompt_cache_breakpoint": ignored(PREFIXES),
        },
    ),
    **under(
        "tools.*",
        {
            **carried("type name description parameters format format.type format.syntax format.definition"),
            "strict": WHERE_FORCED,
            "tools": emulated("a namespace's tools are functions with its name before theirs"),
            "environment": emulated("a local shell is a function; one of the service's is left out"),
            "environment.type": CARRIED,
            "environment.skills": CARRIED,
            **under("environment.skills.*", carried("name description path")),
            "execution": emulated("a search that the client runs is a function; one of the service's is left out"),
            "defer_loading": ignored("every declared tool is given to the model at once"),
            "output_schema": ignored("chat templates have no place for a result's schema"),
            "allowed_callers": MODEL_CALLS,
            "async": ignored("calls are answered in turn"),
        },
    ),
    # What no SDK of OpenAI's declares and Codex sends.
    "client_metadata": ignored("meant for the service, not for the model"),
    "input.*.internal_chat_message_metadata_passthrough": NO_MEANING,
}

IDLE: dict[str, tuple[Any, ...]] = {
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "text.verbosity": ("medium",),
    "reasoning.context": ("auto",),
    "reasoning.mode": ("standard",),
    "input.*.action.env": ({},),
    "input.*.async": (False,),
    "input.*.environment": ({"type": "local"},),
    "input.*.content.*.annotations": ([],),
    "input.*.content.*.logprobs": ([],),
    "input.*.content.*.detail": ("auto",),
    "input.*.caller": ({"type": "direct"},),
    "tools.*.defer_loading": (False,),
    "tools.*.async": (False,),
    "tools.*.allowed_callers": (["direct"],),
}

# Input items that belong to tools which only OpenAI runs.
HOSTED_ITEMS = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "computer_call",
        "computer_call_output",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "program",
        "program_output",
    }
)
