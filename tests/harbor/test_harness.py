"""Harbor tasks done by a real harness on a real engine: what it sees, and what it cannot do to its tests."""

import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from polar_mitm.harnesses import HARNESSES, HarnessMissing
from polar_mitm.sandboxes.images import KEPT, said
from tests.harbor.running import TASKS, need_images
from tests.live.polar import Left, only, run
from tests.needs import need

pytestmark = pytest.mark.live

TESTS = """\
#!/bin/bash
ls /proc | grep -c '^[0-9]' >&2
{ echo "{\\"reward\\": $(grep -c hello greeting.txt)}"; } > /logs/verifier/reward.json
"""

PLANTED = """\
mkdir -p /tests /logs/verifier/reward.json
echo 'echo 9 > /logs/verifier/reward.txt' > /tests/test.sh; chmod +x /tests/test.sh
ln -s /etc/hostname /logs/verifier/reward.txt
(while :; do echo 9 > /logs/verifier/reward.txt; sleep 0.1; done) >/dev/null 2>&1 &
echo hello > greeting.txt
"""


@pytest.fixture(autouse=True)
def pi_is_here() -> None:
    need_images()
    try:
        HARNESSES["pi"].find()
    except HarnessMissing as missing:
        need([str(missing)])


def run_pi(folder: Path, engine_url: str, *, task: str, script: str, test: str | None = None) -> Left:
    tasks = folder / "task"
    shutil.copytree(TASKS / task, tasks, symlinks=True)
    if test is not None:
        (tasks / "tests" / "test.sh").write_text(test)
    fields = {"tasks": {"harbor": "task"}, "harness": "pi", "script": [{"shell": script}], "timeout_s": 120}
    with (folder / "scenario.yaml").open("w") as file:
        YAML(typ="safe").dump(fields, file)
    out = folder / "out"
    ended = run("run-task", folder / "scenario.yaml", "--engine-url", engine_url, "--out", out)
    assert list(out.glob("*/session.json")), ended.stdout + ended.stderr
    return only(out)


def said_by_tools(there: Left) -> str:
    return str([call.request for call in there.calls]) + (there.folder.path / "calls.jsonl").read_text()


def test_it_sees_no_tests_and_what_it_plants_and_leaves_running_does_not_reach_them(
    engine_url: str, tmp_path: Path
) -> None:
    look = "pwd; ls -a / ~; cat /tests/test.sh /solution/solve.sh; tail -n +3 /proc/net/dev\n"
    there = run_pi(tmp_path, engine_url, task="plain", script=look + PLANTED, test=TESTS)
    assert (there.session.status, there.session.evaluation_error) == ("completed", None)
    assert (there.session.reward, there.session.rewards) == (1.0, {"reward": 1.0})
    assert "+hello" in there.folder.workspace_diff.read_text()
    told = said_by_tools(there)
    assert "/tests/test.sh: No such file" in told and "/solution/solve.sh: No such file" in told
    assert "eth0" not in told and "/app" in told
    verifier = there.folder.path / "logs" / "verifier"
    assert sorted(path.name for path in verifier.iterdir()) == ["reward.json", "test-stdout.txt"]
    assert int((there.folder.path / "evaluator.txt").read_text()) < 8
    assert said("images", "--quiet", f"{KEPT}:{there.session.session_id}").stdout == ""


def test_a_link_in_the_place_of_the_tests_gives_no_reward(engine_url: str, tmp_path: Path) -> None:
    script = "echo '{\"reward\": 9}' > /srv/reward.json; ln -s /logs/verifier /tests; echo hello > greeting.txt"
    there = run_pi(tmp_path, engine_url, task="plain", script=script)
    assert there.session.reward is None
    assert there.session.evaluation_error


def test_a_user_who_is_not_root_runs_the_harness(engine_url: str, tmp_path: Path) -> None:
    there = run_pi(tmp_path, engine_url, task="users-and-variables", script='echo "two words" > ~/answer.txt; id -un')
    assert (there.session.status, there.session.rewards["answer"]) == ("completed", 1.0)
    assert "worker" in said_by_tools(there)
