"""Answers as vLLM 0.32.0 gives them: the fields and their places, with small values."""

from typing import Any

Json = dict[str, Any]


def entry(token_id: int, text: str, logprob: float = -0.5, top: list[float] | None = None) -> Json:
    """One token of `logprobs.content`, as `return_tokens_as_token_ids` makes it."""
    listed = [{"token": "token_id:0", "logprob": value, "bytes": [97]} for value in top or []]
    return {
        "token": f"token_id:{token_id}", "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": listed,
    }  # fmt: skip


def completion(
    *tokens: Json,
    content: str | None = None,
    tool_calls: list[tuple[str, str]] | None = None,
    finish_reason: str = "stop",
    stop_reason: str | None = None,
    reasoning: str | None = None,
    prompt: int = 16,
) -> Json:
    message: Json = {"role": "assistant", "content": content, "refusal": None, "reasoning": reasoning}
    if tool_calls:
        message["tool_calls"] = [
            {"id": f"chatcmpl-tool-{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, (name, arguments) in enumerate(tool_calls)
        ]
    return {
        "id": "chatcmpl-a626f12cb7a192c9",
        "object": "chat.completion",
        "created": 1796004942,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": {"content": list(tokens)},
                "finish_reason": finish_reason,
                "stop_reason": stop_reason,
                "token_ids": [int(token["token"].removeprefix("token_id:")) for token in tokens],
                "routed_experts": None,
            }
        ],
        "system_fingerprint": "vllm-0.32.0-6b08ee29",
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt + len(tokens),
            "completion_tokens": len(tokens),
            "prompt_tokens_details": {"cached_tokens": 7, "created_cache_tokens": 0, "multimodal_tokens": None},
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": list(range(1, prompt + 1)),
        "metrics": None,
    }


def hello() -> Json:
    return completion(entry(5, "Hel"), entry(6, "lo"), entry(2, "<|im_end|>"), content="Hello")


def refusal(message: str, param: str | None = None, code: int = 400) -> Json:
    return {"error": {"message": message, "type": "BadRequestError", "param": param, "code": code}}


def models(*names: str, max_model_len: int | None = 1000) -> Json:
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "owned_by": "vllm", "max_model_len": max_model_len} for name in names],
    }
