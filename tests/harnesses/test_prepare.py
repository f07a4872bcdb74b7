"""How every harness is started: command line, environment, files, input. Nothing is run here."""

import json

import pytest
from ruamel.yaml import YAML

from polar_mitm.harnesses import HARNESSES, Assignment, McpServer, mini_swe_agent, refusals
from polar_mitm.harnesses.base import Facts, answer_budget
from polar_mitm.harnesses.environment import BUNDLE_VARIABLES, CA_VARIABLES, PROXY_VARIABLES
from polar_mitm.harnesses.versions import split_version, version_tuple
from tests.harnesses.starts import COMMAND, INSTALLED, INSTRUCTION, PROXY, Mode, prepare
from tests.live.page import DOCS, with_facts

KEY_VARIABLES = {
    "pi": {"ANTHROPIC_API_KEY"},
    "pi-frozen": {"ANTHROPIC_API_KEY"},
    "claude-code": {"ANTHROPIC_API_KEY"},
    "codex": {"CODEX_API_KEY"},
    "qwen-code": {"OPENAI_API_KEY"},
    "gemini-cli": {"GEMINI_API_KEY"},
    "opencode": {"ANTHROPIC_API_KEY"},
    "mini-swe-agent": {"OPENAI_API_KEY"},
    "command": {"POLAR_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"},
}

every_harness = pytest.mark.parametrize("name", list(HARNESSES))
every_mode = pytest.mark.parametrize("mode", ["base-url", "proxy"])


@every_harness
@every_mode
def test_the_instruction_goes_in_by_stdin_or_a_file_and_on_no_command_line(name: str, mode: Mode) -> None:
    prepared = prepare(name, mode)
    assert prepared.stdin == (None if name == "mini-swe-agent" else INSTRUCTION.encode())
    if prepared.stdin is None:
        config = YAML(typ="safe", pure=True).load(prepared.files[mini_swe_agent.CONFIG_FILE])
        assert config["run"]["task"] == INSTRUCTION
    assert not any("touch" in word for word in [*prepared.argv, *prepared.env.values()])


@every_harness
@every_mode
def test_the_key_is_in_the_environment_alone(name: str, mode: Mode) -> None:
    prepared = prepare(name, mode)
    assert {variable for variable, value in prepared.env.items() if value == "secret"} == KEY_VARIABLES[name]
    assert not any("secret" in text for text in [*prepared.argv, *prepared.files.values()])


@every_harness
@every_mode
def test_the_harness_asks_for_the_model_it_was_given(name: str, mode: Mode) -> None:
    prepared = prepare(name, mode)
    if name == "command":
        assert prepared.argv == list(COMMAND)
        assert prepared.env["POLAR_MODEL"] == "tiny"
        return
    assert prepared.argv[: len(INSTALLED.command)] == INSTALLED.command
    assert prepared.argv[prepared.argv.index("--model") + 1].split("/")[-1] == "tiny"


@every_harness
@every_mode
def test_the_base_url_is_told_in_base_url_mode_alone(name: str, mode: Mode) -> None:
    prepared = prepare(name, mode)
    told = [text for text in [*prepared.env.values(), *prepared.files.values()] if "/s/ses_x" in text]
    assert bool(told) == (mode == "base-url")


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


EXTRA = 'Say "please".\nAlways\\never.'
SERVER = McpServer("python3", ("-m", "tools", "--x=1"), {"LEVEL": "2"})


@every_harness
@every_mode
def test_extra_instructions_get_in_where_the_harness_takes_them(name: str, mode: Mode) -> None:
    assignment = Assignment("x", extra_instructions=EXTRA)
    if "extra_instructions" not in HARNESSES[name].FACTS.takes:
        assert any(
            f"{name} takes no extra instructions" in line for line in refusals(HARNESSES[name], mode, assignment)
        )
        return
    prepared = prepare(name, mode, assignment)
    shown = [*prepared.argv, *prepared.files.values()]
    assert any(EXTRA in text or json.dumps(EXTRA) in text for text in shown)
    bare = prepare(name, mode, Assignment("x"))
    assert not any("please" in text for text in [*bare.argv, *bare.files.values()])


