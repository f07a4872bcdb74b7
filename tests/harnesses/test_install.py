"""Installing and finding harnesses, with an npm that is a script of ours: what it makes is as small as can be."""

import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from polar_mitm.harnesses import HARNESSES, HarnessMissing, claude_code, mini_swe_agent, node, pi, pip, qwen_code
from polar_mitm.harnesses.base import install_folder
from polar_mitm.harnesses.install import InstallFailed, install

PACKAGE, VERSION = pi.SOURCE.package, pi.SOURCE.version

# Makes the packages that pi asks for; its node prints what `pi --version` would.
NPM = f"""\
#!/bin/sh
echo "$@" >> "$NPM_LOG"
mkdir -p node_modules/{PACKAGE}/dist/bundle node_modules/{node.PACKAGE}/bin
echo '{{"version": "{VERSION}"}}' > node_modules/{PACKAGE}/package.json
touch node_modules/{PACKAGE}/dist/bundle/cli.js
printf '#!/bin/sh\\necho {VERSION}\\n' > node_modules/{node.PACKAGE}/bin/node
chmod +x node_modules/{node.PACKAGE}/bin/node
"""


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first folder of PATH; polar's home is empty, and the private node is what this machine would get."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    monkeypatch.setenv("POLAR_HOME", str(tmp_path / "polar-home"))
    monkeypatch.setenv("NPM_LOG", str(tmp_path / "npm.log"))
    monkeypatch.setattr(node, "private", lambda: True)
    return path


def put_npm(bin_folder: Path, script: str = NPM) -> None:
    (bin_folder / "npm").write_text(script)
    (bin_folder / "npm").chmod(0o755)


def npm_runs(bin_folder: Path) -> int:
    log = bin_folder.parent / "npm.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_the_pinned_packages_are_installed_and_found(bin_folder: Path) -> None:
    put_npm(bin_folder)
    said: list[str] = []
    installed = install("pi", said.append)
    assert installed == pi.find()
    assert installed.version == VERSION
    assert installed.read_only == [install_folder("pi")]
    assert all(Path(part).is_file() for part in installed.command)
    manifest = json.loads((install_folder("pi") / "package.json").read_text())
    assert manifest["dependencies"][PACKAGE] == VERSION
    assert said[-1] == f"pi {VERSION} is installed and starts"


def test_a_program_in_the_package_is_made_executable_as_its_install_script_would(bin_folder: Path) -> None:
    package = qwen_code.SOURCE.package
    npm = NPM.replace(PACKAGE, package).replace(VERSION, qwen_code.SOURCE.version)
    npm = npm.replace("dist/bundle", "vendor/ripgrep/x64-linux")
    more = f"touch node_modules/{package}/cli-entry.js node_modules/{package}/vendor/ripgrep/x64-linux/rg\n"
    put_npm(bin_folder, npm + more)
    install("qwen-code", lambda line: None)
    program = install_folder("qwen-code") / "node_modules" / package / "vendor/ripgrep/x64-linux/rg"
    assert os.access(program, os.X_OK)


def test_a_second_install_does_nothing(bin_folder: Path) -> None:
    put_npm(bin_folder)
    install("pi", lambda line: None)
    install("pi", lambda line: None)
    assert npm_runs(bin_folder) == 1


@pytest.mark.parametrize("damage", ["binary gone", "other pin", "manifest cut"])
def test_a_broken_or_outdated_install_is_replaced(bin_folder: Path, damage: str) -> None:
    put_npm(bin_folder)
    installed = install("pi", lambda line: None)
    manifest = install_folder("pi") / "package.json"
    match damage:
        case "binary gone":
            Path(installed.command[0]).unlink()
        case "other pin":
            manifest.write_text(manifest.read_text().replace(VERSION, "0.1.0"))
        case "manifest cut":
            manifest.write_text(manifest.read_text()[:20])
    (install_folder("pi") / "old").touch()
    assert install("pi", lambda line: None) == installed
    assert npm_runs(bin_folder) == 2
    assert not (install_folder("pi") / "old").exists()


def test_a_failing_npm_is_quoted_and_leaves_the_old_install_and_no_scraps(bin_folder: Path) -> None:
    put_npm(bin_folder)
    installed = install("pi", lambda line: None)
    manifest = install_folder("pi") / "package.json"
    manifest.write_text(manifest.read_text().replace(VERSION, "0.1.0"))
    put_npm(bin_folder, "#!/bin/sh\necho 'npm error code ENOSPC' >&2\nexit 3\n")
    with pytest.raises(InstallFailed, match="exit code 3:\nnpm error code ENOSPC"):
        install("pi", lambda line: None)
    assert pi.find() == installed
    assert sorted(path.name for path in install_folder("pi").parent.iterdir()) == [".pi.lock", "pi"]


