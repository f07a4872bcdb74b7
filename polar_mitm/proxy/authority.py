"""The certificate authority that mitmproxy signs with: made once and whole, whoever else starts at the same time."""

import fcntl
import os
import tempfile
from pathlib import Path

from mitmproxy.certs import CertStore

NAME = "mitmproxy"
KEY = f"{NAME}-ca.pem"
KEY_BITS = 2048


def make_authority(folder: Path) -> None:
    """See to it that the folder holds a certificate authority. One that was left half written is made anew.

    mitmproxy makes one itself where there is none, but writes it in place: a proxy that starts at the same time reads
    half of it, and one that is killed meanwhile leaves a file with which none starts again. Blocks. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / KEY).exists() and (folder / KEY).stat().st_size:
            return
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as temporary:
            CertStore.create_store(Path(temporary), NAME, KEY_BITS)
            # The key is what says that there is an authority: it comes last.
            for path in sorted(Path(temporary).iterdir(), key=lambda path: path.name == KEY):
                path.replace(folder / path.name)
    finally:
        os.close(lock)
