"""Read each row with NeMo Gym's own models and hold it against the prefix rule, Gym's and NeMo RL's.

Runs in the environment of the loader `nemo-gym`: check_nemo_gym.py FILE. Prints, as JSON, what each row has after
reading: rewards, masks, and the messages that NeMo RL would train on.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

from nemo_gym.base_resources_server import BaseVerifyResponse  # noqa: E402
from nemo_gym.openai_utils import RESPONSES_TO_TRAIN, TokenIDLogProbMixin  # noqa: E402
from nemo_gym.token_id_capture.builder import assert_prefix_contiguity  # noqa: E402


def message_log(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What NeMo RL makes of the items, restated: it refuses an item that does not begin with all tokens before it."""
    log: list[dict[str, Any]] = []
    seen: list[int] = []
    for item in output:
        if not item.get("generation_token_ids"):
            continue
        prompt = item["prompt_token_ids"]
        assert prompt[: len(seen)] == seen, "non-contiguous"
        new = prompt[len(seen) :]
        assert new, "an empty tensor of token ids would be one of floats"
        log.append({"role": "user", "token_ids": new})
        log.append(
            {
                "role": "assistant",
                "token_ids": item["generation_token_ids"],
                "generation_logprobs": item["generation_log_probs"],
            }
        )
        seen = prompt + item["generation_token_ids"]
    return log


def check(line: str) -> dict[str, Any]:
    row = json.loads(line)
    read = BaseVerifyResponse.model_validate(row)
    assert_prefix_contiguity(row["response"])
    log = message_log(row["response"]["output"])
    tokens = [item for item in read.response.output if isinstance(item, TokenIDLogProbMixin)]
    assert all(type(item) in RESPONSES_TO_TRAIN.values() for item in tokens)
    assert len(tokens) == len(log) // 2, "an item lost its tokens on the way through Gym's models"
    return {
        "reward": read.reward,
        "mask_sample": read.mask_sample,
        "failure_kind": read.failure_kind,
        "types": [item.type for item in read.response.output],
        "message_log": log,
        "input": len(read.responses_create_params.input),
    }


json.dump([check(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()], sys.stdout)
