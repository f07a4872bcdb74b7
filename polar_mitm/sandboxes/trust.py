"""The CA bundle of a run: the system's roots and the proxy's CA in one file. Makes no certificate."""

import os
import re
import ssl
import tempfile
from pathlib import Path

# Where distributions keep their roots as one file: Debian and Alpine, Fedora, SUSE, macOS and BSD.
SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def system_bundle() -> Path | None:
    """The file with this system's root certificates, if it keeps them in one."""
    names = (ssl.get_default_verify_paths().openssl_cafile, *SYSTEM_BUNDLES)
    return next((path for path in map(Path, names) if path.is_file()), None)


def bundle_path(ca: Path) -> Path:
    """Where the bundle of this CA lies: beside it."""
    return ca.with_name(f"{ca.stem}-bundle.pem")


def write_bundle(ca: Path) -> Path:
    """Write the bundle beside `ca` and return its path. Safe to call from several processes at once.

    Raises ValueError when `ca` holds a private key, which a harness must never see, or no certificate.
    """
    own = ca.read_text()
    if "PRIVATE KEY" in own:
        raise ValueError(f"{ca} holds a private key: name the file with the certificate alone")
    if not _CERTIFICATE.search(own):
        raise ValueError(f"{ca} holds no PEM certificate")
    target = bundle_path(ca)
    system = system_bundle()
    # A system without roots keeps none: the proxy, whose CA is then the only one, is the only way out anyway.
    roots = _CERTIFICATE.findall(system.read_text(errors="replace")) if system else []
    text = "\n".join([*roots, own.rstrip(), ""])
    if target.exists() and target.read_text() == text:
        return target
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(handle, "w") as out:
        out.write(text)
    Path(scratch).chmod(0o644)
    Path(scratch).replace(target)
    return target
