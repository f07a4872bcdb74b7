"""Scenario files: what they come to, and what is said of a bad one."""

import os
from pathlib import Path

import pytest

from polar_mitm.harnesses import HARNESSES, RUNNABLE, Assignment, McpServer
from polar_mitm.harnesses.actions import Action, EditFile, ListFolder, ReadFile, Shell, WriteFile
from polar_mitm.tasks.errors import ScenarioError
from polar_mitm.tasks.evaluators import EVALUATORS, Command, SessionCompleted
from polar_mitm.tasks.reading import bundled, load
from polar_mitm.tasks.script import Step

SMALLEST = "instruction: Say hi.\nevaluator: {type: session_completed}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "my_task.yaml"


def test_the_smallest_scenario_gets_the_defaults(file: Path) -> None:
    file.write_text(SMALLEST)
    scenario = load(file)
    assert scenario.name == "my_task"
    assert (scenario.harness, scenario.sandbox, scenario.intercept) == ("pi", "bwrap", "base-url")
    assert (scenario.samples, scenario.timeout_s, scenario.model) == (1, 600, "smollm2")
    assert scenario.instruction_text == "Say hi."
    assert scenario.evaluator == SessionCompleted(type="session_completed")
    assert (scenario.sampling, scenario.script, scenario.files, scenario.start_folder) == ({}, [], {}, None)
    assert scenario.path == file


def test_every_field_of_a_full_scenario_is_read(file: Path) -> None:
    (file.parent / "start").mkdir()
    (file.parent / "told.md").write_text("Do it.\n")
    file.write_text(
        """\
name: full
description: All of it.
instruction_file: told.md
harness: claude-code
sandbox: host
intercept: proxy
model: tiny
samples: 3
timeout_s: 1.5
sampling: {temperature: 1, top_p: 0.9, top_k: -1, max_tokens: 10, seed: 7, stop: [END]}
workspace: start
files:
  a/b.txt: |
    text
evaluator: {type: command, run: "true", timeout_s: 5}
script:
  - shell: echo hi
  - tool: read
    arguments: {path: a, limit: 3}
"""
    )
    scenario = load(file)
    assert scenario.name == "full"
    assert (scenario.harness, scenario.sandbox, scenario.intercept) == ("claude-code", "host", "proxy")
    assert (scenario.samples, scenario.timeout_s, scenario.model) == (3, 1.5, "tiny")
    assert scenario.instruction_text == "Do it.\n"
    assert scenario.sampling == {
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": -1,
        "max_tokens": 10,
        "seed": 7,
        "stop": ["END"],
    }
    assert scenario.start_folder == file.parent / "start"
    assert scenario.files == {"a/b.txt": "text\n"}
    assert scenario.evaluator == Command(type="command", run="true", timeout_s=5)
    assert scenario.script == [Step(shell="echo hi"), Step(tool="read", arguments={"path": "a", "limit": 3})]


def test_changes_win_over_the_file(file: Path) -> None:
    file.write_text(SMALLEST + "samples: 2\nharness: pi\n")
    scenario = load(file, {"samples": 5, "harness": "claude-code", "timeout_s": 1.0})
    assert (scenario.samples, scenario.harness, scenario.timeout_s) == (5, "claude-code", 1.0)


@pytest.mark.parametrize(
    ("step", "action"),
    [
        ("shell: ls", Shell("ls")),
        ("list: .", ListFolder(".")),
        ("read: a/b", ReadFile("a/b")),
        ("write: {path: a, text: ''}", WriteFile("a", "")),
        ("edit: {path: a, old: x, new: ''}", EditFile("a", "x", "")),
        ("tool: x", None),
    ],
)
def test_a_step_of_a_script_is_an_action_or_a_tool(step: str, action: Action | None, file: Path) -> None:
    file.write_text(f"instruction: hi\nscript:\n  - {step}\n{EVALUATOR}")
    assert load(file).script[0].action == action


def test_the_scenario_of_a_command_comes_with_polar() -> None:
    scenario = load(bundled("command"))
    assert scenario.assignment("hi") == Assignment("hi", command=("python3", "agent.py"))


def test_a_sub_agent_of_a_harness_that_has_none_is_refused_with_those_that_have(file: Path) -> None:
    file.write_text(SMALLEST + "script: [{agent: {prompt: Count., script: [{shell: ls}]}}]\n")
    with pytest.raises(ScenarioError, match=r"pi has no sub-agents: choose claude-code, codex, .*opencode, or leave"):
        load(file)


def test_what_a_scenario_says_of_its_harness_is_in_the_assignment(file: Path) -> None:
    fields = "harness: claude-code\nintercept: proxy\nlogin: true\nmax_turns: 3\nextra_instructions: Be brief.\n"
    file.write_text(f"{SMALLEST}{fields}mcp_servers:\n  tools: {{command: python3, args: [t.py], env: {{A: b}}}}\n")
    servers = {"tools": McpServer("python3", ("t.py",), {"A": "b"})}
    assert load(file).assignment("hi") == Assignment("hi", "Be brief.", servers, 3, login=True)


