"""What a rollout server is started with, and the secrets that it needs."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from polar_mitm.errors import BadInput

MIB = 1024 * 1024


class SettingsError(BadInput):
    """A setting that cannot be used; the message says which and what is expected."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Settings:
    token: str
    """Guards everything. It is sent by trainers, gateways and people, and by the server to gateways."""
    database: str
    """URL."""
    files: str
    """A path or an fsspec URL: sessions' files lie under it."""
    callback_secret: str
    """Signs callbacks."""
    direct_files: bool = False
    """Gateways write to `files` themselves."""
    heartbeat_s: float = 5.0
    max_body: int = 16 * MIB
    """Bytes of a request."""
    max_file: int = 4096 * MIB
    """Bytes of a session's file."""
    kept_events: int = 200_000


def secret(name: str, file: Path | None, variable: str) -> str | None:
    """A secret from a file, else from the environment. Raises SettingsError for one that protects nothing."""
    if file is not None:
        try:
            value: str | None = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"the {name} cannot be read from {file}: {error}") from error
        where = str(file)
    else:
        value, where = os.environ.get(variable), f"${variable}"
    if value is None:
        return None
    if len(value) < 16 or not value.isascii() or not value.isprintable() or " " in value:
        raise SettingsError(f"the {name} in {where}: expected at least 16 printable ASCII characters without spaces")
    return value


def own_token(folder: Path) -> tuple[str, Path]:
    """The token in the state folder, made at the first start, and the file that holds it. Raises SettingsError."""
    path = folder / "token"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        found = secret("token", path, "")
        assert found is not None
        return found, path
    except OSError as error:
        raise SettingsError(f"{path} cannot be made: {error}") from error
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w") as file:
        file.write(token + "\n")
    return token, path
