"""How each harness is started: command line, environment, files, input. Nothing is run here."""

import json
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pytest

from polar_mitm.harnesses import HARNESSES, Access, Installed, Prepared
from polar_mitm.harnesses.base import answer_budget, version_tuple
from polar_mitm.harnesses.environment import BUNDLE_VARIABLES, CA_VARIABLES, PROXY_VARIABLES
from polar_mitm.sandboxes import Layout

LAYOUT = Layout(
    workspace=PurePosixPath("/workspace"),
    home=PurePosixPath("/home/agent"),
    ca=PurePosixPath("/run/ca.pem"),
    ca_bundle=PurePosixPath("/run/bundle.pem"),
    proxy_port=8080,
    base_port=8081,
)
INSTALLED = Installed("9.9.9", [Path("/inst")], ["/inst/bin/node", "/inst/cli.js"])
INSTRUCTION = "Say “hi”; $(touch x)\n-- --help"
PROXY = "http://ses_x:secret@127.0.0.1:8080"

KEY_VARIABLES = {"pi": "ANTHROPIC_API_KEY", "claude-code": "ANTHROPIC_API_KEY", "codex": "CODEX_API_KEY"}

type Mode = Literal["base-url", "proxy"]


def prepare(name: str, mode: Mode, *, max_model_len: int = 8192, proxy_url: str = PROXY) -> Prepared:
    access = Access(
        mode=mode,
        base_url="http://127.0.0.1:8081/s/ses_x",
        proxy_url=proxy_url,
        key="secret",
        model="tiny",
        max_model_len=max_model_len,
    )
    return HARNESSES[name].prepare(INSTALLED, access, LAYOUT, INSTRUCTION)


every_harness = pytest.mark.parametrize("name", list(HARNESSES))
every_mode = pytest.mark.parametrize("mode", ["base-url", "proxy"])


@every_harness
@every_mode
def test_the_instruction_goes_in_by_stdin_and_on_no_command_line(name: str, mode: Mode) -> None:
    prepared = prepare(name, mode)
    assert prepared.stdin == INSTRUCTION.encode()
    assert not any("touch" in word for word in prepared.argv)


@every_harness
@every_mode
def test_the_key_is_in_the_environment_alone(name: str, mode: Mode) -> None:
    prepared = prepare(name, mode)
    assert [variable for variable, value in prepared.env.items() if value == "secret"] == [KEY_VARIABLES[name]]
    assert not any("secret" in text for text in [*prepared.argv, *prepared.files.values()])


@every_harness
@every_mode
def test_the_harness_asks_for_the_model_it_was_given(name: str, mode: Mode) -> None:
    argv = prepare(name, mode).argv
    assert argv[: len(INSTALLED.command)] == INSTALLED.command
    assert argv[argv.index("--model") + 1] == "tiny"


