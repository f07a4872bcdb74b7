"""Turn a GGUF file of SmolLM2 into a Hugging Face folder that vLLM serves. Runs in the engine's own environment.

    convert_smollm2.py MODEL.gguf TEMPLATE.jinja OUT

The weights are unpacked to bfloat16. The GGUF's own chat template knows no tools; TEMPLATE takes its place.
"""

import sys
from pathlib import Path

import torch  # type: ignore[import-not-found]  # is in the engine's environment only
from transformers import (  # type: ignore[import-not-found]  # is in the engine's environment only
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
)

START_OF_TURN = 1
END_OF_TURN = 2


def main(gguf: Path, template: Path, out: Path) -> None:
    source, name = str(gguf.parent), gguf.name
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=name,
        dtype=torch.bfloat16,
        # Without it transformers 5 keeps the weights packed, and packed weights cannot be saved.
        quantization_config=GgufConfig(dequantize=True),
    )
    model.generation_config = GenerationConfig(
        bos_token_id=START_OF_TURN, eos_token_id=END_OF_TURN, pad_token_id=END_OF_TURN
    )
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
