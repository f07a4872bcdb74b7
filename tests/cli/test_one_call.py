"""`polar calls --call`: one call, token by token, whatever its tokens and texts are."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polar_mitm.capture.log import CallLog
from polar_mitm.capture.record import Call
from polar_mitm.cli import app
from polar_mitm.cli.coloured import HEAD, TAIL, cut
from tests.capture.samples import assistant, make_call, user
from tests.fakes.vllm import FakeVllm
from tests.tokens.samples import byte_level, word, write

END = word("<|im_end|>")
HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]not markup[/red] [/] \u202emoc.elpmaxe\r\x9b31m"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model's tokenizer is found by its name, `tiny`."""
    for name in ("POLAR_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delenv("POLAR_ENGINE_URL", raising=False)
    write(tmp_path / "home" / "models" / "tiny", byte_level())
    return tmp_path / "home"


def said(text: str, **changes: Any) -> Call:
    """A call whose tokens are the bytes of the text and the end of the turn."""
    ids = [*text.encode(), END]
    call = make_call("call_a", prompt_ids=[word("<|im_start|>"), *b"Hi."], response_ids=ids)
    assert call.response
    call.response = call.response.model_copy(update={"text": text, "logprobs": [-0.01] * len(ids), **changes})
    return call


def written(folder: Path, *calls: Call) -> Path:
    with CallLog(folder / "calls.jsonl", durability="none") as log:
        for call in calls:
            log.append(call)
    return folder


def shown(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["calls", *map(str, arguments)], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result.output


def test_one_call_shows_what_was_asked_given_and_sampled(tmp_path: Path) -> None:
    printed = shown(written(tmp_path / "ses_1", said("€ hello")), "--call", "1")
    for line in (
        "call 1 of 1",
        "tiny, kind of logprobs unknown",
        "thinking  the engine decides",
        "read_file",
        "<|im_start|>Hi.",
        "sampled: 10 tokens, mean logprob -0.01; finish stop, told the harness as end_turn",
        "€ hello<|im_end|>",
    ):
        assert line in printed, printed
    assert "tokenizer.json" in printed


def test_forced_spans_are_told_without_colour(tmp_path: Path) -> None:
    folder = written(tmp_path / "ses_1", said("abcd", forced=[(1, 3)]))
    assert "a⟦bc⟧d<|im_end|>" in shown(folder, "--call", "call_a")


def test_a_row_a_token_shows_the_bytes_of_a_character_in_parts(tmp_path: Path) -> None:
    folder = written(tmp_path / "ses_1", said("€ x"))
    lines = shown(folder, "--call", "1", "--tokens").splitlines()
    assert [line.split()[-1] for line in lines if line.strip()[:1].isdigit()] == [
        *("⟨e2⟩", "⟨82⟩", "⟨ac⟩", "␣", "x", "<|im_end|>"),
    ]


def test_nothing_that_a_model_or_a_tool_wrote_steers_the_terminal(tmp_path: Path) -> None:
    call = said(HOSTILE)
    call.request.messages = [user(HOSTILE), assistant(HOSTILE), {"role": HOSTILE, "content": [{"type": HOSTILE}]}]
    call.request.tools = [{"type": "function", "function": {"name": HOSTILE, "parameters": {}}}]
    call.request.not_carried[0].field = HOSTILE
    call.identity.harness = HOSTILE
    assert call.response
    call.response.tool_calls = [{"id": "1", "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}]
    call.response.finish_reason = HOSTILE
    folder = written(tmp_path / "ses_1", call)
    for more in ([], ["--call", "1"], ["--call", "1", "--full"], ["--call", "1", "--tokens"]):
        printed = shown(folder, *more)
        assert {sign for sign in printed if not sign.isprintable()} == {"\n"}, more
    assert "[red]not markup[/red] [/]" in shown(folder, "--call", "1")


def test_a_long_prompt_shows_head_and_tail_and_with_full_all_of_it(tmp_path: Path) -> None:
    call = said("x")
    call.prompt_ids = [*b"begin", *b"-" * 1000, *b"end"]
    folder = written(tmp_path / "ses_1", call)
    printed = shown(folder, "--call", "1")
    assert f"… {1008 - HEAD - TAIL:,} tokens …" in " ".join(printed.split())
    assert "begin" in printed and "end" in printed
    assert shown(folder, "--call", "1", "--full").count("-") > 1000


def test_a_cut_leaves_out_what_it_says() -> None:
    ids = list(range(HEAD + TAIL + 1))
    (head, none), (tail, hidden) = cut(ids, full=False)
    assert (none, hidden, len(head) + len(tail)) == (0, 1, len(ids) - 1)
    assert list(cut(ids, full=True)) == [(ids, 0)]


def test_json_gives_each_token_beside_the_record(tmp_path: Path) -> None:
    value = json.loads(shown(written(tmp_path / "ses_1", said("é", forced=[(0, 1)])), "--call", "1", "--json"))
    assert value["tokens"][:2] == [
        {"id": 0xC3, "text": "⟨c3⟩", "logprob": -0.01, "forced": True},
        {"id": 0xA9, "text": "⟨a9⟩", "logprob": -0.01, "forced": False},
    ]
    assert value["identity"]["call_id"] == "call_a"


def test_a_call_without_an_answer_is_shown_with_its_error(tmp_path: Path) -> None:
    printed = shown(written(tmp_path / "ses_1", make_call("call_a", response_ids=None)), "--call", "1")
    assert "engine: engine away (told the client 500)" in printed
    assert "it gave no answer" in printed


def test_a_tokenizer_that_is_not_the_models_is_told(tmp_path: Path) -> None:
    call = said("abc")
    assert call.response
    call.response.text = "something else"
    printed = shown(written(tmp_path / "ses_1", call), "--call", "1")
    assert "is not the tokenizer of these tokens" in printed


def test_without_a_tokenizer_ids_are_shown_and_how_to_name_one(tmp_path: Path, home: Path) -> None:
    (home / "models" / "tiny" / "tokenizer.json").unlink()
    folder = written(tmp_path / "ses_1", said("ab"))
    printed = shown(folder, "--call", "1")
    assert "⟨97⟩⟨98⟩" in printed
    assert "--tokenizer" in printed
    elsewhere = write(tmp_path / "elsewhere", byte_level())
    assert "ab<|im_end|>" in shown(folder, "--call", "1", "--tokenizer", elsewhere.parent)
    elsewhere.write_text("{}")
    assert "tokenizer.json" in shown(folder, "--call", "1", "--tokenizer", elsewhere, code=2)


async def test_without_a_tokenizer_here_the_engine_is_asked(tmp_path: Path, home: Path) -> None:
    (home / "models" / "tiny" / "tokenizer.json").unlink()
    call = make_call(
        "call_a", prompt_ids=[byte + 10 for byte in b"Hi."], response_ids=[byte + 10 for byte in b"Hello."]
    )
    folder = written(tmp_path / "ses_1", call)
    async with FakeVllm() as engine:
        printed = await asyncio.to_thread(shown, folder, "--call", "1", "--engine-url", engine.url)
    assert "\nHello.\n" in printed
    assert f"decoded by the engine at {engine.url}" in printed
    printed = await asyncio.to_thread(shown, folder, "--call", "1", "--engine-url", engine.url)
    assert "the engine did not decode them" in printed


@pytest.mark.parametrize("name", ["0", "3", "call_z", ""])
def test_a_call_that_is_not_there_is_bad_usage(name: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "ses_1", said("a"), make_call("call_b"))
    told = " ".join(shown(folder, "--call", name, code=2).replace("│", " ").split())
    assert f"no call has the number or id {name!r}: there are the numbers 1 to 2" in told


def test_a_number_that_several_sessions_have_is_bad_usage(tmp_path: Path) -> None:
    written(tmp_path / "ses_1", said("a"))
    written(tmp_path / "ses_2", said("b"))
    assert "2 sessions here have a call 1" in " ".join(shown(tmp_path, "--call", "1", code=2).split())
