"""A token's bytes are told from the tokenizer's file, for the two kinds of tokenizer that nearly all models have."""

from pathlib import Path

import pytest

from polar_mitm.tokens.find import find_vocabulary
from polar_mitm.tokens.vocabulary import VocabularyError, read_vocabulary
from tests.tokens.samples import SPECIAL, byte_fallback, byte_level, vocabulary, word, write


def test_each_byte_of_a_byte_level_tokenizer_is_told_as_it_is(tmp_path: Path) -> None:
    known = vocabulary(tmp_path)
    assert [known.bytes_of(byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert known.bytes_of(word(" hello")) == b" hello"
    assert known.bytes_of(word("é")) == "é".encode()


def test_an_added_token_is_its_text_and_special_where_the_file_says_so(tmp_path: Path) -> None:
    known = vocabulary(tmp_path)
    assert known.bytes_of(word("<tool_call>")) == b"<tool_call>"
    assert not known.is_special(word("<tool_call>"))
    assert [known.is_special(word(name)) for name in SPECIAL] == [True, True]


def test_blanks_and_bytes_of_a_byte_fallback_tokenizer(tmp_path: Path) -> None:
    known = vocabulary(tmp_path, byte_fallback())
    assert [known.bytes_of(1 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert [known.bytes_of(token_id) for token_id in (257, 258, 259)] == [b" hello", b"lo", b" "]


def test_an_id_beyond_the_vocabulary_has_no_bytes(tmp_path: Path) -> None:
    assert vocabulary(tmp_path).bytes_of(70_000) is None


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"model":{"vocab":{}},"added_tokens":[],"decoder":null}'])
def test_a_file_that_is_no_tokenizer_is_named_with_the_mend(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(VocabularyError, match=r"tokenizer\.json: .*name the folder of the model"):
        read_vocabulary(tmp_path)


def test_a_tokenizer_whose_tokens_depend_on_their_neighbours_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {**byte_level(), "decoder": {"type": "WordPiece", "prefix": "##"}})
    with pytest.raises(VocabularyError, match="WordPiece"):
        read_vocabulary(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"gone.*No such file"):
        read_vocabulary(tmp_path / "gone")


def test_a_model_is_found_in_polars_home_by_its_path_and_in_the_cache_of_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert find_vocabulary("tiny") is None
    homely = write(tmp_path / "home" / "models" / "tiny", byte_level())
    cached = write(tmp_path / "hf" / "hub" / "models--Org--Model-4B" / "snapshots" / "abc", byte_level())
    elsewhere = write(tmp_path / "mine", byte_level())
    for model, path in [("tiny", homely), ("Org/Model-4B", cached), (str(tmp_path / "mine"), elsewhere)]:
        found = find_vocabulary(model)
        assert found and found.source == str(path)


@pytest.mark.parametrize("name", ["", "\0", "../..", "no/such", "x" * 300])
def test_a_name_that_leads_nowhere_finds_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert find_vocabulary(name) is None


def test_a_broken_file_does_not_hide_the_next_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path / "home"))
    write(tmp_path / "home" / "models" / "tiny", {})
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "tiny", byte_level())
    found = find_vocabulary("tiny")
    assert found and found.source == "tiny/tokenizer.json"
