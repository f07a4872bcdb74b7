"""Every field that the official OpenAI SDK, or a harness, can send to /responses, /compact and /input_tokens."""

from openai.types.responses import input_token_count_params, response_compact_params, response_create_params

from polar_mitm.providers.openai_responses_fates import HOSTED_ITEMS
from tests.providers import sdk_fields_openai

BODIES = (
    response_create_params.ResponseCreateParamsStreaming,
    response_create_params.ResponseCreateParamsNonStreaming,
    response_compact_params.ResponseCompactParams,
    input_token_count_params.InputTokenCountParams,
)

# Tools that only OpenAI runs, and where it runs those that a client can run too: left out and noted by their type.
HOSTED = {
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "mcp",
    "programmatic_tool_calling",
    "web_search",
    "web_search_preview",
    "container_auto",
    "container_reference",
}

HARNESS_ONLY = {
    "client_metadata": "codex",
    "input.*.internal_chat_message_metadata_passthrough": "codex, at OpenAI's own hosts",
}


# One row stands for tools wherever they are declared, and one for the parts of a message and of a result.
SAME = {
    "input.*.tools.*.tools.*.": "tools.*.",
    "input.*.tools.*.": "tools.*.",
    "tools.*.tools.*.": "tools.*.",
    "input.*.output.*.": "input.*.content.*.",
}
# What only a shell's results have.
SHELL_RESULT = ("stdout", "stderr", "outcome")


def fields() -> set[str]:
    return set(map(_row, sdk_fields_openai.fields(BODIES, HOSTED_ITEMS | HOSTED)))


def _row(name: str) -> str:
    for prefix, row in SAME.items():
        rest = name.removeprefix(prefix)
        if rest != name and rest.split(".")[0] not in SHELL_RESULT:
            return row + rest
    return name
