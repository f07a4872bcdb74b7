"""What becomes of each field of a Chat Completions request.

`*` stands for a position in a list. An object that is ignored or refused as a whole has no rows for its parts.
"""

from typing import Any

from polar_mitm.providers.base import Fate
from polar_mitm.providers.common import ONE_CALL, SEED, WHERE_FORCED
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

PREFIXES = "the engine finds shared prefixes itself"

LOGPROBS = "log-probabilities go to the call record, not to the client"

READS = "the model reads text and images"

FATES: Fates = {
    **carried(
        "model messages tools tool_choice response_format max_tokens max_completion_tokens "
        "temperature top_p presence_penalty frequency_penalty stop stream stream_options "
        "stream_options.include_usage"
    ),
    "parallel_tool_calls": ONE_CALL,
    "seed": SEED,
    **under(
        "response_format",
        {
            **carried("type json_schema json_schema.schema"),
            **dict.fromkeys(("json_schema.name", "json_schema.description", "json_schema.strict"), ALWAYS_STRICT),
        },
    ),
    **under(
        "tool_choice",
        {
            **carried("type function function.name custom custom.name allowed_tools allowed_tools.mode"),
            "allowed_tools.tools": ignored(ALLOWED_TOOLS_WHY),
        },
    ),
    "stream_options.include_obfuscation": emulated("streams carry no obfuscation"),
    "reasoning_effort": emulated("the chat template is told, where it takes such a setting"),
    "prompt_cache_key": emulated("kept as a harness id; the engine finds shared prefixes itself"),
    "functions": refused("this deprecated form is not served; declare the functions in tools"),
    "function_call": refused("this deprecated form is not served; use tool_choice"),
    "modalities": refused("the model answers in text"),
    "audio": ignored("the model answers in text"),
    "n": ignored("one reply is sampled"),
    "logprobs": ignored(LOGPROBS),
    "top_logprobs": ignored(LOGPROBS),
    "logit_bias": ignored("the engine's own distribution is sampled"),
    "user": ignored(NO_USERS),
    "safety_identifier": ignored(NO_USERS),
    "metadata": ignored(NO_STORE),
    "store": ignored(NO_STORE),
    "service_tier": ignored("there is one engine"),
    "verbosity": ignored("the model takes no such setting"),
    "prompt_cache_retention": emulated(PREFIXES),
    "prompt_cache_options": ignored(PREFIXES),
    "prediction": ignored("the engine does not speculate on given text"),
    "web_search_options": ignored("there is no search service"),
    "moderation": ignored("there is no moderation service"),
    **under(
        "messages.*",
        {
            **carried("role content refusal tool_calls tool_call_id"),
            "function_call": refused("this deprecated form is not served; send tool_calls"),
            "name": ignored("chat templates have no place for a speaker's name"),
            "audio": ignored(READS),
        },
    ),
    **under(
        "messages.*.content.*",
        {
            **carried("type text refusal image_url"),
            "image_url.url": Fate("carried", "a data: URL; an address leaves a placeholder and a note"),
            "image_url.detail": ignored("the engine scales images by its own rule"),
            "input_audio": ignored(READS),
            "file": CARRIED,
            "file.filename": CARRIED,
            "file.file_data": emulated("text is given as text; anything else is a placeholder, and noted"),
            "file.file_id": emulated("there is no file store: a placeholder, and noted"),
            "prompt_cache_breakpoint": ignored(PREFIXES),
        },
    ),
    **under(
        "messages.*.tool_calls.*",
        {
            **carried("id type function function.name function.arguments custom custom.name custom.input"),
            # What clients of the SDK keep of a stream's chunks, and what its helpers made of the arguments.
            "index": emulated("calls are in the order of the list"),
            "function.parsed_arguments": emulated("the arguments say the same"),
        },
    ),
    **under(
        "tools.*",
        {
            **carried("type function function.name function.description function.parameters"),
            "function.strict": WHERE_FORCED,
            "custom": emulated("a function of one string, whose calls come back as custom ones"),
            **carried("custom.name custom.description custom.format custom.format.type custom.format.grammar"),
            **carried("custom.format.grammar.definition custom.format.grammar.syntax"),
        },
    ),
    # What no SDK of OpenAI's declares and harnesses send to services like it.
    "top_k": CARRIED,
    "enable_thinking": emulated("the chat template is told, where it takes such a setting"),
    "thinking": emulated("the chat template is told, where it takes such a setting"),
    "thinking.type": CARRIED,
    "reasoning": emulated("the chat template is told, where it takes such a setting"),
    "reasoning.effort": CARRIED,
    "reasoning.enabled": CARRIED,
    "chat_template_kwargs": emulated(
        "what it says of thinking; the run decides how the template renders, the rest is noted"
    ),
    "chat_template_kwargs.enable_thinking": emulated("as `enable_thinking`"),
    "preserve_thinking": ignored("the chat template decides which past reasoning it shows"),
    "tool_stream": emulated("every tool call is streamed in one piece"),
    "messages.*.reasoning": CARRIED,
    "messages.*.reasoning_content": CARRIED,
    "messages.*.annotations": ignored(READS),
    "messages.*.parsed": emulated("the content says the same"),
    "messages.*.cache_control": emulated(PREFIXES),
    "messages.*.content.*.cache_control": emulated(PREFIXES),
    "messages.*.content.*.image_url.cache_control": emulated(PREFIXES),
    "tools.*.cache_control": emulated(PREFIXES),
    "tools.*.function.cache_control": emulated(PREFIXES),
}

IDLE: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "metadata": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    "messages.*.annotations": ([],),
}
