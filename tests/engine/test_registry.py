import http.server
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from polar_mitm.engine.registry import Running, answers, find, forget, register, registered


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def running(url: str, polar_home: Path) -> Running:
    """This very process, as if it were an engine."""
    started = psutil.Process().create_time()
    return Running("tiny", url, "tiny", 1, os.getpid(), started, str(polar_home / "log"), ready=True)


def test_a_registered_engine_that_answers_is_found(running: Running) -> None:
    assert find("tiny") is None
    register(running)
    assert find("tiny") == running
    assert find("smollm2") is None


def test_a_file_of_a_dead_process_proves_nothing(running: Running) -> None:
    register(replace(running, pid=2**22 + 1))
    assert registered("tiny") is None
    assert find("tiny") is None


def test_another_process_with_the_same_pid_is_not_the_engine(running: Running) -> None:
    register(replace(running, started=running.started - 60))
    assert find("tiny") is None


def test_an_engine_that_does_not_answer_or_is_not_ready_is_not_found(running: Running) -> None:
    for unusable in (replace(running, url="http://127.0.0.1:9"), replace(running, ready=False)):
        register(unusable)
        assert find("tiny") is None
        assert registered("tiny") == unusable


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"name": "tiny"}', "not json"])
def test_a_broken_file_is_no_engine(running: Running, polar_home: Path, text: str) -> None:
    register(running)
    (polar_home / "engines" / "tiny.json").write_text(text)
    assert registered("tiny") is None


def test_only_ones_own_file_is_removed(running: Running) -> None:
    register(running)
    forget(replace(running, pid=running.pid + 1))
    assert find("tiny") == running
    forget(running)
    assert find("tiny") is None
    forget(running)


def test_loopback_is_asked_directly_whatever_proxy_the_environment_names(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert answers(url)
    assert not answers(url + "/elsewhere")
