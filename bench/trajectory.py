"""Build trajectories of short and very long sessions: time and memory per token, and bytes on disk.

Each case runs in a process of its own, so that its peak of memory is its own. The command fails when a token of the
longest session costs over twice what one of the shorter ones does, when a file does not give back what was written, or
when it saves less than GOAL.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.report import machine, markdown, show, write_section
from polar_mitm.capture.folder import SessionFolder, SessionRecord
from polar_mitm.capture.ids import pack
from polar_mitm.capture.log import CallLog
from polar_mitm.capture.reader import CallReader
from polar_mitm.capture.record import Asked, Call, Checks, Delivery, EngineInfo, Identity, Origin, Response
from polar_mitm.capture.seal import take_digest
from polar_mitm.trajectory.builders import Building, Options
from polar_mitm.trajectory.seen import read_session

VOCABULARY = 150_000
END = 151_645
FIRST_PROMPT = 20_000
"""Tokens. The system text and the tools of a coding harness."""
CASES = ((200, 100_000), (500, 400_000), (1000, 1_000_000))
"""Turns, and tokens of the last prompt and answer together."""
GOAL = 15
"""Times fewer bytes than the calls with all of each prompt's ids and messages."""
FLAT = 2.0


@dataclass(slots=True)
class Written:
    digests: list[str]
    whole: int
    """Bytes of the calls, had each line all prompt ids and all messages."""


