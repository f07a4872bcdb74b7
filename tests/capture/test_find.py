from pathlib import Path

import pytest

from polar_mitm.capture.find import find_calls, find_sessions


def test_a_run_holds_its_sessions_and_not_what_lies_in_them(tmp_path: Path) -> None:
    for name in (
        "b/calls.jsonl",
        "a/session.json",
        "a/workspace/calls.jsonl",
        "deep/er/calls.jsonl",
        "b/x/session.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [session.path.relative_to(tmp_path) for session in find_sessions(tmp_path)] == [
        Path("a"),
        Path("b"),
        Path("deep/er"),
    ]
    assert find_calls(tmp_path) == [tmp_path / "b/calls.jsonl", tmp_path / "deep/er/calls.jsonl"]
    assert find_calls(tmp_path / "b") == find_calls(tmp_path / "b/calls.jsonl") == [tmp_path / "b/calls.jsonl"]
    assert find_calls(tmp_path / "a") == []


def test_a_file_stands_for_its_own_session_and_for_no_other(tmp_path: Path) -> None:
    for name in ("ses_1/calls.jsonl", "ses_1/session.json", "copy.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_sessions(tmp_path / "ses_1" / "calls.jsonl") == find_sessions(tmp_path / "ses_1")
    assert find_sessions(tmp_path / "copy.jsonl") == []


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find_sessions(tmp_path / "none")
