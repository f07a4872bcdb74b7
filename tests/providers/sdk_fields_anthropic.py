"""Every field that the official Anthropic SDK can put into a body of /v1/messages or /v1/messages/count_tokens."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union

import typing_extensions
from anthropic.types import beta, message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params

BODIES = (
    message_create_params.MessageCreateParamsStreaming,
    message_create_params.MessageCreateParamsNonStreaming,
    message_count_tokens_params.MessageCountTokensParams,
    beta_create_params.MessageCreateParamsStreaming,
    beta_create_params.MessageCreateParamsNonStreaming,
    beta_count_tokens_params.MessageCountTokensParams,
)

# The SDK sends these parameters as headers.
HEADERS = frozenset({"betas", "user_profile_id", "workspace_id"})

# The blocks that are read, by all the names of their fields; those of Anthropic's server tools are left out whole.
BLOCKS = (
    beta.BetaTextBlockParam,
    beta.BetaImageBlockParam,
    beta.BetaRequestDocumentBlockParam,
    beta.BetaSearchResultBlockParam,
    beta.BetaThinkingBlockParam,
    beta.BetaRedactedThinkingBlockParam,
    beta.BetaToolUseBlockParam,
    beta.BetaToolResultBlockParam,
    beta.BetaToolReferenceBlockParam,
    beta.BetaBrowserStateBlockParam,
)
MESSAGES = (beta.BetaUserMessageParam, beta.BetaAssistantMessageParam, beta.BetaSystemMessageParam)

CLIENT_TOOLS = (
    beta.BetaToolBash20241022Param,
    beta.BetaToolBash20250124Param,
    beta.BetaToolTextEditor20241022Param,
    beta.BetaToolTextEditor20250124Param,
    beta.BetaToolTextEditor20250429Param,
    beta.BetaToolTextEditor20250728Param,
    beta.BetaMemoryTool20250818Param,
    beta.BetaToolComputerUse20241022Param,
    beta.BetaToolComputerUse20250124Param,
    beta.BetaToolComputerUse20251124Param,
    beta.BetaComputerToolset20260801Param,
    beta.BetaBrowserToolset20260801Param,
)

HARNESS_ONLY = {
    "temperature": "opencode, on an SDK that still has it",
    "top_p": "opencode, on an SDK that still has it",
    "top_k": "opencode, on an SDK that still has it",
    "output_format": "harnesses on older SDKs, where it stood for output_config.format",
}


def fields() -> set[str]:
    found = set(_inside(*BODIES)) - HEADERS
    for body in BODIES:
        for name, hint in typing_extensions.get_type_hints(body).items():
            found |= {f"{name}.{inner}" for inner in _inside(*_objects(hint))}
    found |= {f"messages.*.{name}" for name in _inside(*MESSAGES)}
    found |= {f"messages.*.content.*.{name}" for name in _inside(*BLOCKS)}
    found |= {f"tools.*.{name}" for name in _inside(beta.BetaToolParam, *CLIENT_TOOLS)}
    return found


def _inside(*kinds: Any) -> Iterator[str]:
    for kind in kinds:
        yield from typing_extensions.get_type_hints(kind)


def _objects(hint: Any) -> Iterator[Any]:
    """The TypedDicts that a value of this type can be; not those inside a list."""
    origin = typing_extensions.get_origin(hint)
    if typing_extensions.is_typeddict(hint):
        yield hint
    elif origin in (Union, UnionType):
        for option in typing_extensions.get_args(hint):
            yield from _objects(option)
    elif origin in (Annotated, typing_extensions.Required, typing_extensions.NotRequired):
        yield from _objects(typing_extensions.get_args(hint)[0])