@every_harness
@every_mode
def test_mcp_servers_get_in_where_the_harness_takes_them(name: str, mode: Mode) -> None:
    assignment = Assignment("x", mcp_servers={"tools": SERVER})
    if "mcp_servers" not in HARNESSES[name].FACTS.takes:
        assert any(f"{name} takes no MCP servers" in line for line in refusals(HARNESSES[name], mode, assignment))
        return
    files = prepare(name, mode, assignment).files.values()
    assert any(all(word in text for word in ("tools", "python3", "--x=1", "LEVEL")) for text in files)
    assert not any("--x=1" in text for text in prepare(name, mode, Assignment("x")).files.values())


@every_harness
@every_mode
def test_a_limit_of_turns_gets_in_where_the_harness_has_one(name: str, mode: Mode) -> None:
    assignment = Assignment("x", max_turns=473)
    if "max_turns" not in HARNESSES[name].FACTS.takes:
        assert any(f"{name} has no limit of turns" in line for line in refusals(HARNESSES[name], mode, assignment))
        return
    prepared = prepare(name, mode, assignment)
    assert any("473" in text for text in [*prepared.argv, *prepared.files.values()])


@every_harness
def test_a_login_takes_the_keys_place_in_proxy_mode(name: str) -> None:
    assignment = Assignment("x", login=True)
    if "login" not in HARNESSES[name].FACTS.takes:
        assert any(f"{name} has no login" in line for line in refusals(HARNESSES[name], "proxy", assignment))
        return
    assert refusals(HARNESSES[name], "proxy", assignment) == []
    assert refusals(HARNESSES[name], "base-url", assignment) == [
        "a login goes to the provider's own host: it needs intercept: proxy"
    ]
    env = prepare(name, "proxy", assignment).env
    assert not env.keys() & KEY_VARIABLES[name]


def test_a_command_belongs_to_the_harness_command_alone() -> None:
    command = Assignment("x", command=("true",))
    assert refusals(HARNESSES["pi"], "proxy", command) == ["the harness pi takes no `command`"]
    assert refusals(HARNESSES["command"], "proxy", command) == []
    assert refusals(HARNESSES["command"], "proxy", Assignment("x")) == [
        "the harness command needs `command`, the program and its arguments"
    ]


@every_harness
def test_the_facts_of_a_harness_hold_together(name: str) -> None:
    facts: Facts = HARNESSES[name].FACTS
    assert name == HARNESSES[name].NAME
    assert facts.providers.keys() == {"base-url", "proxy"}
    if facts.source is not None:
        assert facts.source.version in facts.known_good
        assert version_tuple(facts.minimum) <= min(map(version_tuple, facts.known_good))
        assert facts.first_prompt > 500


@pytest.mark.parametrize(("window", "budget"), [(512, 256), (8192, 2048), (65_536, 16_384), (1_000_000, 32_000)])
def test_an_answer_may_take_a_quarter_of_the_window(window: int, budget: int) -> None:
    assert answer_budget(window, 32_000) == budget


@pytest.mark.parametrize(
    ("older", "newer"), [("1.6.0", "1.10.0"), ("1.6.0", "1.6.1"), ("nonsense", "0.0.1"), ("v22.9.0", "v22.19.0")]
)
def test_versions_are_ordered_by_number(older: str, newer: str) -> None:
    assert version_tuple(older) < version_tuple(newer)


def test_a_version_may_follow_a_harness_name() -> None:
    assert split_version("codex") == ("codex", None)
    assert split_version("codex@0.171.0") == ("codex", "0.171.0")


def test_the_page_about_harnesses_says_what_their_modules_say() -> None:
    text = DOCS.read_text()
    assert with_facts(text) == text, "run `python -m tests.live.page`"
