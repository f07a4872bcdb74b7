"""Run the training example of docs/exporters.md on a random model, and print what the trainer was given.

Runs in the environment of the loader `trl`: train_trl.py EXAMPLE.py FILE VOCABULARY WORK. The example's lines FILE and
MODEL are replaced; nothing else of it is.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOTrainer

BATCHES: list[dict[str, Any]] = []
TENSORS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "sampling_per_token_logps")


def build_model(folder: Path, vocabulary: int) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        pad_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{token}": token for token in range(vocabulary)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w0").save_pretrained(folder)


def watch() -> None:
    """Keep what the trainer makes of the rollouts, just before its loss."""
    made = GRPOTrainer._generate_and_score_completions

    def watched(self: GRPOTrainer, inputs: Any) -> Any:
        batch = made(self, inputs)
        BATCHES.append({name: batch[name].tolist() for name in (*TENSORS, "advantages")})
        return batch

    GRPOTrainer._generate_and_score_completions = watched


def main(example: Path, file: str, vocabulary: int, work: Path) -> None:
    model = work / "model"
    build_model(model, vocabulary)
    before = LlamaForCausalLM.from_pretrained(model).state_dict()
    watch()
    lines = example.read_text(encoding="utf-8").splitlines()
    given = {"FILE": f"FILE = {file!r}", "MODEL": f"MODEL = {str(model)!r}"}
    program = "\n".join(given.get(line.partition(" = ")[0], line) for line in lines)
    names: dict[str, Any] = {}
    exec(compile(program.replace('"out"', repr(str(work / "out"))), str(example), "exec"), names)
    trainer = names["trainer"]
    after = trainer.model.state_dict()
    moved = max(float((after[name].cpu() - before[name]).abs().max()) for name in before)
    loss = trainer.state.log_history[-1]["train_loss"]
    report = {"steps": trainer.state.global_step, "loss": loss, "moved": moved, "batches": BATCHES}
    (work / "report.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    example, file, vocabulary, work = sys.argv[1:]
    main(Path(example), file, int(vocabulary), Path(work))
