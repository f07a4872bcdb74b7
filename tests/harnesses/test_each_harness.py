"""What is particular to each harness: its configuration files, its variables, how its answer is read."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from polar_mitm.harnesses import HARNESSES, Assignment, McpServer, mini_swe_agent
from polar_mitm.harnesses.events import complaint
from tests.harnesses.starts import BASE_URL, prepare

NO_HOME = Path("/nonexistent")


def test_pi_speaks_chat_to_the_base_url_in_base_url_mode() -> None:
    prepared = prepare("pi", "base-url")
    models = json.loads(prepared.files[".pi/agent/models.json"])
    assert models == {
        "providers": {
            "polar": {
                "baseUrl": f"{BASE_URL}/v1",
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


@pytest.mark.parametrize("name", ["pi", "pi-frozen", "qwen-code", "gemini-cli"])
def test_a_harness_in_javascript_finds_its_own_node_first(name: str) -> None:
    assert prepare(name, "proxy").env["PATH"].split(":")[0] == "/inst/bin"


def test_the_frozen_pi_names_the_variable_with_the_key_without_a_sign() -> None:
    models = json.loads(prepare("pi-frozen", "base-url").files[".pi/agent/models.json"])
    assert models["providers"]["polar"]["apiKey"] == "ANTHROPIC_API_KEY"


@pytest.mark.parametrize("name", ["pi", "pi-frozen", "command"])
def test_what_prints_nothing_but_its_answer_is_read_as_it_is(name: str) -> None:
    assert HARNESSES[name].answer("Two\nlines.\n\n", NO_HOME) == "Two\nlines."


def test_claude_code_is_told_the_window_and_sends_no_line_that_changes_each_time() -> None:
    env = prepare("claude-code", "proxy", max_model_len=65_536).env
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "78536"
    assert env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "16384"
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert env["IS_SANDBOX"] == "1"


def text_event(text: str, parent: str | None = None) -> dict[str, Any]:
    content = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}]
    return {"type": "assistant", "parent_tool_use_id": parent, "message": {"content": content}}


RESULT = {"type": "result", "subtype": "success", "result": " Paris. \n"}


def printed(events: list[Any]) -> str:
    """The events as lines, among what other programs write to the same output, the last line cut by a kill."""
    return "\n".join(["a warning", *map(json.dumps, events), '{"type": "assist'])


@pytest.mark.parametrize("name", ["claude-code", "qwen-code"])
@pytest.mark.parametrize(
    ("events", "answer"),
    [
        ([{"type": "system"}, text_event("first"), RESULT], "Paris."),
        ([text_event("first"), text_event("second"), {"type": "user"}], "second"),
        ([text_event("mine"), text_event("a sub-agent's", parent="toolu_1")], "mine"),
        ([{"type": "result", "subtype": "error_during_execution", "is_error": True}], ""),
        ([], ""),
        ([text_event("mine"), {**text_event(""), "message": {"content": ["x", 1, {"type": "text"}]}}], "mine"),
        (["words", 7, None], ""),
    ],
)
def test_the_answer_is_the_result_or_the_last_text_before_a_kill(name: str, events: list[Any], answer: str) -> None:
    assert HARNESSES[name].answer(printed(events), NO_HOME) == answer


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            {"type": "result", "subtype": "success", "is_error": True, "result": "Prompt is too long"},
            "Prompt is too long",
        ),
        ({"type": "result", "subtype": "error_max_turns", "is_error": True}, "error_max_turns"),
        ({"type": "result", "subtype": "error", "is_error": True, "error": {"message": "too large"}}, "too large"),
        ({"type": "result", "status": "error", "error": {"type": "x", "message": "API Error"}}, "API Error"),
        ({"type": "error", "error": {"name": "UnknownError", "data": {"message": "no"}}}, "no"),
        ({"type": "error", "message": "Reconnecting 5/5"}, "Reconnecting 5/5"),
        ({"type": "turn.failed", "error": {"message": "stream closed"}}, "stream closed"),
        (RESULT, "first"),
        ({"type": "error"}, "first"),
    ],
)
def test_a_harness_own_word_on_a_failure_is_found(event: dict[str, Any], said: str) -> None:
    assert complaint(printed([{"type": "error", "message": "first"}, event, text_event("hi")])) == said


def codex_config(mode: Any, assignment: Assignment | None = None, **more: Any) -> dict[str, Any]:
    return tomllib.loads(prepare("codex", mode, assignment, **more).files[".codex/config.toml"])


def test_codex_has_a_provider_of_its_own_in_base_url_mode_only() -> None:
    config = codex_config("base-url")
    assert config["model_provider"] == "polar"
    assert config["model_providers"]["polar"]["base_url"] == f"{BASE_URL}/v1"
    assert config["model_providers"]["polar"]["env_key"] == "CODEX_API_KEY"
    assert codex_config("proxy").keys() & {"model_provider", "model_providers", "openai_base_url"} == set()


@pytest.mark.parametrize(("window", "compact"), [(8192, 6144), (65_536, 49_152), (400_000, 368_000)])
def test_codex_compacts_while_an_answer_still_fits(window: int, compact: int) -> None:
    config = codex_config("proxy", max_model_len=window)
    assert (config["model_context_window"], config["model_auto_compact_token_limit"]) == (window, compact)


AWKWARD = 'a "b" \\ \x7f \u2028 \U0001f600\n\ttab'


def test_codexs_configuration_holds_any_text() -> None:
    server = McpServer(AWKWARD, (AWKWARD, ""), {AWKWARD: AWKWARD})
    assignment = Assignment("x", extra_instructions=AWKWARD, mcp_servers={AWKWARD: server})
    config = codex_config("base-url", assignment)
    assert config["developer_instructions"] == AWKWARD
    assert config["mcp_servers"] == {AWKWARD: {"command": AWKWARD, "args": [AWKWARD, ""], "env": {AWKWARD: AWKWARD}}}
    assert config["model_providers"]["polar"]["wire_api"] == "responses"


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        ([("agent_message", "first"), ("command_execution", "x"), ("agent_message", " Paris. \n")], "Paris."),
        ([("agent_message", "first"), ("error", "broke")], "first"),
        ([], ""),
    ],
)
def test_codexs_answer_is_its_last_message(events: list[tuple[str, str]], answer: str) -> None:
    items = [{"type": "item.completed", "item": {"type": kind, "text": text}} for kind, text in events]
    assert HARNESSES["codex"].answer(printed(items), NO_HOME) == answer


def test_qwen_code_is_told_the_window() -> None:
    settings = json.loads(prepare("qwen-code", "proxy", max_model_len=65_536).files[".qwen/settings.json"])
    assert settings["model"]["generationConfig"] == {
        "contextWindowSize": 82_152,
        "samplingParams": {"max_tokens": 16_384},
    }


def test_gemini_cli_compresses_at_a_share_of_the_window_it_assumes() -> None:
    settings = json.loads(prepare("gemini-cli", "proxy", max_model_len=65_536).files[".gemini/settings.json"])
    assert settings["model"]["compressionThreshold"] * 1_048_576 == 65_536 - 16_384
    assert settings["security"]["auth"]["selectedType"] == "gemini-api-key"


def gemini_text(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text, "delta": True}


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        ([gemini_text("I will look. "), {"type": "tool_use"}, gemini_text("Par"), gemini_text("is.\n")], "Paris."),
        ([{"type": "message", "role": "user", "content": "mine"}, gemini_text("x"), {"type": "result"}], "x"),
        ([], ""),
    ],
)
def test_gemini_clis_answer_is_its_text_since_the_last_tool_call(events: list[Any], answer: str) -> None:
    assert HARNESSES["gemini-cli"].answer(printed(events), NO_HOME) == answer


def test_opencode_has_a_provider_of_its_own_in_base_url_mode_and_anthropics_else() -> None:
    config = json.loads(prepare("opencode", "base-url").files[".config/opencode/opencode.json"])
    provider = config["provider"]["polar"]
    assert provider["options"] == {"baseURL": f"{BASE_URL}/v1", "apiKey": "{env:ANTHROPIC_API_KEY}"}
    assert provider["models"]["tiny"]["limit"] == {"context": 8192, "output": 2048}
    config = json.loads(prepare("opencode", "proxy").files[".config/opencode/opencode.json"])
    assert config["provider"]["anthropic"].keys() == {"models"}, "neither address nor key of the provider may change"


def test_opencodes_answer_is_its_last_text() -> None:
    texts = [{"type": "text", "part": {"text": text}} for text in ("first", " Paris. \n", "")]
    assert HARNESSES["opencode"].answer(printed([*texts, {"type": "step_finish"}]), NO_HOME) == "Paris."


def mini_home(tmp_path: Path, trajectory: Any) -> Path:
    file = tmp_path / mini_swe_agent.TRAJECTORY_FILE
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(trajectory))
    return tmp_path


SAID = [
    {"role": "assistant", "content": "first"},
    {"role": "assistant", "content": "second"},
    {"role": "tool", "content": "x"},
]


@pytest.mark.parametrize(
    ("trajectory", "answer"),
    [
        ({"info": {"submission": " Paris.\n"}, "messages": SAID}, "Paris."),
        ({"info": {"submission": ""}, "messages": SAID}, "second"),
        ({"info": {"submission": ""}, "messages": []}, ""),
        ({"info": {}}, ""),
        ([], ""),
    ],
)
def test_mini_swe_agents_answer_is_what_it_submitted_or_said_last(trajectory: Any, answer: str, tmp_path: Path) -> None:
    assert mini_swe_agent.answer("", mini_home(tmp_path, trajectory)) == answer


def test_mini_swe_agent_that_left_no_trajectory_gave_no_answer(tmp_path: Path) -> None:
    assert mini_swe_agent.answer("words", tmp_path) == ""


def test_mini_swe_agents_configuration_holds_any_text() -> None:
    files = prepare("mini-swe-agent", "base-url", Assignment(AWKWARD + "\0\x85"), max_model_len=65_536).files
    config = YAML(typ="safe", pure=True).load(files[mini_swe_agent.CONFIG_FILE])
    assert config["run"]["task"] == AWKWARD + "\0\x85"
    assert config["model"]["model_kwargs"] == {
        "drop_params": True,
        "max_tokens": 16_384,
        "api_base": f"{BASE_URL}/v1",
    }


def test_a_command_finds_all_it_needs_in_variables() -> None:
    prepared = prepare("command", "base-url")
    for variable in ("POLAR_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
        assert prepared.env[variable] == BASE_URL
    assert prepared.env["OPENAI_BASE_URL"] == f"{BASE_URL}/v1"
    assert prepared.env["POLAR_MAX_MODEL_LEN"] == "8192"
    assert prepared.env["POLAR_INSTRUCTION"] == "/home/agent/.polar/instruction.txt"
    assert prepared.files[".polar/instruction.txt"].encode() == prepared.stdin
    assert not [name for name in prepare("command", "proxy").env if name.endswith("BASE_URL")]


@pytest.mark.parametrize("left", ["link", "pipe", "folder"])
def test_what_an_agent_puts_in_the_place_of_mini_swe_agents_file_is_not_read(left: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"info": {"submission": "secret"}, "messages": []}))
    place = home / mini_swe_agent.TRAJECTORY_FILE
    place.parent.mkdir(parents=True)
    match left:
        case "link":
            place.symlink_to(secret)
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
    assert mini_swe_agent.answer("", home) == ""
