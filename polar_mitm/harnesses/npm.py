"""npm packages in polar's home: fetching them, which version is there, and where its program is."""

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from polar_mitm.harnesses import node
from polar_mitm.harnesses.base import HarnessMissing, Installed, InstallFailed, Npm, install_folder
from polar_mitm.harnesses.versions import version_tuple

TIMEOUT_S = 1800
"""npm fetches up to 400 MB; a slow line needs minutes."""

MANIFEST = "package.json"

# Install scripts are not needed by these packages, and some versions of npm refuse them anyway.
OPTIONS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")

NO_NETWORK = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "EHOSTUNREACH")
NO_VERSION = ("ETARGET", "E404")


def manifest(name: str, source: Npm, version: str) -> dict[str, object]:
    """What package.json says once the packages are there."""
    packages = {source.package: version}
    if source.node and node.private():
        packages |= dict([node.PINNED.rsplit("@", 1)])
    return {"name": f"polar-{name}", "version": "1.0.0", "private": True, "dependencies": packages}


def fetch(name: str, source: Npm, version: str, folder: Path) -> None:
    """Install the packages into an empty folder. Raises InstallFailed."""
    npm = shutil.which("npm")
    if npm is None:
        raise InstallFailed(
            f"npm is not on PATH, and {name} comes from npm: install Node with npm "
            "(apt-get install npm on Debian and Ubuntu, dnf install npm on Fedora, brew install node on macOS)"
        )
    (folder / MANIFEST).write_text(json.dumps(manifest(name, source, version), indent=2))
    try:
        done = subprocess.run(
            [npm, "install", *OPTIONS],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InstallFailed(f"npm install did not end within {TIMEOUT_S} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        last = "\n".join(said.splitlines()[-20:])
        raise InstallFailed(f"{_reason(name, source, version, said, done.returncode)}:\n{last}")
    for pattern in source.executables:
        for file in (folder / "node_modules" / source.package).glob(pattern):
            file.chmod(file.stat().st_mode | 0o111)


def _reason(name: str, source: Npm, version: str, said: str, code: int) -> str:
    codes = set(re.findall(r"^npm \S+ code (\w+)", said, re.MULTILINE))
    if codes & set(NO_VERSION):
        mend = f"`polar harness install {name}` takes {source.version}"
        return f"npm has no version {version} of {source.package}: {mend}"
    if codes & set(NO_NETWORK):
        return (
            f"npm could not reach its registry, so {name} is not installed; check the network and npm's proxy settings"
        )
    return f"npm install failed with exit code {code}"


def installed_version(name: str, source: Npm, minimum: str) -> str:
    """The version of an installed package. Raises HarnessMissing when it is missing, unreadable or too old."""
    file = install_folder(name) / "node_modules" / source.package / "package.json"
    try:
        version = json.loads(file.read_bytes())["version"]
    except FileNotFoundError:
        raise HarnessMissing(name, "is not installed") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HarnessMissing(name, f"is installed but broken ({file}: {error})") from error
    if not isinstance(version, str) or version_tuple(version) < version_tuple(minimum):
        raise HarnessMissing(name, f"{version} is too old, {minimum} is the oldest that works")
    return version


def find_script(name: str, source: Npm, minimum: str, script: str) -> Installed:
    """A JavaScript program of the package, run by its Node. Raises HarnessMissing."""
    version = installed_version(name, source, minimum)
    binary, node_folders = node.find_node(name)
    file = install_folder(name) / "node_modules" / source.package / script
    if not file.is_file():
        raise HarnessMissing(name, f"is installed without its program ({script})")
    return Installed(version, [install_folder(name), *node_folders], [str(binary), str(file)])


def find_binary(name: str, source: Npm, minimum: str, binary: str) -> Installed:
    """The binary of the optional package that npm chose for this machine: `{machine}` in its path is `linux-x64`."""
    version = installed_version(name, source, minimum)
    modules = install_folder(name) / "node_modules"
    for machine in machines():
        if found := next(iter(sorted(modules.glob(binary.format(machine=machine)))), None):
            return Installed(version, [install_folder(name)], [str(found)])
    raise HarnessMissing(name, f"is installed without its binary for this machine ({machines()[0]})")


def machines() -> list[str]:
    """What packages call this machine, the likeliest first."""
    processor = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    machine = f"{sys.platform}-{processor}"
    return [f"{machine}-musl", machine] if node.is_musl() else [machine]


def script_folder(installed: Installed) -> Path:
    """The folder of the program that runs the harness, for its PATH."""
    return Path(installed.command[0]).parent