@pytest.mark.parametrize("name", ["hello", "write_file", "five_turns"])
@pytest.mark.parametrize("harness", [name for name in HARNESSES if name != "command"])
def test_the_scenarios_that_come_with_polar_load_for_every_harness(name: str, harness: str) -> None:
    scenario = load(bundled(name), {"harness": harness})
    assert scenario.name == name
    assert isinstance(scenario.evaluator, Command)


def test_an_unknown_bundled_scenario_is_an_error_that_names_it() -> None:
    with pytest.raises(ScenarioError, match=r"nothing\.yaml: no scenario of this name comes with polar"):
        bundled("nothing")


EVALUATOR = "evaluator: {type: session_completed}\n"

# What stands in the file, and what is said after the file's name.
BAD = {
    "misspelt field": (
        f"instruction: hi\nsample: 3\n{EVALUATOR}",
        ":2: sample: unknown field; did you mean samples?",
    ),
    "misspelt field deeper": (
        "instruction: hi\nevaluator:\n  type: command\n  run: x\n  timeout: 3\n",
        ":5: evaluator.timeout: unknown field; did you mean timeout_s?",
    ),
    "unknown field": (
        f"instruction: hi\nsampling: {{zzz: 1}}\n{EVALUATOR}",
        ":2: sampling.zzz: unknown field; known are temperature, top_p, top_k, min_p, max_tokens, min_tokens, "
        "presence_penalty, frequency_penalty, repetition_penalty, seed, stop",
    ),
    "unknown evaluator": (
        "instruction: hi\nevaluator:\n  run: x\n  type: comand\n",
        f":4: evaluator.type: expected one of {', '.join(EVALUATORS)}; got 'comand'",
    ),
    "evaluator without type": (
        "instruction: hi\nevaluator:\n  run: x\n",
        f":2: evaluator.type: expected one of {', '.join(EVALUATORS)}, but it is not there",
    ),
    "no evaluator": ("instruction: hi\n", ":1: evaluator: expected, but it is not there"),
    "evaluator without command": (
        "instruction: hi\nevaluator:\n  type: command\n",
        ":2: evaluator.run: expected, but it is not there",
    ),
    "no instruction": (
        EVALUATOR,
        ":1: instruction: expected one of instruction, instruction_file and tasks; got none",
    ),
    "two instructions": (
        f"instruction: hi\ninstruction_file: x\n{EVALUATOR}",
        ":2: instruction_file: expected one of instruction, instruction_file and tasks; got instruction and ",
    ),
    "empty instruction": (
        f'# c\ninstruction: " "\n{EVALUATOR}',
        ":2: instruction: expected text; got nothing but blanks",
    ),
    "instruction left out": (
        f"instruction:\n{EVALUATOR}",
        ":1: instruction: expected one of instruction, instruction_file and tasks",
    ),
    "instruction a number": (f"instruction: 5\n{EVALUATOR}", ":1: instruction: expected text; got 5"),
    "unknown harness": (
        f"instruction: hi\nharness: codx\n{EVALUATOR}",
        f":2: harness: expected one of {', '.join(RUNNABLE)}; got 'codx'",
    ),
    "unknown sandbox": (
        f"instruction: hi\nsandbox: vm\n{EVALUATOR}",
        ":2: sandbox: expected one of host, bwrap, container; got 'vm'",
    ),
    "unknown intercept": (
        f"instruction: hi\nintercept: mitm\n{EVALUATOR}",
        ":2: intercept: expected one of base-url, proxy, hosts, transparent; got 'mitm'",
    ),
    "number as text": (
        f'instruction: hi\nsamples: "4"\n{EVALUATOR}',
        ":2: samples: expected a whole number; got '4'",
    ),
    "number out of range": (f"instruction: hi\nsamples: 0\n{EVALUATOR}", ":2: samples: expected a number >= 1; got 0"),
    "number without end": (
        f"instruction: hi\ntimeout_s: .inf\n{EVALUATOR}",
        ":2: timeout_s: expected a number; got inf",
    ),
    "deep number out of range": (
        f"instruction: hi\nsampling:\n  top_k: 3\n  temperature: -1\n{EVALUATOR}",
        ":4: sampling.temperature: expected a number >= 0; got -1",
    ),
    "list for a mapping": (f"instruction: hi\nfiles: [a]\n{EVALUATOR}", ":2: files: expected a mapping; got a list"),
    "mapping for a list": (
        f"instruction: hi\nscript: {{shell: x}}\n{EVALUATOR}",
        ":2: script: expected a list; got a mapping",
    ),
    "step of both kinds": (
        f"instruction: hi\nscript:\n  - shell: a\n  - shell: x\n    tool: y\n{EVALUATOR}",
        ":4: script.2: expected one of shell, list, read, write, edit, agent, or `tool: NAME` with `arguments`",
    ),
    "shell step with arguments": (
        f"instruction: hi\nscript: [{{shell: x, arguments: {{a: 1}}}}]\n{EVALUATOR}",
        ":2: script.1: expected one of shell, list, read, write, edit, agent, or `tool: NAME` with `arguments`",
    ),
    "field that the harness has no place for": (
        f"instruction: hi\nharness: codex\nmax_turns: 3\n{EVALUATOR}",
        ":2: harness: codex has no limit of turns: leave max_turns out; timeout_s holds for every harness",
    ),
    "login without the provider's own host": (
        f"instruction: hi\nharness: codex\nlogin: true\n{EVALUATOR}",
        ":2: harness: a login goes to the provider's own host: it needs intercept: proxy",
    ),
    "MCP server with an unknown field": (
        f"instruction: hi\nmcp_servers:\n  a: {{command: b, url: c}}\n{EVALUATOR}",
        ":3: mcp_servers.a.url: unknown field; known are command, args, env",
    ),
    "edit step without its new text": (
        f"instruction: hi\nscript:\n  - edit: {{path: a, old: b}}\n{EVALUATOR}",
        ":3: script.1.edit.new: expected",
    ),
    "write step with a field of another": (
        f"instruction: hi\nscript:\n  - write: {{path: a, text: b, old: c}}\n{EVALUATOR}",
        ":3: script.1.write.old: unknown field; known are path, text",
    ),
    "argument that JSON cannot hold": (
        f"instruction: hi\nscript:\n  - tool: x\n    arguments: {{day: 2020-01-01}}\n{EVALUATOR}",
        ":4: script.1.arguments.day: expected what JSON can hold; got datetime.date(2020, 1, 1)",
    ),
    "file outside": (
        f"instruction: hi\nfiles:\n  ../x: y\n{EVALUATOR}",
        ":2: files: expected paths inside the workspace; got '../x'",
    ),
    "absolute file": (
        f"instruction: hi\nfiles: {{/etc/passwd: y}}\n{EVALUATOR}",
        ":2: files: expected paths inside the workspace; got '/etc/passwd'",
    ),
    "name that is a path": (
        f"instruction: hi\nname: ../x\n{EVALUATOR}",
        ":2: name: expected letters, digits, '.', '_' and '-'; got '../x'",
    ),
    "path is not the file's to set": (f"instruction: hi\npath: x\n{EVALUATOR}", ":2: path: unknown field; known are "),
    "key that is no text": (f"instruction: hi\n1: x\n{EVALUATOR}", ":2: 1: unknown field; known are "),
    "missing instruction file": (
        f"instruction_file: nothing.md\n{EVALUATOR}",
        ":1: instruction_file: expected a text file: [Errno 2] No such file",
    ),
    "missing workspace": (f"instruction: hi\nworkspace: nothing\n{EVALUATOR}", ":2: workspace: expected a folder; "),
    "merged field": (
        "instruction: hi\nevaluator:\n  <<: {type: command, run: x, foo: 1}\n",
        ":2: evaluator.foo: unknown field; known are type, run, timeout_s",
    ),
    "syntax error": ("instruction: hi\nfiles: [\n", ":3: not YAML: "),
    "tab": ("\tinstruction: hi\n", ":1: not YAML: found character '\\t' that cannot start any token"),
    "field given twice": ("instruction: a\ninstruction: b\n", ':2: not YAML: found duplicate key "instruction"'),
    "two documents": (f"instruction: hi\n{EVALUATOR}---\na: b\n", ":3: not YAML: "),
    "a list": ("- a\n", ":1: expected a mapping of fields; got a list"),
    "a word": ("hello\n", ":1: expected a mapping of fields; got 'hello'"),
    "nothing": ("", ":1: expected a mapping of fields; got nothing"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_a_bad_scenario_names_file_line_field_and_what_was_expected(file: Path, case: str) -> None:
    text, said = BAD[case]
    file.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}{said}")
    assert caught.value.file == file


def test_of_several_faults_the_first_in_the_file_is_named(file: Path) -> None:
    file.write_text("instruction: hi\nevaluater: {type: session_completed}\nsamples: x\n")
    with pytest.raises(ScenarioError) as caught:
        load(file)
    assert str(caught.value) == f"{file}:2: evaluater: unknown field; did you mean evaluator?"


def test_a_bad_change_is_not_blamed_on_a_line_of_the_file(file: Path) -> None:
    file.write_text(SMALLEST + "samples: 2\n")
    with pytest.raises(ScenarioError) as caught:
        load(file, {"samples": 0})
    assert str(caught.value) == f"{file}: samples: expected a number >= 1; got 0 (given in place of the file's)"
    assert caught.value.line is None


def test_a_missing_file_is_said_to_be_missing(file: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(file)
    assert str(caught.value) == f"{file}: no such file"


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_file_that_is_no_text_or_no_file_cannot_be_read(file: Path, content: bytes | None) -> None:
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    with pytest.raises(ScenarioError, match="cannot be read"):
        load(file)


def test_an_empty_instruction_file_is_an_error(file: Path) -> None:
    (file.parent / "told.md").write_text(" \n")
    file.write_text(f"instruction_file: told.md\n{EVALUATOR}")
    with pytest.raises(ScenarioError, match=r":1: instruction_file: expected text; .*told\.md is empty"):
        load(file)