def test_scraps_of_a_killed_install_are_removed_by_the_next(bin_folder: Path) -> None:
    put_npm(bin_folder)
    scrap = install_folder("pi").with_name(".pi-abc123")
    scrap.mkdir(parents=True)
    install("pi", lambda line: None)
    assert not scrap.exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "ETARGET",
            rf"npm has no version 1\.7\.0 of {PACKAGE}: `polar harness install pi` takes {VERSION}:\nnpm error",
        ),
        ("E404", r"npm has no version 1\.7\.0"),
        (
            "ENOTFOUND",
            r"npm could not reach its registry, so pi is not installed; check the network and",
        ),
        ("EAI_AGAIN", "npm could not reach its registry"),
        ("ENOSPC", "npm install failed with exit code 1"),
    ],
)
def test_what_npm_found_wrong_is_said_with_its_mend(bin_folder: Path, code: str, said: str) -> None:
    put_npm(bin_folder, f"#!/bin/sh\necho 'npm error code {code}' >&2\nexit 1\n")
    with pytest.raises(InstallFailed, match=said):
        install("pi", lambda line: None, "1.7.0")
    assert not install_folder("pi").exists()


def test_a_version_of_ones_own_choice_takes_the_place_of_the_pinned_one(bin_folder: Path) -> None:
    put_npm(bin_folder)
    install("pi", lambda line: None)
    put_npm(bin_folder, NPM.replace(VERSION, "1.9.3"))
    assert install("pi", lambda line: None, "1.9.3").version == "1.9.3"
    assert json.loads((install_folder("pi") / "package.json").read_text())["dependencies"][PACKAGE] == "1.9.3"
    install("pi", lambda line: None, "1.9.3")
    assert npm_runs(bin_folder) == 2
    put_npm(bin_folder)
    assert install("pi", lambda line: None).version == VERSION


@pytest.mark.parametrize("version", ["latest", "", "^1.6.0", "1", "--help", "1.6.0 x"])
def test_only_an_exact_version_is_installed(bin_folder: Path, version: str) -> None:
    put_npm(bin_folder)
    if not version:
        assert install("pi", lambda line: None, version).version == VERSION
        return
    with pytest.raises(InstallFailed, match="is no version: name one like"):
        install("pi", lambda line: None, version)
    assert npm_runs(bin_folder) == 0


def test_a_program_of_ones_own_is_not_installed(bin_folder: Path) -> None:
    with pytest.raises(InstallFailed, match="command is a program of your own"):
        install("command", lambda line: None)


# Makes an environment whose Python prints what the program's help would.
UV = """\
#!/bin/sh
echo "$@" >> "$NPM_LOG"
[ "$1" = venv ] || exit 0
for folder; do :; done
mkdir -p "$folder/bin" "$folder/lib/python3.12/site-packages/mini_swe_agent-VERSION.dist-info"
printf '#!/bin/sh\\necho "version VERSION"\\n' > "$folder/bin/python"
chmod +x "$folder/bin/python"
""".replace("VERSION", mini_swe_agent.SOURCE.version)


def put_uv(bin_folder: Path, monkeypatch: pytest.MonkeyPatch, script: str = UV) -> None:
    (bin_folder / "uv").write_text(script)
    (bin_folder / "uv").chmod(0o755)
    monkeypatch.setattr(pip, "_uv", lambda: str(bin_folder / "uv"))


