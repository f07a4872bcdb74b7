"""requirements.lock holds all that pyproject.toml asks for, and no address of where it came from."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_lock_has_every_pinned_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    # Ray is 270 MB, and only `make ray-show` wants it here.
    extras = [asked for name, asked in project["project"]["optional-dependencies"].items() if name != "ray"]
    asked = [
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        *(one for e in extras for one in e),
    ]
    locked = set(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    missing = []
    for requirement in asked:
        name, version = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^;\s]+).*", requirement).groups()  # type: ignore[union-attr]
        if (re.sub(r"[-_.]+", "-", name).lower(), version) not in locked:
            missing.append(requirement)
    assert missing == [], "run `make lock`"


def test_the_lock_names_no_address() -> None:
    assert "://" not in (ROOT / "requirements.lock").read_text()
