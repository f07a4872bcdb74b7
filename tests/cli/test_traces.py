"""`polar traces`: traces, the ledger and breaks, of one session and of a run, whatever is in them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polar_mitm.cli import app
from tests.trajectory.sessions import World
from tests.trajectory.stories import a_long_day, with_model

HOSTILE = "\x1b]0;owned\x07[red]x[/] \u202emoc \x9b31m"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("POLAR_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delenv("POLAR_ENGINE_URL", raising=False)
    return tmp_path / "home"


def printed(*arguments: object, code: int = 0, columns: int = 100) -> str:
    result = CliRunner().invoke(app, ["traces", *map(str, arguments)], env={"COLUMNS": str(columns)})
    assert result.exit_code == code, result.output
    return result.output


def test_a_session_is_a_row_a_trace_and_a_ledger_that_sums(tmp_path: Path) -> None:
    world = a_long_day()
    shown = printed(world.write(tmp_path / "out"))
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "pi, completed, reward 1, prefix_merging" in lines[0]
    assert any(line.startswith("1 main 2 ") for line in lines), shown
    assert any(" fork of 1 " in line and line.endswith("arguments_rerendered") for line in lines)
    ledger = next(line for line in lines if line.startswith("tokens "))
    assert ledger.endswith(f"= {world.sampled} sampled")
    assert sum(int(word) for word in ledger.replace("+", " ").split("=")[0].split() if word.isdigit()) == world.sampled
    assert any(line.startswith("forced 4: a grammar chose") for line in lines)


def test_a_run_is_a_row_a_session_with_totals_and_fits_80_columns(tmp_path: Path) -> None:
    for name in ("ses_01a22b3b7834aae3c2d6f41db7", "ses_01a22b3b919a86548d611a10b2"):
        a_long_day(name).write(tmp_path / "out")
    shown = printed(tmp_path / "out", columns=80)
    assert "2 sessions, 12 calls" in shown
    assert "ses_01a22b3b7834aae3c2d6f41db7  reward 1" in shown
    assert "breaks  arguments_rerendered 2" in shown
    assert sum(line.strip().endswith("pi") for line in shown.splitlines()) == 2
    assert all(len(line) <= 80 for line in shown.splitlines()) and "…" not in shown


def test_explain_shows_both_sides_with_the_place_where_they_part(tmp_path: Path, home: Path) -> None:
    world = a_long_day()
    with_model(world, home)
    shown = printed(world.write(tmp_path / "out"), "--explain")
    assert "arguments_rerendered" in shown
    [sampled] = [line for line in shown.splitlines() if line.startswith("  sampled")]
    [now] = [line for line in shown.splitlines() if line.startswith("  now")]
    assert sampled.count("▸") == now.count("▸") == 1
    assert sampled.split("▸")[0].removeprefix("  sampled ") == now.split("▸")[0].removeprefix("  now     ")
    assert sampled.split("▸")[1] != now.split("▸")[1]
    assert "decoded by" in shown


def test_where_only_the_tokens_differ_the_cuts_and_the_ids_are_shown(tmp_path: Path, home: Path) -> None:
    world = World()
    talk = world.talk()
    world.answer(talk, "Done now.", spelled=True)
    world.answer(talk.user("More."), "Yes.")
    with_model(world, home)
    shown = printed(world.write(tmp_path / "out"), "--explain")
    [sampled] = [line for line in shown.splitlines() if line.startswith("  sampled")]
    [now] = [line for line in shown.splitlines() if line.startswith("  now")]
    assert "▸D|o|n|e|" in sampled and "▸Done|" in now
    spelled = world.template.spell("Done now.")
    assert " ".join(map(str, spelled)) in sampled and " ".join(map(str, world.template.encode("Done now."))) in now
    assert "the text is the same: it is cut into other tokens" in shown


def test_without_a_tokenizer_breaks_are_shown_as_ids(tmp_path: Path) -> None:
    shown = printed(a_long_day().write(tmp_path / "out"), "--explain")
    assert "▸⟨" in shown and "--tokenizer" in shown


def test_the_builder_and_what_becomes_of_rewritten_answers_can_be_chosen(tmp_path: Path) -> None:
    folder = a_long_day().write(tmp_path / "out")
    whole = json.loads(printed(folder, "--rewritten", "substitute", "--json"))
    [trajectory] = whole["sessions"].values()
    assert trajectory["rewritten"] == "substitute"
    assert trajectory["breaks"] == []
    each = json.loads(printed(folder, "--builder", "per_request", "--json"))
    assert each["totals"]["traces"] == 6
    assert "is not one of" in printed(folder, "--builder", "all", code=2)


def test_json_holds_the_trajectories_whole_and_the_totals(tmp_path: Path, home: Path) -> None:
    world = a_long_day()
    with_model(world, home)
    folder = world.write(tmp_path / "out")
    value = json.loads(printed(tmp_path / "out", "--json"))
    trajectory = value["sessions"][str(folder)]
    assert trajectory["ledger"]["sampled"] == value["totals"]["sampled"] == world.sampled
    assert len(trajectory["traces"][0]["loss_mask"]) == len(trajectory["traces"][0]["response_ids"])
    assert "write" in trajectory["breaks"][0]["parent_text"]


def test_a_page_is_written_with_the_texts(tmp_path: Path, home: Path) -> None:
    world = a_long_day()
    with_model(world, home)
    page = tmp_path / "page.html"
    shown = printed(world.write(tmp_path / "out"), "--html", page)
    assert f"page    {page}" in shown
    assert "mend the total" in page.read_text()
    assert "can't be written" in printed(tmp_path / "out", "--html", tmp_path / "no" / "page.html", code=2)


def test_a_session_that_cannot_be_built_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    a_long_day("ses_1").write(tmp_path / "out")
    broken = a_long_day("ses_2").write(tmp_path / "out")
    (broken / "calls.jsonl").write_text("{}\n{}\n")
    shown = printed(tmp_path / "out", code=1)
    assert f"{broken}/calls.jsonl, line 1" in shown
    assert "ses_1" in shown and "1 main" in " ".join(shown.split())


def test_a_ledger_that_does_not_balance_fails_loudly(tmp_path: Path) -> None:
    folder = a_long_day().write(tmp_path / "out")
    record = json.loads((folder / "session.json").read_text())
    (folder / "session.json").write_text(json.dumps({**record, "response_tokens": record["response_tokens"] + 5}))
    assert "does not balance" in " ".join(printed(folder, code=1).split())


def test_a_folder_without_sessions_is_bad_usage(tmp_path: Path) -> None:
    assert "no session under" in printed(tmp_path, code=2)


def test_nothing_that_others_wrote_steers_the_terminal(tmp_path: Path, home: Path) -> None:
    world = World(harness=HOSTILE, status_reason=HOSTILE, evaluation_error=HOSTILE)
    talk = world.talk(HOSTILE, HOSTILE)
    world.answer(talk, HOSTILE, tool=HOSTILE, arguments="{}", finish=HOSTILE)
    talk.messages[0]["content"] = f"other {HOSTILE}"
    world.answer(talk.tool(HOSTILE), HOSTILE)
    with_model(world, home)
    shown = printed(world.write(tmp_path / "out"), "--explain")
    assert "▸" in shown
    assert {sign for sign in shown if not sign.isprintable()} == {"\n"}
