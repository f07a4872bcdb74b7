"""Codex CLI, run by its native binary. Speaks OpenAI Responses only; a first request is about 9 000 prompt tokens.

The model is asked for by the engine's own name: one that Codex does not know gets the classic tools, functions with
JSON arguments; names of its own catalogue get one JavaScript tool in their place. Facts are from runs of 0.171.0.
"""

import base64
import json
from pathlib import Path

from polar_mitm.harnesses.actions import Action, ToolCall, in_shell
from polar_mitm.harnesses.base import Access, Assignment, Facts, Installed, Npm, Prepared, answer_budget
from polar_mitm.harnesses.environment import environment
from polar_mitm.harnesses.events import events
from polar_mitm.harnesses.npm import find_binary
from polar_mitm.sandboxes.base import Layout

NAME = "codex"
SOURCE = Npm("@openai/codex", "0.171.0")
_IDS = ("session-id", "thread-id", "x-codex-window-id")
FACTS = Facts(
    source=SOURCE,
    known_good=("0.171.0",),
    minimum="0.171.0",
    first_prompt=9_100,
    providers={"base-url": "openai-responses", "proxy": "openai-responses"},
    session_ids={"base-url": _IDS, "proxy": _IDS},
    side_requests=(
        "a websocket to /v1/responses in proxy mode: 426, and it goes on over HTTPS",
        "GET chatgpt.com/backend-api/wham/accounts/check with a login: an account without constraints",
        "models, plugins and metrics at chatgpt.com, github.com and ab.chatgpt.com: 404",
    ),
    sub_agents=True,
    takes=frozenset({"extra_instructions", "mcp_servers", "login"}),
)
FINISH: ToolCall | None = None

KEY_VARIABLE = "CODEX_API_KEY"
"""Its own `exec` reads it before any login."""

# The prompt comes on stdin. The sandbox around it is polar's; its own would be a second one inside.
FLAGS = ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")

MAX_ANSWER = 32_000
"""It sends no limit of its own; this much of the window it leaves free when it compacts."""

ACCOUNT = "account"
"""Of the login; polar's answer to the account check names the same."""


def find() -> Installed:
    # npm brings one optional package, named after this machine; its binary is static and needs no Node.
    return find_binary(NAME, SOURCE, FACTS.minimum, f"{SOURCE.package}-{{machine}}/vendor/*/bin/codex")


def prepare(installed: Installed, access: Access, layout: Layout, assignment: Assignment) -> Prepared:
    env = environment(access, layout) | {"CODEX_HOME": str(layout.home / ".codex")}
    files = {".codex/config.toml": _config(access, assignment)}
    if assignment.login:
        files[".codex/auth.json"] = _login()
    else:
        env[KEY_VARIABLE] = access.key
    return Prepared(
        argv=[*installed.command, *FLAGS, "--model", access.model, "-"],
        env=env,
        files=files,
        stdin=assignment.instruction.encode(),
    )


def tool_call(action: Action, layout: Layout) -> ToolCall:
    """The classic tool set has a shell and no tools for files."""
    return "exec_command", {"cmd": in_shell(action)}


def delegate(prompt: str) -> ToolCall:
    """It runs beside the one that started it, which is not kept waiting."""
    return "multi_agent_v1__spawn_agent", {"message": prompt}


def answer(stdout: str, home: Path) -> str:
    """The text of the last message that it gave."""
    last = ""
    for event in events(stdout):
        match event:
            case {"type": "item.completed", "item": {"type": "agent_message", "text": str(text)}}:
                last = text.strip() or last
    return last


def _config(access: Access, assignment: Assignment) -> str:
    """TOML: a JSON string without escapes of its own is a TOML string too."""
    window = access.max_model_len
    lines = [
        f"model_context_window = {window}",
        f"model_auto_compact_token_limit = {window - answer_budget(window, MAX_ANSWER)}",
        "check_for_update_on_startup = false",
        'web_search = "disabled"',
    ]
    if access.mode == "base-url":  # its built-in provider would try a websocket first
        lines.append('model_provider = "polar"')
    if assignment.extra_instructions:
        lines.append(f"developer_instructions = {_text(assignment.extra_instructions)}")
    lines += ["[analytics]", "enabled = false", "[feedback]", "enabled = false"]
    if access.mode == "base-url":
        lines += [
            "[model_providers.polar]",
            'name = "polar"',
            f"base_url = {_text(f'{access.base_url}/v1')}",
            'wire_api = "responses"',
            f'env_key = "{KEY_VARIABLE}"',
        ]
    for name, server in assignment.mcp_servers.items():
        lines += [
            f"[mcp_servers.{_text(name)}]",
            f"command = {_text(server.command)}",
            f"args = [{', '.join(map(_text, server.args))}]",
            f"env = {{{', '.join(f'{_text(key)} = {_text(value)}' for key, value in server.env.items())}}}",
        ]
    return "\n".join([*lines, ""])


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _login() -> str:
    """The file that a ChatGPT login leaves, with a token that nobody signed, good until 2096."""
    who = {"chatgpt_plan_type": "pro", "chatgpt_account_id": ACCOUNT, "chatgpt_user_id": "user"}
    claims = {"email": "agent@example.com", "exp": 4_000_000_000, "https://api.openai.com/auth": who}
    parts = [{"alg": "none", "typ": "JWT"}, claims]
    packed = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    token = ".".join([*packed, "c2ln"])
    tokens = {"id_token": token, "access_token": token, "refresh_token": "none", "account_id": ACCOUNT}
    return json.dumps({"OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": "2099-01-01T00:00:00Z"})
