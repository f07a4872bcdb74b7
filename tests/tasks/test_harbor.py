"""Harbor task folders: what they come to, what is said of bad ones, and what polar cannot give."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar_mitm.sandboxes.limits import Limits
from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.harbor import config, inputs
from polar_mitm.tasks.harbor.folder import HarborTask
from polar_mitm.tasks.harbor.place import limits_of
from polar_mitm.tasks.harbor.setting import Setting
from polar_mitm.tasks.harbor.variables import resolved
from polar_mitm.tasks.reading import load
from polar_mitm.tasks.work import NO_LIMIT_S, notes_of, work_of

NO_NETWORK = '[environment]\nnetwork_mode = "no-network"\n'


def make(folder: Path, toml: str = NO_NETWORK, **files: str) -> Path:
    """A task folder. `files` have `__` for `/` and `_dot_` for `.` in their names; an empty text leaves one out."""
    given = {
        "task.toml": toml or "\n",
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM localhost/polar-base:latest\n",
        "tests/test.sh": "#!/bin/bash\n",
        "solution/solve.sh": "#!/bin/bash\n",
        **{name.replace("__", "/").replace("_dot_", "."): text for name, text in files.items()},
    }
    for name, text in given.items():
        if text:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    return folder


def refused(folder: Path, harness: str = "pi", **decided: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        Setting(HarborTask.load(folder), harness, **decided).refuse()
    return str(caught.value).removeprefix(f"{folder / 'task.toml'}: ")


FULL = """
schema_version = "1.3"
source = "x/y"
artifacts = ["/out", { source = "a", destination = "b", exclude = ["*.o"] }]
[task]
name = "org/name"
[metadata]
anything = { at = "all" }
[agent]
timeout_sec = "90"
user = 1000
[verifier]
timeout_sec = 30
user = "root"
network_mode = "no-network"
[verifier.env]
A = "1"
[solution.env]
B = "2"
[environment]
build_timeout_sec = 5
docker_image = "some/image:tag"
os = "Linux"
cpus = 1.5
memory_mb = 2000
storage_mb = 3000
workdir = "/w"
network_mode = "allowlist"
allowed_hosts = ["example.org"]
[environment.env]
C = "3"
[environment.healthcheck]
command = "true"
retries = 7
[[environment.mcp_servers]]
name = "files"
transport = "stdio"
command = "server"
args = ["-x"]
"""


def test_every_field_is_read(tmp_path: Path) -> None:
    task = HarborTask.load(make(tmp_path / "task", FULL)).config
    assert task.unknown == []
    assert (task.agent.timeout_sec, task.agent.user) == (90.0, 1000)
    assert (task.verifier.timeout_sec, task.verifier.user, task.verifier.env) == (30.0, "root", {"A": "1"})
    assert (task.environment.os, task.environment.workdir) == ("linux", "/w")
    assert limits_of(task.environment) == Limits(cpus=1.5, memory_mb=2000, disk_mb=3000)
    assert (task.agent_network, task.verifier_network) == ("allowlist", "no-network")
    assert [artifact.source for artifact in task.artifacts] == ["/out", "a"]
    assert task.environment.healthcheck is not None and task.environment.healthcheck.retries == 7


@pytest.mark.parametrize(
    ("toml", "limits", "network"),
    [
        (
            'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\n',
            Limits(memory_mb=2048, disk_mb=512),
            "public",
        ),
        ('[environment]\nmemory = "4096k"\nallow_internet = false\n', Limits(memory_mb=4), "no-network"),
        ("[environment]\nallow_internet = true\n", Limits(), "public"),
        ('[environment]\nallow_internet = false\nnetwork_mode = "public"\n', Limits(), "public"),
        ("", Limits(), "public"),
    ],
)
def test_older_fields_are_read_as_today(tmp_path: Path, toml: str, limits: Limits, network: str) -> None:
    task = HarborTask.load(make(tmp_path / "task", toml)).config
    assert limits_of(task.environment) == limits
    assert (task.environment.network, task.unknown) == (network, [])


def test_what_harbor_does_not_know_is_told_and_changes_nothing(tmp_path: Path) -> None:
    toml = 'top = 1\n[environment]\nnetwork_mode = "no-network"\nmemory = 4\n[[environment.mcp_servers]]\nname = "x"\n'
    toml += 'transport = "stdio"\ncommand = "x"\nodd = 1\n[new]\nx = 1\n'
    task = HarborTask.load(make(tmp_path / "task", toml))
    assert task.config.unknown == ["top", "new", "environment.memory", "environment.mcp_servers.1.odd"]
    assert "which change nothing: top, new, environment.memory" in next(Setting(task, "oracle").notes())


BAD = {
    "x = ": ": not TOML: Invalid value (at end of document)",
    "[agent\n": ": not TOML: Expected ']' at the end of a table declaration (at line 1, column 7)",
    "agent = 3": ": agent: Input should be a valid dictionary or instance of Agent; got 3",
    '[agent]\ntimeout_sec = "soon"': ": agent.timeout_sec: Input should be a valid number, unable to parse string",
    '[environment]\nmemory = "2 GB"': ": environment: expected a size such as 512M or 2G; got",
    '[environment]\nmemory = "1G"\nmemory_mb = 5': ": environment: memory is 1G and memory_mb is 5: expected one",
    '[environment]\nnetwork_mode = "open"': ": environment.network_mode: Input should be 'no-network', 'public'",
    "[environment]\ncpus = inf": ": environment.cpus: Input should be a finite number; got inf",
    '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]': ": verifier: environment_mode is shared and",
    '[[environment.mcp_servers]]\nurl = "x"': ": environment.mcp_servers.1.name: Field required",
    'artifacts = ["../x"]': ": artifacts.1.source: expected a path without '..'; got '../x'",
}


@pytest.mark.parametrize("toml", BAD)
def test_a_bad_task_toml_names_the_field_and_what_was_expected(tmp_path: Path, toml: str) -> None:
    folder = make(tmp_path / "task", toml)
    with pytest.raises(ScenarioError) as caught:
        HarborTask.load(folder)
    assert str(caught.value).startswith(f"{folder}/task.toml{BAD[toml]}")


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("instruction.md", "instruction.md: expected a text file: "),
        ("tests/test.sh", "tests/test.sh: expected a file, but it is not there"),
        ("environment/Dockerfile", "environment: expected a Dockerfile, or a docker_image in task.toml"),
    ],
)
def test_a_file_that_is_not_there_is_named(tmp_path: Path, missing: str, said: str) -> None:
    folder = make(tmp_path / "task")
    (folder / missing).unlink()
    with pytest.raises(ScenarioError, match=re.escape(said)):
        HarborTask.load(folder)


def test_an_oracle_needs_a_solution(tmp_path: Path) -> None:
    folder = make(tmp_path / "task", solution__solve_dot_sh="")
    with pytest.raises(ScenarioError, match=r"solve\.sh: expected a file, but it is not there"):
        Setting(HarborTask.load(folder), "oracle").refuse()
    Setting(HarborTask.load(folder), "pi").refuse()


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        ("Do it.\n\nTwice.\n", "Do it.\n\nTwice.\n"),
        ("\n \n  Do it.\n", "  Do it.\n"),
        ("<!-- canary GUID x -->\n# a Canary\n\nDo it.\n", "Do it.\n"),
        ("Do it.\n# canary\n", "Do it.\n# canary\n"),
        ("Tu es.\r\nTwice.\r\n", "Tu es.\nTwice.\n"),
    ],
)
def test_the_instruction_is_told_without_the_marks_of_its_data_set(tmp_path: Path, text: str, instruction: str) -> None:
    folder = make(tmp_path / "task")
    (folder / "instruction.md").write_bytes(text.encode())
    assert HarborTask.load(folder).instruction == instruction


@pytest.mark.parametrize("content", [b"", b" \n", b"# canary\n", b"\xff\xfe"])
def test_an_instruction_that_says_nothing_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = make(tmp_path / "task")
    (folder / "instruction.md").write_bytes(content)
    with pytest.raises(ScenarioError, match=r"instruction\.md: expected"):
        HarborTask.load(folder)


REFUSED = {
    '[environment]\nos = "Windows"\n': "environment.os: expected linux; got 'windows'",
    "[environment]\ngpus = 1\n": "environment.gpus: a container of polar's has no accelerator",
    '[environment]\n[environment.tpu]\ntype = "v6e"\ntopology = "2x2"\n': "environment.tpu: a container of polar's has",
    NO_NETWORK + 'skills_dir = "/skills"\n': "environment.skills_dir: polar gives a harness no skills",
    NO_NETWORK
    + '[[environment.mcp_servers]]\nname = "web"\nurl = "http://x"\n': "environment.mcp_servers: web is reached",
    NO_NETWORK
    + '[[environment.mcp_servers]]\nname = "a"\ntransport = "stdio"\n': "environment.mcp_servers: expected a comm",
    NO_NETWORK + '[[steps]]\nname = "one"\n': "steps: a task of several steps is not run by polar",
    'artifacts = [{ source = "/x", service = "db" }]\n'
    + NO_NETWORK: "artifacts: there is one container, main; got the ser",
    NO_NETWORK
    + '[[verifier.collect]]\ncommand = "x"\nservice = "db"\n': "verifier.collect: there is one container, main",
    "": "verifier.network_mode: its tests may use the network (public, which is what harbor takes when",
    '[verifier]\nnetwork_mode = "allowlist"\n': "verifier.network_mode: polar cannot keep tests to a list of hosts",
    NO_NETWORK
    + '[environment.env]\nKEY = "${POLAR_NO_SUCH}"\n': "environment.env: it wants $POLAR_NO_SUCH of this machine",
    NO_NETWORK
    + '[verifier.env]\nKEY = "${PATH}"\n': "verifier.env: it wants $PATH of this machine: set it, and allow it",
}


@pytest.mark.parametrize("toml", REFUSED)
def test_what_polar_cannot_give_is_refused_with_the_field_and_the_reason(tmp_path: Path, toml: str) -> None:
    assert refused(make(tmp_path / "task", toml)).startswith(REFUSED[toml])


@pytest.mark.parametrize(
    "toml",
    [
        NO_NETWORK + 'skills_dir = "/skills"\n',
        NO_NETWORK + '[[environment.mcp_servers]]\nname = "web"\nurl = "http://x"\n',
    ],
)
def test_what_an_agent_would_need_is_nothing_to_the_oracle(tmp_path: Path, toml: str) -> None:
    folder = make(tmp_path / "task", toml, trajectory_dot_json="{}")
    Setting(HarborTask.load(folder), "oracle").refuse()
    assert refused(folder).startswith("environment.")


def test_a_past_of_another_and_several_containers_are_refused(tmp_path: Path) -> None:
    past = make(tmp_path / "past", trajectory_dot_json="{}")
    assert refused(past).startswith("trajectory.json: a harness begins with no past")
    compose = make(tmp_path / "compose", environment__Dockerfile="")
    (compose / "environment").mkdir()
    (compose / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    assert refused(compose, "oracle").startswith("environment: environment/docker-compose.yaml asks for several")
    separate = make(tmp_path / "separate", NO_NETWORK + '[verifier]\nenvironment_mode = "separate"\n')
    (separate / "tests" / "docker-compose.yaml").write_text("services: {}\n")
    assert refused(separate, "oracle").startswith("verifier.environment: tests/docker-compose.yaml asks")


@pytest.mark.parametrize(
    ("mode", "chosen", "network"),
    [
        ("no-network", None, False),
        ("no-network", "public", False),
        ("public", "none", False),
        ("public", "public", True),
        ("allowlist", "none", False),
    ],
)
def test_tests_have_the_network_that_task_and_user_agree_on(
    tmp_path: Path, mode: str, chosen: Any, network: bool
) -> None:
    task = HarborTask.load(make(tmp_path / "task", f'[verifier]\nnetwork_mode = "{mode}"\n'))
    setting = Setting(task, "oracle", chosen)
    setting.refuse()
    assert setting.network_of_tests is network


@pytest.mark.parametrize(
    ("toml", "network"),
    [
        ('[environment]\nnetwork_mode = "no-network"\n[verifier.environment]\n', "public"),
        ('[environment]\nnetwork_mode = "no-network"\n[verifier]\nenvironment_mode = "separate"\n', "no-network"),
        ('[verifier.environment]\nnetwork_mode = "no-network"\n', "no-network"),
        ('[verifier]\nnetwork_mode = "no-network"\n[verifier.environment]\n', "no-network"),
    ],
)
def test_tests_in_an_image_of_their_own_have_its_network(tmp_path: Path, toml: str, network: str) -> None:
    assert HarborTask.load(make(tmp_path / "task", toml)).config.verifier_network == network


def test_a_variable_of_the_machine_is_handed_over_by_leave_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_SECRET", "secret")
    toml = (
        NO_NETWORK + '[environment.env]\nA = "${POLAR_SECRET}"\nB = "${POLAR_SECRET:-no}"\nC = "a ${POLAR_SECRET} b"\n'
    )
    folder = make(tmp_path / "task", toml)
    assert "--host-env POLAR_SECRET" in refused(folder)
    Setting(HarborTask.load(folder), "pi", host_env=("POLAR_SECRET",)).refuse()
    wanted = HarborTask.load(folder).config.environment.env
    assert resolved(wanted, ["POLAR_SECRET"]) == {"A": "secret", "B": "secret", "C": "a ${POLAR_SECRET} b"}
    assert resolved(wanted, []) == {"A": "", "B": "no", "C": "a ${POLAR_SECRET} b"}


def test_a_folder_of_tasks_is_a_task_each_in_the_order_of_names(tmp_path: Path) -> None:
    root = tmp_path / "My Set (v2)"
    for name in ("b", "a", "ü 1"):
        make(root / name, NO_NETWORK + "cpus = 1\n[agent]\ntimeout_sec = 7\n")
    (root / "no task").mkdir()
    (root / "README.md").write_text("x")
    work = work_of(load(root, {"harness": "pi", "samples": 3}))
    assert [task.id for _, (task,) in work] == ["My-Set-v2-/a", "My-Set-v2-/b", "My-Set-v2-/ü 1"]
    for scenario, _ in work:
        assert (scenario.name, scenario.sandbox, scenario.evaluator.type) == ("My-Set-v2-", "container", "harbor")
        assert (scenario.samples, scenario.timeout_s, scenario.limits.cpus) == (3, 7, 1)


def test_one_folder_is_one_task(tmp_path: Path) -> None:
    ((scenario, (task,)),) = work_of(load(make(tmp_path / "one")))
    assert (task.id, task.instruction, scenario.timeout_s) == ("one", "Do it.\n", NO_LIMIT_S)


def test_a_scenario_may_name_them_and_its_own_limits_win(tmp_path: Path) -> None:
    make(tmp_path / "set" / "a", "[environment]\nmemory_mb = 5000\ncpus = 2\n[agent]\ntimeout_sec = 9\n")
    make(tmp_path / "set" / "b", NO_NETWORK)
    file = tmp_path / "mine.yaml"
    file.write_text("tasks: {harbor: set, tests_network: none, limit: 1}\nlimits: {memory_mb: 64}\ntimeout_s: 3\n")
    ((scenario, (task,)),) = work_of(load(file))
    assert (task.id, scenario.timeout_s, scenario.limits.memory_mb, scenario.limits.cpus) == ("mine/a", 3, 64, 2)
    assert scenario.harbor is not None and scenario.harbor.tests_network == "none"
    note = "its agent may use the network (public), and gets none but the way to its model"
    assert f"mine/a: {note}" in list(notes_of(work_of(load(file))))


def test_a_stdio_server_is_the_harnesss_own(tmp_path: Path) -> None:
    folder = make(tmp_path / "task", FULL)
    ((scenario, _),) = work_of(load(folder, {"harness": "claude-code"}))
    assert scenario.assignment("x").mcp_servers["files"].command == "server"
    with pytest.raises(ScenarioError, match=r"task\.toml: pi takes no MCP servers"):
        work_of(load(folder, {"harness": "pi"}))


SCENARIOS = {
    "tasks: {harbor: task}\nsandbox: bwrap\n": ":2: sandbox: a Harbor task is worked on in its own image",
    "tasks: {harbor: task}\nevaluator: {type: session_completed}\n": ":2: evaluator: Harbor tasks (tasks.harbor) and",
    "instruction: x\nevaluator: {type: harbor}\n": ":2: evaluator: Harbor tasks (tasks.harbor) and the",
    "tasks: {harbor: task}\nworkspace: x\n": ":2: workspace: a Harbor task brings its own: leave workspace out",
    "tasks: {harbor: task, file: x}\n": ":1: tasks: expected one of file, harbor and swebench",
    "tasks: {file: x, tests_network: none}\nevaluator: {type: session_completed}\n": ":1: tasks: tests_network is",
    "tasks: {harbor: task, tests_network: all}\n": ":1: tasks.tests_network: expected one of none, public; got 'all'",
    "tasks: {harbor: task, network: none}\n": ":1: tasks.network: unknown field; did you mean tests_network?",
    "instruction: x\nharness: oracle\nevaluator: {type: session_completed}\n": ":2: harness: the oracle runs a task",
    "tasks: {harbor: task}\nharbor: x\n": ":2: harbor: unknown field",
}


@pytest.mark.parametrize("text", SCENARIOS)
def test_a_scenario_that_does_not_fit_harbor_says_so(tmp_path: Path, text: str) -> None:
    make(tmp_path / "task")
    (tmp_path / "x").mkdir()
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        work_of(load(file))
    assert str(caught.value).startswith(f"{file}{SCENARIOS[text]}")


def test_folders_without_tasks_are_no_tasks(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ScenarioError, match=r"empty: expected a scenario file, a Harbor task folder \(with task\.toml\)"
    ):
        load(tmp_path / "empty")
    file = tmp_path / "s.yaml"
    file.write_text("tasks: {harbor: nowhere}\n")
    with pytest.raises(ScenarioError, match="nowhere: expected a Harbor task folder, or a folder of such"):
        work_of(load(file))


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_inputs_are_copied_with_links_as_links_and_without_what_is_ignored(tmp_path: Path) -> None:
    source = make(tmp_path / "task", tests__deep__x_dot_txt="x", tests__a_dot_log="x") / "tests"
    (source / ".harborignore").write_text("*.log\n")
    (source / "link").symlink_to("deep/x.txt")
    (source / "folder-link").symlink_to("deep")
    os.mkfifo(source / "pipe")
    inputs.copy(source, tmp_path / "copy")
    assert tree(tmp_path / "copy") == ["deep", "deep/x.txt", "folder-link", "link", "test.sh"]
    assert (tmp_path / "copy" / "folder-link").is_symlink()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "loop"])
def test_a_link_that_leads_out_of_the_task_is_refused(tmp_path: Path, target: str) -> None:
    folder = make(tmp_path / "task")
    (tmp_path / "outside").write_text("x")
    (folder / "tests" / "loop").symlink_to(target)
    if target == "loop":
        HarborTask.load(folder)  # it leads nowhere
        return
    with pytest.raises(ScenarioError, match="loop: expected a link that stays within the task"):
        HarborTask.load(folder)


def test_a_test_that_is_ignored_is_missed(tmp_path: Path) -> None:
    folder = make(tmp_path / "task")
    (folder / "tests" / ".harborignore").write_text("*.sh\n")
    with pytest.raises(ScenarioError, match=r"test\.sh: the task needs it, and \.harborignore leaves it out"):
        HarborTask.load(folder)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["environment", "verifier", "agent", "steps", "artifacts", "memory", "storage", "mcp_servers", "env", "tpu", "task"]
)
tables = st.dictionaries(names, st.dictionaries(names | st.text(max_size=5), json_values, max_size=4) | json_values)


@settings(max_examples=200, deadline=None)
@given(tables)
def test_no_table_brings_anything_but_a_complaint(fields: dict[str, Any]) -> None:
    try:
        assert config.validated(Path("task.toml"), fields).unknown is not None
    except ScenarioError as error:
        assert str(error).startswith("task.toml: ")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_do(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("toml") / "task.toml"
    path.write_bytes(content)
    try:
        config.read(path)
    except ScenarioError as error:
        assert str(error).startswith(f"{path}: ")
