"""A run of a shell script in a sandbox, with everything a run needs."""

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from polar_mitm.sandboxes import SANDBOXES, Exit, Layout, RunSpec, Sandbox
from polar_mitm.sandboxes.base import Own, Redirect
from polar_mitm.sandboxes.base_image import BASE_IMAGE
from polar_mitm.sandboxes.images import has_image
from polar_mitm.sandboxes.limits import Limits
from tests.needs import need


@dataclass
class Run:
    """`await run(script)` runs it with `sh -c`; the fields are what the next run gets."""

    sandbox: Sandbox
    folder: Path
    ca: Path
    env: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin:/bin"})
    read_only: list[Path] = field(default_factory=list)
    sockets: dict[int, Path] = field(default_factory=dict)
    stdin: Path | None = None
    marker: str = "ses_test"
    redirect: Redirect | None = None
    limits: Limits = field(default_factory=Limits)
    image: str | None = None
    keep: bool = False
    workdir: PurePosixPath | None = None
    own: Own | None = None

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def layout(self) -> Layout:
        return self.sandbox.layout(
            workspace=self.workspace,
            home=self.home,
            ca=self.ca,
            proxy_port=1111,
            base_port=2222,
            workdir=self.workdir,
        )

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def spec(self, *argv: str, timeout_s: float = 30) -> RunSpec:
        return RunSpec(
            argv=list(argv),
            env=self.env,
            workspace=self.workspace,
            home=self.home,
            ca=self.ca,
            stdin=self.stdin,
            stdout=self.folder / "stdout",
            stderr=self.folder / "stderr",
            timeout_s=timeout_s,
            marker=self.marker,
            read_only=self.read_only,
            sockets=self.sockets,
            redirect=self.redirect,
            limits=self.limits,
            image=self.image,
            keep=self.keep,
            workdir=self.workdir,
            own=self.own,
        )

    async def __call__(self, script: str, timeout_s: float = 30) -> Exit:
        return await self.sandbox.run(self.spec("/bin/sh", "-c", script, timeout_s=timeout_s))


@pytest.fixture(scope="session")
def ca_pem() -> bytes:
    """A certificate of our own, without its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "polar test CA")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def ca(tmp_path: Path, ca_pem: bytes) -> Path:
    path = tmp_path / "ca.pem"
    path.write_bytes(ca_pem)
    return path


def make_run(name: str, folder: Path, ca: Path) -> Run:
    run = Run(SANDBOXES[name], folder, ca, marker=f"ses_{os.getpid()}_{folder.name}")
    if name == "container":
        need([] if has_image(BASE_IMAGE) else [f"there is no image {BASE_IMAGE}: make it with `polar sandbox image`"])
        run.image = BASE_IMAGE
    run.workspace.mkdir()
    run.home.mkdir()
    return run
