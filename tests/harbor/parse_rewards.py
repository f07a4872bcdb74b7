"""harbor's own reading of reward files, for folders named on standard input, one a line; answers in JSON, one a line.

It runs in harbor's Python.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from harbor.models.trial.paths import TrialPaths
from harbor.models.verifier.result import VerifierResult
from harbor.verifier.verifier import RewardFileNotFoundError, Verifier


def rewards(trial: Path) -> dict[str, float]:
    paths = TrialPaths(trial)
    verifier = SimpleNamespace(trial_paths=paths)
    if paths.reward_json_path.exists():
        found = Verifier._parse_reward_json(verifier)
    elif paths.reward_text_path.exists():
        found = Verifier._parse_reward_text(verifier)
    else:
        raise RewardFileNotFoundError
    return VerifierResult(rewards=found).rewards


for line in sys.stdin:
    try:
        answer = {"rewards": rewards(Path(line.rstrip("\n")))}
    except Exception as error:
        answer = {"error": type(error).__name__}
    print(json.dumps(answer), flush=True)
