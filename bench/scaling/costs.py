"""What the arithmetic and the simulation begin with: costs that were measured here, and a load that is assumed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent.parent.parent / "docs" / "figures"


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor seconds and bytes. Of one session, unless it says otherwise."""

    submit_s: float
    """The server's, to take it."""
    server_s: float
    """The server's, from the line to its result and callback."""
    gateway_s: float
    """The gateway's, without its calls."""
    call_s: float
    """The gateway's, of one call of the load's size: proxy, capture, answer."""
    harness_call_s: float
    """The agent's own, of one call."""
    harness_bytes: int
    """Memory of one agent."""
    queued_bytes: float
    """The server's memory, while it waits."""
    in_flight_bytes: float
    """The gateway's memory, while it runs."""
    database_bytes: float
    network_bytes: float
    """Between server and gateway, without files."""
    calls_bytes: float
    """Of calls.jsonl, by token of a session's longest prompt."""
    flows_bytes: float
    """Of flows.mitm, by token of every prompt."""
    simulated_call_s: float
    """The gateway's, of one call of the benchmark, whose prompts are a line."""

    @classmethod
    def measured(cls, harness: str) -> "Costs":
        """From docs/figures. Raises FileNotFoundError with the name of the file that is missing."""
        scale, live = _figures("scale")["costs"], _figures("live")[harness]
        submit = _figures("scale")["lines"][-1]
        return cls(
            submit_s=submit["submit_s"] / submit["sessions"],
            server_s=scale["server_cpu_ms_per_session"] / 1000,
            gateway_s=scale["gateway_cpu_ms_per_session_without_calls"] / 1000,
            call_s=live["polar_call_s"],
            harness_call_s=live["harness_call_s"],
            harness_bytes=live["harness_bytes"],
            queued_bytes=scale["server_memory_bytes_per_session_in_line"],
            in_flight_bytes=scale["gateway_memory_bytes_per_session_in_flight"],
            database_bytes=scale["database_bytes_per_session"],
            network_bytes=scale["network_bytes_per_session"],
            calls_bytes=live["calls_bytes"],
            flows_bytes=live["flows_bytes"],
            simulated_call_s=scale["gateway_cpu_ms_per_call"] / 1000,
        )


@dataclass(frozen=True, slots=True)
class Load:
    """Assumed, and an option of the command: an agent that mends a bug in a repository."""

    calls: int = 40
    """Of a session."""
    tool_s: float = 4.0
    """Between an answer and the next call."""
    prompt_tokens: int = 25_000
    """Of a call, in the mean."""
    longest_tokens: int = 50_000
    response_tokens: int = 250
    prepare_s: float = 10.0
    grade_s: float = 60.0


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Assumed: of one replica of a small model on one accelerator. No accelerator was there to measure."""

    sequences: int = 128
    """Decoded at once."""
    tokens_s: float = 40.0
    """Of each of them."""
    first_token_s: float = 0.6
    """With the prefix in the cache."""

    def answer_s(self, load: Load) -> float:
        return self.first_token_s + load.response_tokens / self.tokens_s


def _figures(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIGURES / f"{name}.json").read_text())
    return found
