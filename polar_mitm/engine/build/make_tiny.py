"""Make a random Qwen3 model of 6 million weights, fast and brief. Runs in the engine's own environment.

    make_tiny.py SMOLLM2 TEMPLATE.jinja OUT

It has SmolLM2's tokenizer and knows nothing. Its next-token odds are set by hand: a plainly random model writes white
space for ever where a grammar allows it, and never closes a tool call. Dimension 0 of the residual stream is a constant
that no layer writes to, so column 0 of the output matrix is a bias for each token. The seed is fixed: the model is the
same each time.
"""

import math
import re
import sys
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]  # is in the engine's environment only
from tokenizers import AddedToken  # type: ignore[import-not-found]  # is in the engine's environment only
from transformers import (  # type: ignore[import-not-found]  # is in the engine's environment only
    AutoTokenizer,
    GenerationConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

WINDOW = 65_536
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
FIRST_PLAIN_TOKEN = 17
"""The ids below are SmolLM2's special tokens."""
START_OF_TURN = 1
END_OF_TURN = 2

WORD = 0.0
OTHER_TEXT = -4.0
RARE = -8.0
NEVER = -20.0
END_SHARE = 0.06
"""The end of a turn comes about once in 16 tokens."""


def main(smollm2: Path, template: Path, out: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    plain_tokens = len(tokenizer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    torch.manual_seed(0)
    # 64 rows for added tokens: a multiple of 64 is what fast matrix kernels like.
    model = Qwen3ForCausalLM(configuration(plain_tokens + 64))
    with torch.no_grad():
        constant = make_constant_dimension(model)
        model.lm_head.weight.normal_(0, 0.15)
        model.lm_head.weight[:, 0] = biases(tokenizer, plain_tokens) / constant
    model.to(torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=END_OF_TURN, pad_token_id=END_OF_TURN)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def configuration(vocabulary: int) -> Any:
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=False,
        bos_token_id=START_OF_TURN,
        eos_token_id=END_OF_TURN,
        pad_token_id=END_OF_TURN,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    )
    config.architectures = ["Qwen3ForCausalLM"]
    return config


def make_constant_dimension(model: Any) -> float:
    """Fix dimension 0 of the residual stream and return what it is after the last norm (nearly the same everywhere)."""
    model.model.embed_tokens.weight.normal_(0, 0.2)
    model.model.embed_tokens.weight[:, 0] = 1.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.down_proj.weight[0] = 0
    any_ids = torch.tensor([[1, 4093, 198, 500]])
    return float(model.model(any_ids).last_hidden_state[0, :, 0].mean())


def biases(tokenizer: Any, plain_tokens: int) -> Any:
    """Log-odds of every token: words are likely, what JSON needs is possible, all else comes only when it must."""
    bias = torch.full((plain_tokens + 64,), NEVER)
    words = 0
    for token in range(FIRST_PLAIN_TOKEN, plain_tokens):
        text = tokenizer.decode([token])
        if re.fullmatch(r" ?[a-z]{2,8}", text):
            bias[token] = WORD
            words += 1
        elif re.fullmatch(r"[ -~]+", text) and text.strip():
            bias[token] = OTHER_TEXT
        elif text == "\n":
            bias[token] = RARE
    bias[END_OF_TURN] = math.log(words * END_SHARE)
    for tag in ("<tool_call>", "</tool_call>"):
        bias[tokenizer.convert_tokens_to_ids(tag)] = RARE
    for closing in ('"', '",', '"}'):
        # Strings inside a grammar's JSON end after a few words.
        token = tokenizer.convert_tokens_to_ids(closing)
        if token is not None:
            bias[token] = math.log(words * 0.5) + OTHER_TEXT
    return bias


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