def talk(turns: int, tokens: int, *, rewritten: bool) -> Iterator[tuple[Call, int]]:
    """The calls of a growing conversation, each with its length as JSON with nothing left out.

    A third of what is new is sampled. `rewritten`: each answer comes back in other tokens.
    """
    rng = random.Random(1)
    words = [f"w{number:05x}" for number in range(4000)]
    each = max(6, (tokens - FIRST_PROMPT) // turns)
    answer, seen = each // 3, each - each // 3
    system = {"role": "system", "content": _text(rng, words, FIRST_PROMPT)}
    messages: list[dict[str, Any]] = [system, {"role": "user", "content": "Begin."}]
    ids = _ids(rng, FIRST_PROMPT)
    ids_text, messages_text = len(json.dumps(ids)), len(json.dumps(messages))
    for number in range(turns):
        sampled = [*_ids(rng, answer - 1), END]
        response = Response(
            text=_text(rng, words, answer),
            response_ids=sampled,
            logprobs=[-rng.expovariate(2.0) for _ in sampled],
            finish_reason="stop",
            stop_reason="stop",
        )
        call = Call(
            identity=Identity(
                session_id="ses_bench", call_id=f"call_{number:06d}", started_at=float(number), finished_at=number + 0.5
            ),
            origin=Origin(provider="openai-chat", path="/v1/chat/completions", streamed=True),
            request=Asked(messages=list(messages), sampling_sent={"temperature": 1.0}),
            engine=EngineInfo(model="bench"),
            prompt_ids=list(ids),
            response=response,
            checks=Checks(valid=True),
            delivery=Delivery(status="delivered", bytes_sent=1000),
        )
        bare = call.model_copy(update={"prompt_ids": [], "request": Asked(messages=[])})
        yield call, len(bare.model_dump_json()) + ids_text + messages_text
        back = _ids(rng, answer) if rewritten else sampled
        fresh = [*back, *_ids(rng, seen)]
        added = [
            {"role": "assistant", "content": response.text},
            {"role": "user", "content": _text(rng, words, seen)},
        ]
        ids += fresh
        messages += added
        ids_text += len(json.dumps(fresh))
        messages_text += len(json.dumps(added))


def write(folder: SessionFolder, turns: int, tokens: int, *, rewritten: bool) -> Written:
    written = Written([], 0)
    with CallLog(folder.calls, durability="none") as log:
        for call, whole in talk(turns, tokens, rewritten=rewritten):
            log.append(call)
            written.digests.append(_digest(call))
            written.whole += whole
    folder.write(SessionRecord(session_id="ses_bench", started_at=0.0, status="completed", reward=1.0))
    return written


def case(turns: int, tokens: int, *, rewritten: bool) -> dict[str, float]:
    """One session: written, read back, built; everything that is measured of it."""
    with tempfile.TemporaryDirectory() as out:
        folder = SessionFolder.create(Path(out), "ses_bench")
        code = f"import bench.trajectory as b; b.main(['write', {out!r}, '{turns}', '{tokens}', '{int(rewritten)}'])"
        written = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        building = Building(read_session(folder.path), Options())
        traces = made = trained = 0
        for trace in building.traces():
            traces += 1
            made += len(trace.prompt_ids) + len(trace.response_ids)
            trained += trace.trained
        seconds = time.process_time() - began
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        text = folder.calls.stat().st_size
        same = [_digest(call) for call in CallReader(folder.calls)] == written["digests"]
        take_digest(folder, compress_from=1)
        packed = folder.path.joinpath("calls.jsonl.zst").stat().st_size
    return {
        "traces": traces,
        "made": made,
        "trained": trained,
        "seconds": seconds,
        "peak": peak,
        "whole": written["whole"],
        "text": text,
        "packed": packed,
        "same": same,
    }


def main(arguments: list[str]) -> None:
    match arguments:
        case []:
            measure()
        case ["write", out, turns, tokens, rewritten]:
            folder = SessionFolder(Path(out) / "ses_bench")
            written = write(folder, int(turns), int(tokens), rewritten=rewritten == "1")
            print(json.dumps({"digests": written.digests, "whole": written.whole}))
        case ["case", turns, tokens, rewritten]:
            print(json.dumps(case(int(turns), int(tokens), rewritten=rewritten == "1")))
        case _:
            sys.exit("usage: python -m bench.trajectory")


def measure() -> None:
    cases = [(turns, tokens, rewritten) for rewritten in (False, True) for turns, tokens in CASES]
    found = {one: _apart(*one) for one in cases}
    columns = ("session", "traces", "tokens of all traces", "seconds", "us/token", "peak MB", "bytes/token")
    rows = [
        (
            f"{turns} turns to {tokens:,}{', re-rendered' if rewritten else ''}",
            f"{one['traces']:,.0f}",
            f"{one['made']:,.0f}",
            f"{one['seconds']:.2f}",
            f"{1e6 * one['seconds'] / one['made']:.2f}",
            f"{one['peak'] / 1e6:.0f}",
            f"{one['peak'] / (one['made'] if not rewritten else tokens):.0f}",
        )
        for (turns, tokens, rewritten), one in found.items()
    ]
    disk_columns = ("session", "whole MB", "calls.jsonl MB", "times less", "compressed MB", "times less")
    disk = [
        (
            f"{turns} turns to {tokens:,}{', re-rendered' if rewritten else ''}",
            f"{one['whole'] / 1e6:.1f}",
            f"{one['text'] / 1e6:.2f}",
            f"{one['whole'] / one['text']:.0f}",
            f"{one['packed'] / 1e6:.2f}",
            f"{one['whole'] / one['packed']:.0f}",
        )
        for (turns, tokens, rewritten), one in found.items()
    ]
    show("Building", columns, rows)
    show("On disk", disk_columns, disk)
    write_section("Trajectories", _page(markdown(columns, rows), markdown(disk_columns, disk)))
    _judge(found)


def _judge(found: dict[tuple[int, int, bool], dict[str, float]]) -> None:
    assert all(one["same"] for one in found.values()), "a call was not read back as it was written"
    for rewritten in (False, True):
        cost = [one["seconds"] / one["made"] for (_, _, kind), one in found.items() if kind == rewritten]
        assert cost[-1] <= FLAT * min(cost), f"time per token grows: {cost}"
    memory = [one["peak"] / one["made"] for (_, _, kind), one in found.items() if not kind]
    assert memory[-1] <= FLAT * min(memory), f"memory per token grows: {memory}"
    saved = [one["whole"] / one["text"] for (turns, _, _), one in found.items() if turns >= 200]
    assert min(saved) >= GOAL, f"calls.jsonl saves less than {GOAL} times: {saved}"


def _page(building: str, disk: str) -> str:
    return f"""`make bench-trajectory`, on {machine()}: processor seconds for reading a session's folder and making all
its traces one at a time, and the peak of memory that this adds to the process. A session begins with {FIRST_PROMPT:,}
tokens; a third of what is new in each turn is sampled. Where each answer comes back re-rendered, every turn is a trace
of its own and holds all of its prompt, so the traces together have many more tokens than the session; bytes per token
are then those of the session's.

{building}
Bytes on disk. `whole` is what the same calls take as JSON lines that hold all ids and messages of each prompt; every
call was read back and found equal to what was written.

{disk}"""


def _apart(turns: int, tokens: int, rewritten: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.trajectory", "case", str(turns), str(tokens), str(int(rewritten))]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result


def _ids(rng: random.Random, count: int) -> list[int]:
    """Token ids as text has them: few are frequent."""
    return [min(int(rng.paretovariate(0.6)) + 10, VOCABULARY) for _ in range(count)]


def _text(rng: random.Random, words: list[str], tokens: int) -> str:
    return " ".join(rng.choices(words, k=tokens // 2))


def _digest(call: Call) -> str:
    digest = sha256(pack(call.prompt_ids))
    said = call.model_copy(update={"prompt_ids": [], "parent_call_id": None, "checks": Checks(valid=call.checks.valid)})
    digest.update(said.model_dump_json().encode())
    return digest.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
