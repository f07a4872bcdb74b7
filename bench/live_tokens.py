"""Real harnesses in several turns, with prompts as text and as ids: what becomes of the sampled tokens.

    python -m bench.live_tokens --engine-url URL

Runs the scenario `five_turns` with pi, Claude Code and Codex through `polar run-task`, `--tokens chat` and `--tokens
exact`, and writes the table into docs/trajectories.md. The last column asks the engine itself: its own
log-probabilities over the whole trace against the captured ones, for tokens that no script forced. Of `chat` sessions
it is taken over the traces of `--rewritten substitute`, where the context is not the one sampled in.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.report import machine, markdown
from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.trace import Trace, Trajectory

POLAR = Path(sys.executable).with_name("polar")
ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "trajectories.md"
TITLE = "On real harnesses"
HARNESSES = ("pi", "claude-code", "codex")
SAMPLES = 2
COLUMNS = (
    "harness, tokens",
    "sessions",
    "calls",
    "traces",
    "relations",
    "breaks by cause",
    "sampled",
    "ledger",
    "largest difference",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine-url", default=os.environ.get("POLAR_ENGINE_URL"))
    url = parser.parse_args().engine_url
    if not url:
        parser.error("name a running engine: --engine-url or $POLAR_ENGINE_URL")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for harness in HARNESSES:
            for tokens in ("chat", "exact"):
                out = Path(folder) / harness / tokens
                sample(harness, tokens, url, out)
                rows.append(row(f"{harness}, {tokens}", out, url, tokens))
                print(" | ".join(rows[-1]), flush=True)
    publish(rows)


def sample(harness: str, tokens: str, url: str, out: Path) -> None:
    command = [POLAR, "run-task", ROOT / "scenarios" / "five_turns.yaml", "--harness", harness, "--tokens", tokens]
    command += ["--samples", str(SAMPLES), "--engine-url", url, "--out", out, "--json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{harness} with --tokens {tokens} failed:\n{done.stderr}")


def row(name: str, out: Path, url: str, tokens: str) -> list[str]:
    folders = sorted(path.parent for path in out.glob("*/session.json"))
    built = [build(folder) for folder in folders]
    calls = sum(len(trace.turns) for trajectory in built for trace in trajectory.traces)
    bins: Counter[str] = Counter()
    for trajectory in built:
        bins.update(trajectory.ledger.bins)
    measured = (
        built
        if tokens == "exact"
        else [build(folder, Options(rewritten="substitute", drift_limit=1.0)) for folder in folders]
    )
    return [
        name,
        str(len(built)),
        str(calls),
        str(sum(len(trajectory.traces) for trajectory in built)),
        counted(relation for trajectory in built for relation in trajectory.relations.items()),
        counted(Counter(cut.cause for trajectory in built for cut in trajectory.breaks).items()) or "none",
        str(sum(trajectory.ledger.sampled for trajectory in built)),
        counted(bins.items()),
        difference(measured, url),
    ]


def counted(counts: Iterable[tuple[str, int]]) -> str:
    total: Counter[str] = Counter()
    for name, count in counts:
        total[name] += count
    return ", ".join(f"{name} {count}" for name, count in total.most_common() if count)


def difference(trajectories: Sequence[Trajectory], url: str) -> str:
    """The largest over all trained tokens, in nats, and of how many."""
    worst, tokens = 0.0, 0
    for trajectory in trajectories:
        for trace in trajectory.traces:
            if trace.trained:
                for captured, own in compared(trace, url):
                    worst, tokens = max(worst, abs(captured - own)), tokens + 1
    return f"{worst:.1e} over {tokens} tokens"


def compared(trace: Trace, url: str) -> list[tuple[float, float]]:
    ids = [*trace.prompt_ids, *trace.response_ids]
    body = {"model": trace.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", data=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        given = json.load(answer)["choices"][0]["prompt_logprobs"]
    first = len(trace.prompt_ids)
    return [
        (trace.logprobs[place], given[first + place][str(token)]["logprob"])
        for place, token in enumerate(trace.response_ids)
        if trace.loss_mask[place]
    ]


def publish(rows: Sequence[Sequence[str]]) -> None:
    text = f"""\
`make live-tokens` ran `scenarios/five_turns.yaml` (six scripted calls of the harness's own tools, then a text of the
model's own), {SAMPLES} samples each, on a real vLLM with the model `tiny` in float32; {machine()}. The last column is
the largest difference between the captured log-probabilities and the engine's own over the whole trace, of tokens that
no script forced, in nats; for `chat` over the traces of `--rewritten substitute` without a limit, whose context is
not the one sampled in.

{markdown(COLUMNS, rows)}"""
    page = PAGE.read_text()
    before, _, rest = page.partition(f"\n## {TITLE}\n")
    _, following, after = rest.partition("\n## ")
    PAGE.write_text(f"{before.rstrip()}\n\n## {TITLE}\n\n{text.strip()}\n{following}{after}")


if __name__ == "__main__":
    main()
