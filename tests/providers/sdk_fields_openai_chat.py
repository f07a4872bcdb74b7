"""Every field that the official OpenAI SDK, or a harness, can put into a body of /chat/completions."""

from openai.types.chat import completion_create_params

from tests.providers import sdk_fields_openai

BODIES = (
    completion_create_params.CompletionCreateParamsStreaming,
    completion_create_params.CompletionCreateParamsNonStreaming,
)

HARNESS_ONLY = {
    "top_k": "qwen-code, where its settings name it",
    "enable_thinking": "pi, for models whose thinking is switched as Qwen's",
    "chat_template_kwargs": "pi, for models behind vLLM",
    "chat_template_kwargs.enable_thinking": "pi, for models behind vLLM",
    "thinking": "pi, for models whose thinking is switched as DeepSeek's",
    "thinking.type": "pi, for models whose thinking is switched as DeepSeek's",
    "reasoning": "pi, at OpenRouter and Together",
    "reasoning.effort": "pi, at OpenRouter",
    "reasoning.enabled": "pi, at Together",
    "tool_stream": "pi, at Z.ai",
    "preserve_thinking": "qwen-code, at dashscope",
    "messages.*.reasoning": "pi, at services that name it so",
    "messages.*.reasoning_content": "pi, qwen-code and opencode, with a model that reasons",
    "messages.*.annotations": "the openai SDK's users who send a reply's message back as it is",
    "messages.*.cache_control": "opencode, for Anthropic's models",
    "messages.*.content.*.cache_control": "qwen-code, at dashscope",
    "messages.*.content.*.image_url.cache_control": "opencode, for Anthropic's models",
    "messages.*.tool_calls.*.index": "the openai SDK's users who send back what it made of a stream",
    "messages.*.tool_calls.*.function.parsed_arguments": "the openai SDK's users who send back what its helpers parsed",
    "messages.*.parsed": "the openai SDK's users who send back what its helpers parsed",
    "tools.*.cache_control": "qwen-code, at dashscope",
    "tools.*.function.cache_control": "pi, for Anthropic's models",
}


def fields() -> set[str]:
    return sdk_fields_openai.fields(BODIES, ())