def test_a_package_of_pypi_gets_an_environment_of_its_own(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_uv(bin_folder, monkeypatch)
    installed = install("mini-swe-agent", lambda line: None)
    assert installed == mini_swe_agent.find()
    assert installed.version == mini_swe_agent.SOURCE.version
    assert installed.command[0] == str(install_folder("mini-swe-agent") / "venv" / "bin" / "python")
    assert installed.command[1:] == ["-m", "minisweagent.run.mini"]
    assert installed.read_only[0] == install_folder("mini-swe-agent")
    runs = npm_runs(bin_folder)
    install("mini-swe-agent", lambda line: None)
    assert npm_runs(bin_folder) == runs


# Makes an environment with the Python that runs this.
LINKED = UV.partition("printf")[0] + f'ln -s {sys.executable} "$folder/bin/python"\n'


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a program brings no loader")
def test_its_python_brings_its_libraries_and_loader_and_starts_with_them(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_uv(bin_folder, monkeypatch, LINKED)
    folder = install_folder("mini-swe-agent")
    folder.mkdir(parents=True)
    pip.fetch("mini-swe-agent", mini_swe_agent.SOURCE, mini_swe_agent.SOURCE.version, folder)
    loader, flag, libraries, python, *_ = mini_swe_agent.find().command
    started = subprocess.run([loader, flag, libraries, python, "-c", "import ssl, ctypes"], check=False, env={})
    assert started.returncode == 0
    assert Path(libraries).parent == folder
    assert [path.name for path in Path(libraries).glob("libssl*")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("error sending request for url", "the package index could not be reached, so mini-swe-agent is not installed"),
        ("No solution found when resolving", r"there is no version 9\.9\.9 of mini-swe-agent: `polar harness install"),
        ("No space left on device", r"mini-swe-agent 9\.9\.9 could not be installed:\nNo space left on device"),
    ],
)
def test_what_the_package_index_answered_is_said_with_its_mend(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    put_uv(bin_folder, monkeypatch, f'#!/bin/sh\n[ "$1" = venv ] && exit 0\necho "{words}" >&2\nexit 1\n')
    with pytest.raises(InstallFailed, match=said):
        install("mini-swe-agent", lambda line: None, "9.9.9")
    assert not install_folder("mini-swe-agent").exists()


def test_an_environment_whose_python_is_gone_is_made_anew(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_uv(bin_folder, monkeypatch)
    installed = install("mini-swe-agent", lambda line: None)
    Path(installed.command[0]).unlink()
    with pytest.raises(HarnessMissing, match="the Python that it was made with is gone"):
        mini_swe_agent.find()
    assert install("mini-swe-agent", lambda line: None) == installed


def test_without_npm_the_message_says_how_to_get_it(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bin_folder))
    with pytest.raises(InstallFailed, match=r"npm is not on PATH.*apt-get install npm"):
        install("pi", lambda line: None)


def test_what_npm_installed_must_start(bin_folder: Path) -> None:
    put_npm(bin_folder, NPM.replace(f"echo {VERSION}\\n", "echo GLIBC_9.9 not found >&2; exit 1\\n"))
    with pytest.raises(InstallFailed, match=r"pi was installed but does not start here: GLIBC_9\.9 not found"):
        install("pi", lambda line: None)


def test_a_second_installer_waits_for_the_first(bin_folder: Path) -> None:
    put_npm(bin_folder)
    lock = install_folder("pi").with_name(".pi.lock")
    lock.parent.mkdir(parents=True)
    waiting = threading.Event()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        waiting.set()

    worker = threading.Thread(target=install, args=("pi", say))
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        worker.start()
        assert waiting.wait(5)
        assert said == ["waiting for another install of the same harness"]
        assert npm_runs(bin_folder) == 0
    worker.join(20)
    assert said[-1] == f"pi {VERSION} is installed and starts"


@pytest.mark.parametrize("name", [name for name, harness in HARNESSES.items() if harness.FACTS.source])
def test_a_harness_that_is_not_installed_says_the_command_that_installs_it(bin_folder: Path, name: str) -> None:
    with pytest.raises(HarnessMissing) as caught:
        HARNESSES[name].find()
    assert str(caught.value) == f"{name} is not installed: run `polar harness install {name}`"


def test_a_harness_that_is_too_old_says_both_versions(bin_folder: Path) -> None:
    put_npm(bin_folder)
    install("pi", lambda line: None)
    (install_folder("pi") / "node_modules" / PACKAGE / "package.json").write_text('{"version": "1.5.9"}')
    with pytest.raises(HarnessMissing, match=r"^pi 1\.5\.9 is too old, 1\.6\.0 is the oldest that works: run `polar "):
        pi.find()


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}', '{"version": 3}'])
def test_a_package_that_cannot_be_read_counts_as_broken_or_too_old(bin_folder: Path, text: str) -> None:
    put_npm(bin_folder)
    install("pi", lambda line: None)
    (install_folder("pi") / "node_modules" / PACKAGE / "package.json").write_text(text)
    with pytest.raises(HarnessMissing, match=r"broken|too old"):
        pi.find()


def test_claude_code_without_the_binary_for_this_machine_is_missing(bin_folder: Path) -> None:
    package = install_folder("claude-code") / "node_modules" / claude_code.SOURCE.package
    package.mkdir(parents=True)
    (package / "package.json").write_text(f'{{"version": "{claude_code.FACTS.minimum}"}}')
    with pytest.raises(HarnessMissing, match=r"installed without its binary for this machine \(linux-x64"):
        claude_code.find()


@pytest.mark.parametrize(("shown", "good"), [("v22.19.0", True), ("v24.1.0", True), ("v20.20.2", False), ("", False)])
def test_where_npm_has_no_node_the_one_on_path_must_be_new_enough(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, shown: str, good: bool
) -> None:
    monkeypatch.setattr(node, "private", lambda: False)
    binary = bin_folder / "node"
    binary.write_text(f"#!/bin/sh\necho '{shown}'\n")
    binary.chmod(0o755)
    if good:
        assert node.find_node("pi") == (binary, [bin_folder.parent])
        return
    with pytest.raises(HarnessMissing, match=r"pi needs Node 22\.19\.0 or newer on PATH, not "):
        node.find_node("pi")


def test_the_install_folder_is_the_users_own(bin_folder: Path) -> None:
    put_npm(bin_folder)
    install("pi", lambda line: None)
    assert stat.S_IMODE(install_folder("pi").stat().st_mode) == 0o700
