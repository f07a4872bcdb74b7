"""How each harness would be started, for tests that start nothing."""

from pathlib import Path, PurePosixPath
from typing import Literal

from polar_mitm.harnesses import HARNESSES, Access, Assignment, Installed, Prepared
from polar_mitm.sandboxes import Layout

type Mode = Literal["base-url", "proxy"]

LAYOUT = Layout(
    workspace=PurePosixPath("/workspace"),
    home=PurePosixPath("/home/agent"),
    ca=PurePosixPath("/run/ca.pem"),
    ca_bundle=PurePosixPath("/run/bundle.pem"),
    proxy_port=8080,
    base_port=8081,
)
INSTALLED = Installed("9.9.9", [Path("/inst")], ["/inst/bin/node", "/inst/cli.js"])
INSTRUCTION = "Say “hi” 😀; $(touch x)\n-- --help"
BASE_URL = "http://127.0.0.1:8081/s/ses_x"
PROXY = "http://ses_x:secret@127.0.0.1:8080"
COMMAND = ("python3", "agent.py")


def prepare(
    name: str,
    mode: Mode,
    assignment: Assignment | None = None,
    *,
    max_model_len: int = 8192,
    proxy_url: str = PROXY,
) -> Prepared:
    access = Access(
        mode=mode,
        base_url=BASE_URL,
        proxy_url=proxy_url,
        key="secret",
        model="tiny",
        max_model_len=max_model_len,
    )
    assignment = assignment or Assignment(INSTRUCTION, command=COMMAND if name == "command" else ())
    return HARNESSES[name].prepare(INSTALLED, access, LAYOUT, assignment)
