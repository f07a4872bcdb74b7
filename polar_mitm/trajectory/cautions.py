"""Where a turn's log-probabilities are not those it was sampled with, so that an importance ratio starts from elsewhere
than 1."""

from polar_mitm.trajectory.trace import Turn

FILTERS = {"top_p": 1, "top_k": 0, "min_p": 0}
"""What leaves tokens out, and the value that leaves out none."""
PENALTIES = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}


def cautions(turn: Turn) -> list[str]:
    """What to know before training on it, a sentence each; empty when it was sampled as its log-probabilities say."""
    found: list[str] = []
    raw = turn.logprobs_mode in (None, "raw_logprobs", "raw_logits")
    temperature = turn.sampling.get("temperature")
    if raw and temperature not in (None, 1):
        found.append(f"sampled at temperature {temperature}, and the log-probabilities are those at 1")
    filters = [name for name, off in FILTERS.items() if turn.sampling.get(name) not in (None, off, -1)]
    if filters and raw:
        found.append(f"sampled under {' and '.join(filters)}, which the log-probabilities do not know")
    elif filters:
        found.append(f"sampled under {' and '.join(filters)}: the log-probabilities are of what the filter left")
    penalties = [name for name, off in PENALTIES.items() if turn.sampling.get(name) not in (None, off)]
    if penalties and raw:
        found.append(f"sampled under {' and '.join(penalties)}, which the log-probabilities do not know")
    return found