@every_harness
@every_mode
def test_trust_is_the_bundle_where_it_replaces_and_the_ca_where_it_adds(name: str, mode: Mode) -> None:
    env = prepare(name, mode).env
    assert {env[variable] for variable in BUNDLE_VARIABLES} == {"/run/bundle.pem"}
    assert {env[variable] for variable in CA_VARIABLES} == {"/run/ca.pem"}
    assert {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"} <= set(BUNDLE_VARIABLES)
    assert {"NODE_EXTRA_CA_CERTS", "CODEX_CA_CERTIFICATE"} <= set(CA_VARIABLES)


@every_harness
@every_mode
def test_proxy_variables_agree_in_both_cases(name: str, mode: Mode) -> None:
    env = prepare(name, mode).env
    for variable in PROXY_VARIABLES:
        assert env[variable] == env[variable.lower()] == PROXY
    assert env["NO_PROXY"] == env["no_proxy"] == {"proxy": "", "base-url": "127.0.0.1,localhost"}[mode]


@every_harness
def test_without_a_proxy_there_are_no_proxy_variables(name: str) -> None:
    env = prepare(name, "base-url", proxy_url="").env
    assert not [variable for variable in env if variable.lower().endswith("_proxy")]


@every_harness
@every_mode
def test_nothing_of_this_process_environment_gets_in(name: str, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prepare(name, mode).env
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "PATH", "HOME", "NO_PROXY", "NODE_OPTIONS"):
        monkeypatch.setenv(variable, "/of/the/user")
    assert prepare(name, mode).env == before
    assert before["HOME"] == "/home/agent"
    assert before["PATH"].endswith("/usr/local/bin:/usr/bin:/bin")


def test_pi_speaks_chat_to_the_base_url_in_base_url_mode() -> None:
    prepared = prepare("pi", "base-url")
    models = json.loads(prepared.files[".pi/agent/models.json"])
    assert models == {
        "providers": {
            "polar": {
                "baseUrl": "http://127.0.0.1:8081/s/ses_x/v1",
                "api": "openai-completions",
                "apiKey": "$ANTHROPIC_API_KEY",
                "models": [{"id": "tiny", "contextWindow": 8192, "maxTokens": 2048}],
            }
        }
    }
    assert prepared.argv[prepared.argv.index("--provider") + 1] == "polar"


def test_pi_keeps_the_providers_own_host_in_proxy_mode_and_sends_whole_conversations() -> None:
    prepared = prepare("pi", "proxy")
    (provider,) = json.loads(prepared.files[".pi/agent/models.json"])["providers"].values()
    assert provider.keys() == {"models"}, "neither address nor key of the provider may change"
    assert provider["models"][0]["compat"] == {"supportsMessageThreads": False}
    assert prepared.argv[prepared.argv.index("--provider") + 1] == "anthropic"


@pytest.mark.parametrize(("window", "reserve", "keep"), [(8192, 2048, 2048), (262_144, 16_384, 20_000)])
def test_pi_compacts_in_proportion_to_the_window_up_to_its_own_numbers(window: int, reserve: int, keep: int) -> None:
    settings = json.loads(prepare("pi", "base-url", max_model_len=window).files[".pi/agent/settings.json"])
    assert settings["compaction"] == {"reserveTokens": reserve, "keepRecentTokens": keep}


def test_pi_finds_its_own_node_first() -> None:
    assert prepare("pi", "proxy").env["PATH"].split(":")[0] == "/inst/bin"


def test_claude_code_has_its_base_url_in_base_url_mode_only() -> None:
    assert prepare("claude-code", "base-url").env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8081/s/ses_x"
    assert "ANTHROPIC_BASE_URL" not in prepare("claude-code", "proxy").env


def test_claude_code_is_told_the_window_and_sends_no_line_that_changes_each_time() -> None:
    env = prepare("claude-code", "proxy", max_model_len=65_536).env
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536"
    assert env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "16384"
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert env["IS_SANDBOX"] == "1"


def test_codex_has_a_provider_of_its_own_in_base_url_mode_only() -> None:
    config = tomllib.loads(prepare("codex", "base-url").files[".codex/config.toml"])
    assert config["model_provider"] == "polar"
    assert config["model_providers"]["polar"]["base_url"] == "http://127.0.0.1:8081/s/ses_x/v1"
    assert config["model_providers"]["polar"]["env_key"] == "CODEX_API_KEY"
    config = tomllib.loads(prepare("codex", "proxy").files[".codex/config.toml"])
    assert config.keys() & {"model_provider", "model_providers", "openai_base_url"} == set()


@pytest.mark.parametrize(("window", "compact"), [(8192, 6144), (65_536, 49_152), (400_000, 368_000)])
def test_codex_compacts_while_an_answer_still_fits(window: int, compact: int) -> None:
    config = tomllib.loads(prepare("codex", "proxy", max_model_len=window).files[".codex/config.toml"])
    assert (config["model_context_window"], config["model_auto_compact_token_limit"]) == (window, compact)


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        ([("agent_message", "first"), ("command_execution", "x"), ("agent_message", " Paris. \n")], "Paris."),
        ([("agent_message", "first"), ("error", "broke")], "first"),
        ([], ""),
    ],
)
def test_codexs_answer_is_its_last_message(events: list[tuple[str, str]], answer: str) -> None:
    lines = [json.dumps({"type": "item.completed", "item": {"type": kind, "text": text}}) for kind, text in events]
    assert HARNESSES["codex"].answer("\n".join(["a warning", "7", *lines, '{"type": "item'])) == answer


@pytest.mark.parametrize(("window", "budget"), [(512, 256), (8192, 2048), (65_536, 16_384), (1_000_000, 32_000)])
def test_an_answer_may_take_a_quarter_of_the_window(window: int, budget: int) -> None:
    assert answer_budget(window, 32_000) == budget


def test_pis_answer_is_all_it_printed() -> None:
    assert HARNESSES["pi"].answer("Two\nlines.\n\n") == "Two\nlines."


def text_event(text: str, parent: str | None = None) -> dict[str, Any]:
    content = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}]
    return {"type": "assistant", "parent_tool_use_id": parent, "message": {"content": content}}


RESULT = {"type": "result", "subtype": "success", "result": " Paris. \n"}


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        ([{"type": "system"}, text_event("first"), RESULT], "Paris."),
        ([text_event("first"), text_event("second"), {"type": "user"}], "second"),
        ([text_event("mine"), text_event("a sub-agent's", parent="toolu_1")], "mine"),
        ([{"type": "result", "subtype": "error_during_execution", "is_error": True}], ""),
        ([], ""),
        # What a program run by the agent may have written to the same output.
        ([text_event("mine"), {**text_event(""), "message": {"content": ["x", 1, {"type": "text"}]}}], "mine"),
        (["words", 7, None], ""),
    ],
)
def test_claude_codes_answer_is_its_result_or_the_last_text_before_it_was_killed(
    events: list[Any], answer: str
) -> None:
    lines = [json.dumps(event) for event in events]
    assert HARNESSES["claude-code"].answer("\n".join(lines)) == answer
    assert HARNESSES["claude-code"].answer("\n".join(["a warning", *lines, '{"type": "assist'])) == answer


@pytest.mark.parametrize(
    ("older", "newer"), [("1.6.0", "1.10.0"), ("1.6.0", "1.6.1"), ("nonsense", "0.0.1"), ("v22.9.0", "v22.19.0")]
)
def test_versions_are_ordered_by_number(older: str, newer: str) -> None:
    assert version_tuple(older) < version_tuple(newer)
