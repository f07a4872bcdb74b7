"""The rollout service on real parts: a server, a gateway and pi as processes, a real vLLM, everything through HTTP."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.polar import POLAR
from tests.live.test_write_file import need_parts
from tests.ports import free_port

pytestmark = pytest.mark.live

TOKEN = "a-token-of-the-tests"
LIMIT_S = 300.0


@contextmanager
def running(log: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    token = log.with_suffix(".token")
    token.write_text(TOKEN)
    with log.open("wb") as out:
        command = [str(POLAR), *map(str, arguments), "--token-file", str(token)]
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def patient(client: httpx.Client, path: str, done: str | None = None) -> dict[str, Any]:
    """The answer of a path, once the server is there, and once it has the field `done`."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            answer = client.get(path)
            answer.raise_for_status()
            found: dict[str, Any] = answer.json()
            if done is None or found[done] is not None:
                return found
        except httpx.TransportError:
            pass
        assert time.monotonic() < end, path
        time.sleep(0.5)


def test_a_task_becomes_graded_samples_with_their_tokens(engine_url: str, tmp_path: Path) -> None:
    need_parts("pi", "bwrap")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    serve = ("rollout", "serve", "--state", tmp_path / "server", "--port", str(port), "--heartbeat", "1")
    gateway = ("gateway", "serve", "--server-url", url, "--engine-url", engine_url, "--name", "gw")
    with (
        running(tmp_path / "server.log", *serve),
        running(tmp_path / "gateway.log", *gateway, "--state", tmp_path / "gw"),
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as client,
    ):
        patient(client, "/v1/overview")
        request = {"scenario": "write_file", "changes": {"harness": "pi"}, "num_samples": 2}
        answer = client.post("/v1/tasks", json=request)
        assert answer.status_code == 202, answer.text
        task = patient(client, f"/v1/tasks/{answer.json()['task_id']}", "finished_at")
        assert (task["status"], task["mean_reward"]) == ("completed", 1.0), (tmp_path / "gateway.log").read_text()
        found = client.get(f"/v1/tasks/{task['task_id']}/results", params={"trajectory": True}).json()
        assert sorted(result["session"]["sample"] for result in found["results"]) == [0, 1]
        for result in found["results"]:
            assert (result["session"]["status"], result["session"]["usable"], result["masked"]) == (
                "completed",
                True,
                None,
            )
            assert result["calls"] >= 2
            assert result["trained_tokens"] > 0
            traces = result["trajectory"]["traces"]
            assert traces
            assert all(trace["response_ids"] for trace in traces)
            name = f"/v1/sessions/{result['session']['session_id']}/files/calls.jsonl"
            calls = [json.loads(line) for line in client.get(name).text.splitlines()]
            assert len(calls) >= result["calls"]
        [node] = client.get("/v1/gateways").json()
        assert (node["state"], node["held"]) == ("ready", 0)
    assert list((tmp_path / "gw" / "sessions").iterdir()) == []
