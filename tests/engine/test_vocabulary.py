"""The engine tells what its tokens are, where nothing here does."""

from pathlib import Path

import pytest

from polar_mitm.engine.vocabulary import MOST_IDS, NoVocabulary, ask_vocabulary
from polar_mitm.tokens.pieces import text_of
from tests.fakes.vllm import FakeVllm, ids_of
from tests.ports import free_port


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


async def test_the_engine_decodes_each_token_and_parts_of_characters_stay_unknown() -> None:
    async with FakeVllm() as engine:
        known = await ask_vocabulary(f"{engine.url}/v1/", "fake", ids_of("hé"))
    assert text_of(ids_of("hé"), known) == "h\ufffd\ufffd"
    assert known.bytes_of(5) is None
    assert known.source == f"the engine at {engine.url}"


async def test_an_engine_that_does_not_answer_is_told() -> None:
    with pytest.raises(NoVocabulary, match=r"127\.0\.0\.1"):
        await ask_vocabulary(f"http://127.0.0.1:{free_port()}", "fake", [11])


async def test_a_url_that_is_none_and_too_many_ids_are_told() -> None:
    with pytest.raises(NoVocabulary):
        await ask_vocabulary("http://[", "fake", [11])
    with pytest.raises(NoVocabulary, match="too many"):
        await ask_vocabulary("http://me:secret@127.0.0.1:9", "fake", range(MOST_IDS + 1))


async def test_a_password_in_the_url_is_not_in_the_source() -> None:
    async with FakeVllm() as engine:
        known = await ask_vocabulary(engine.url.replace("//", "//me:secret@"), "fake", [11])
    assert "secret" not in known.source
