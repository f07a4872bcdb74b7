"""The environment that every harness starts with: paths, locale, proxy and CA variables. Nothing of the user's own."""

from collections.abc import Sequence
from pathlib import Path

from polar_mitm.harnesses.base import Access
from polar_mitm.sandboxes.base import Layout

SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")

# Each is read by some program instead of the system's roots, and replaces them: hence the bundle, never the CA alone.
BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",  # OpenSSL, Python's ssl, Go, Rust, Bun
    "REQUESTS_CA_BUNDLE",  # Python requests
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "NIX_SSL_CERT_FILE",
)

# Each adds to the roots.
CA_VARIABLES = (
    "NODE_EXTRA_CA_CERTS",
    "DENO_CERT",
    "CODEX_CA_CERTIFICATE",  # its websocket client reads neither of the others
)

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def environment(access: Access, layout: Layout, *, path_first: Sequence[Path] = ()) -> dict[str, str]:
    """The whole environment but for the harness's own variables. `path_first` goes before the system's PATH."""
    return {
        "PATH": ":".join([*map(str, path_first), *SYSTEM_PATH]),
        "HOME": str(layout.home),
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        **_trust(layout),
        **_proxy(access),
    }


def _trust(layout: Layout) -> dict[str, str]:
    if layout.ca is None or layout.ca_bundle is None:
        return {}
    return dict.fromkeys(BUNDLE_VARIABLES, str(layout.ca_bundle)) | dict.fromkeys(CA_VARIABLES, str(layout.ca))


def _proxy(access: Access) -> dict[str, str]:
    """Both cases alike: programs disagree on which wins.

    In proxy mode no address is exempt, so that no list can route a model call past the proxy. In base-url mode the
    loopback is, where the base URL is; all else still goes to the proxy, which refuses what the internet would get.
    """
    if not access.proxy_url:
        return {}
    exempt = "" if access.mode == "proxy" else "127.0.0.1,localhost"
    upper = dict.fromkeys(PROXY_VARIABLES, access.proxy_url) | {"NO_PROXY": exempt}
    return upper | {name.lower(): value for name, value in upper.items()}
