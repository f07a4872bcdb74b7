"""The table in docs/wire.md: which requests are recorded, and what the oracle says of each."""

import json
from pathlib import Path
from typing import Any

from tests.wire.fixtures import DIFFERENCES, EXPECTED, Fixture, fixtures

DOCS = Path(__file__).parents[2] / "docs" / "wire.md"
BEGIN, END = "<!-- table: written by the script -->", "<!-- end of the table -->"


def with_table(text: str) -> str:
    """The document with its table as the fixtures now are."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return "\n".join([before + BEGIN, "", *table(), "", END + after])


def table() -> list[str]:
    """A row a run of a harness."""
    expected, differences = json.loads(EXPECTED.read_bytes()), json.loads(DIFFERENCES.read_bytes())["fixtures"]
    runs: dict[tuple[str, str], list[Fixture]] = {}
    for fixture in fixtures():
        runs.setdefault((fixture.id.split("/")[0], fixture.data["scene"]), []).append(fixture)
    rows = [
        "| harness | run | provider | requests | kB | tools | oracle |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (harness, scene), run in runs.items():
        provider = expected[run[0].id]["provider"]
        cells = [harness, scene, provider, ", ".join(fixture.data["label"] for fixture in run)]
        cells.append(f"{len(json.dumps(run[0].body)) / 1000:.0f}")
        cells.append(str(len(expected[run[0].id].get("tools", []))))
        cells.append(_oracle(provider, run, differences))
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _oracle(provider: str, run: list[Fixture], differences: dict[str, Any]) -> str:
    if provider == "google":
        return "none"
    if any("thread" in fixture.body for fixture in run):
        run = [fixture for fixture in run if "thread" not in fixture.body]
        if not run:
            return "refused by polar"
    results: dict[str, None] = {}
    for fixture in run:
        entry = differences.get(fixture.id, {})
        refused = "vLLM refuses" if "vllm_refuses" in entry else ""
        results[refused or ", ".join(entry.get("reasons", [])) or "same"] = None
    return "; ".join(results)
