"""Installing with the real npm and uv, where it cannot work: what a person is told."""

import os
import shutil
from pathlib import Path

import pytest

from tests.live.polar import run
from tests.needs import need

pytestmark = pytest.mark.live

NOWHERE = "http://127.0.0.1:9/"
"""Nobody listens at this port."""


def refused(name: str, home: Path, **more: str) -> str:
    """What `polar harness install` says of a version that it can't get; nothing may be left of the try."""
    need([] if shutil.which("npm") else ["npm is not on PATH"])
    ended = run("harness", "install", name, env=os.environ | {"POLAR_HOME": str(home), **more})
    assert ended.returncode == 3, ended.stderr
    folder = home / "harnesses"
    assert not (folder / name.partition("@")[0]).exists()
    assert [path.name for path in folder.iterdir() if not path.name.endswith(".lock")] == []
    return ended.stderr


def test_without_a_network_npm_is_said_not_to_reach_its_registry(tmp_path: Path) -> None:
    nowhere = {
        "npm_config_registry": NOWHERE,
        "npm_config_fetch_retries": "0",
        "npm_config_cache": str(tmp_path / "cache"),
    }
    said = refused("codex", tmp_path / "home", **nowhere)
    assert "npm could not reach its registry, so codex is not installed; check the network" in said


def test_without_a_network_the_package_index_is_said_not_to_be_reached(tmp_path: Path) -> None:
    nowhere = {"UV_DEFAULT_INDEX": NOWHERE, "UV_INDEX_URL": NOWHERE, "PIP_INDEX_URL": NOWHERE}
    more = {"UV_NO_CACHE": "1", "UV_HTTP_RETRIES": "0", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    said = refused("mini-swe-agent", tmp_path / "home", **nowhere, **more)
    assert "the package index could not be reached, so mini-swe-agent is not installed; check the network" in said


@pytest.mark.parametrize("name", ["codex@0.0.999", "mini-swe-agent@99.0"])
def test_a_version_that_does_not_exist_is_named_with_the_one_that_works(name: str, tmp_path: Path) -> None:
    harness, _, version = name.partition("@")
    said = refused(name, tmp_path / "home")
    assert f"no version {version} of " in said
    assert f"`polar harness install {harness}` takes " in said
