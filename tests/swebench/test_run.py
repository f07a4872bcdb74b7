"""Rows whose images are made here, run by the oracle: container, patch, fresh container, tests, swebench's grade."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from polar_mitm.capture.folder import SessionFolder
from polar_mitm.sandboxes.base_image import BASE_IMAGE
from polar_mitm.sandboxes.images import BUILT, of_folder
from polar_mitm.tasks.swebench import package
from tests.harbor.running import LIMIT_S, need_images
from tests.live_engine import at_home
from tests.needs import need
from tests.swebench.samples import EVAL, row

pytestmark = pytest.mark.live

DOCKERFILE = f"""FROM {BASE_IMAGE}
COPY git /opt/git
COPY testbed /testbed
WORKDIR /testbed
RUN ln -s /opt/git/run /usr/bin/git && git init --quiet && git add --all && \\
    git -c user.name=a -c user.email=a@b commit --quiet --message x
"""

TESTS = r"""#!/bin/bash
check() { if [ "$(bash sum.sh $2 $3)" = "$4" ]; then echo "PASSED $1"; else echo "FAILED $1 - no"; bad=1; fi; }
[ -f sum.sh ] && bash -n sum.sh || { echo "nothing to test"; exit 2; }
bad=0
check tests/test_sum.py::test_sum 2 3 5
check tests/test_sum.py::test_zero 0 0 0
check "tests/test_sum.py::test_order[a-b]" 5 0 5
exit $bad
"""

TEST_PATCH = "".join(
    [
        "diff --git a/tests/run.sh b/tests/run.sh\nnew file mode 100755\n--- /dev/null\n+++ b/tests/run.sh\n",
        f"@@ -0,0 +1,{TESTS.count(chr(10))} @@\n",
        "".join(f"+{line}\n" for line in TESTS.splitlines()),
    ]
)


def change(to: str) -> str:
    """A patch that makes `sum.sh` say this."""
    head = "diff --git a/sum.sh b/sum.sh\n--- a/sum.sh\n+++ b/sum.sh\n@@ -1 +1 @@\n"
    return f"{head}-echo $(($1 - $2))\n+{to}\n"


PATCHES = {
    "right": change("echo $(($1 + $2))"),
    "broken": change("echo $(("),
}


def image(folder: Path) -> str:
    """With this machine's git, its loader and libraries."""
    git = shutil.which("git")
    assert git
    (folder / "git").mkdir(parents=True)
    (folder / "testbed").mkdir()
    listed = subprocess.run(["ldd", git], capture_output=True, text=True, check=True).stdout
    libraries = [Path(path) for path in re.findall(r"(/\S+) \(0x", listed)]
    for path in (Path(git), *libraries):
        shutil.copyfile(path, folder / "git" / path.name)
        (folder / "git" / path.name).chmod(0o755)
    loader = next(path.name for path in libraries if path.name.startswith("ld-"))
    run = folder / "git" / "run"
    run.write_text(f'#!/bin/sh\nexec /opt/git/{loader} --library-path /opt/git /opt/git/{Path(git).name} "$@"\n')
    run.chmod(0o755)
    (folder / "testbed" / "sum.sh").write_text("echo $(($1 - $2))\n")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    return of_folder(folder)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SessionFolder]:
    """What `polar run-task rows.jsonl --harness oracle` left, by the last word of the instance's name."""
    need_images()
    with at_home():
        need(package.problems())
    folder = tmp_path_factory.mktemp("swebench")
    made = image(folder / "image")
    assert made.startswith(BUILT)
    script = EVAL.format(test_patch=TEST_PATCH, tests="bash tests/run.sh")
    rows = [
        row(instance_id=f"filler__sum-{name}", image=made, patch=patch, test_patch=TEST_PATCH, eval_script=script)
        for name, patch in PATCHES.items()
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    polar = [sys.executable, "-c", "from polar_mitm.cli import app; app()"]
    command = [*polar, "run-task", str(folder / "rows.jsonl"), "--harness", "oracle", "--concurrency", "2"]
    command += ["--out", str(folder / "out")]
    with at_home():
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    found = [SessionFolder(path.parent) for path in (folder / "out").glob("*/session.json")]
    assert len(found) == len(PATCHES), done.stdout + done.stderr
    return {(there.load().task_id or "").rpartition("-")[2]: there for there in found}


def test_the_right_patch_resolves_the_instance(sessions: dict[str, SessionFolder]) -> None:
    session = sessions["right"].load()
    assert (session.status, session.evaluation_error) == ("completed", None)
    assert (session.reward, session.rewards, session.reward_from) == (1.0, {"resolved": 1.0}, "only")


def test_a_patch_after_which_no_test_runs_is_an_error_of_the_evaluation(sessions: dict[str, SessionFolder]) -> None:
    session = sessions["broken"].load()
    assert (session.status, session.reward) == ("completed", None)
    assert session.evaluation_error == "there is no grade: swebench can read no result in the log of the tests"


def test_patch_log_and_report_are_in_the_session(sessions: dict[str, SessionFolder]) -> None:
    kept = sessions["right"].path / "swebench"
    assert "+echo $(($1 + $2))\n" in (kept / "patch.diff").read_text()
    lines = (kept / "test_output.txt").read_text()
    assert "PASSED tests/test_sum.py::test_sum\n" in lines
    assert ">>>>> Test Exit Code: 0\n" in lines
    status = json.loads((kept / "report.json").read_text())["filler__sum-right"]["tests_status"]
    assert len(status["PASS_TO_PASS"]["success"]) == 2
