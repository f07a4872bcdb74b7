"""Tokens as text: nothing is lost, nothing is guessed, and nothing of it steers a terminal."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.tokens.pieces import LEVELS, NAMES, level, pieces, text_of, visible
from polar_mitm.tokens.vocabulary import FileVocabulary
from tests.tokens.samples import byte_level, vocabulary, word

ids = st.lists(st.integers(0, 270), max_size=30)


@cache
def known() -> FileVocabulary:
    with TemporaryDirectory() as folder:
        return vocabulary(Path(folder), byte_level())


def test_a_character_of_several_tokens_is_one_piece() -> None:
    made = list(pieces([*"a€b".encode()], known()))
    assert [(piece.start, piece.end, piece.text) for piece in made] == [(0, 1, "a"), (1, 4, "€"), (4, 5, "b")]


def test_bytes_that_are_no_character_are_shown_as_bytes() -> None:
    assert text_of([0xE2, 0x82, ord("x")], known()) == "⟨e2⟩⟨82⟩x"
    assert text_of([0xE2, 0xE2, 0x82, 0xAC], known()) == "⟨e2⟩€"
    assert text_of([0x80], known()) == "⟨80⟩"
    assert text_of([ord("x"), 0xE2], known()) == "x⟨e2⟩"


def test_a_special_token_is_a_piece_of_its_own_even_amid_a_character() -> None:
    made = list(pieces([0xE2, word("<|im_end|>"), 0x82], known()))
    assert [(piece.text, piece.special) for piece in made] == [
        ("⟨e2⟩", False),
        ("<|im_end|>", True),
        ("⟨82⟩", False),
    ]


def test_an_id_without_bytes_is_its_number_and_without_a_vocabulary_all_are() -> None:
    assert text_of([70_000, ord("x")], known()) == "⟨id 70000⟩x"
    assert text_of([1, 22], None) == "⟨1⟩⟨22⟩"


@given(ids)
def test_every_id_is_in_one_piece_in_order(given_ids: list[int]) -> None:
    made = list(pieces(given_ids, known()))
    assert [place for piece in made for place in range(piece.start, piece.end)] == list(range(len(given_ids)))


@given(st.text())
def test_text_that_was_encoded_comes_back(text: str) -> None:
    assert text_of([*text.encode()], known()) == text


@given(st.text())
def test_what_is_shown_holds_nothing_that_steers_a_terminal(text: str) -> None:
    assert all(sign.isprintable() or sign == "\n" for sign in visible(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢字 🙂", "plain é 漢字 🙂"),
        ("a\nb\tc", "a↵\nb⇥ c"),
        ("\x1b[31mred\x1b]0;title\x07", "␛[31mred␛]0;title␇"),
        ("\x9b31m\x7f", "⟨U+009B⟩31m␡"),
        ("\u202ecod.exe\u2066\ufeff", "⟨U+202E⟩cod.exe⟨U+2066⟩⟨U+FEFF⟩"),
        ("\ud800", "⟨U+D800⟩"),
    ],
)
def test_what_does_not_print_becomes_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_level_says_how_likely_a_token_was() -> None:
    assert [level(value) for value in (0.0, -0.2, -1.0, -3.0, -9.0, float("-inf"))] == [0, 1, 2, 3, 4, 4]
    assert level(float("nan")) is None
    assert len(NAMES) == len(LEVELS) + 1
