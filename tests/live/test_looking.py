"""What `polar calls` shows of a real session is what the engine says its tokens are."""

from pathlib import Path

import aiohttp
import orjson
import pytest

from polar_mitm.engine.models import folder as model_folder
from polar_mitm.tokens.pieces import text_of
from polar_mitm.tokens.vocabulary import read_vocabulary
from tests.live.polar import SCENARIOS, only, run
from tests.live.test_write_file import need_parts
from tests.needs import need

pytestmark = pytest.mark.live


async def test_tokens_are_shown_as_the_engine_decodes_them(engine_url: str, tmp_path: Path) -> None:
    need_parts("pi", "bwrap")
    model = model_folder("tiny")
    need([] if model.is_dir() else ["the model is not here: polar model install tiny"])
    ended = run("run-task", SCENARIOS / "write_file.yaml", "--engine-url", engine_url, "--out", tmp_path)
    assert ended.returncode == 0, ended.stderr
    there = only(tmp_path)
    known = read_vocabulary(model)
    async with aiohttp.ClientSession(trust_env=False) as engine:
        for call in there.calls:
            assert call.engine and call.response
            for ids in (call.prompt_ids, call.response.response_ids):
                asked = {"model": call.engine.model, "tokens": ids}
                async with engine.post(f"{engine_url}/detokenize", json=asked) as reply:
                    assert text_of(ids, known) == (await reply.json())["prompt"]
    shown = run("calls", tmp_path, "--call", there.calls[0].identity.call_id, "--json")
    assert shown.returncode == 0, shown.stderr
    tokens = orjson.loads(shown.stdout)["tokens"]
    assert '{"command": "echo hello > out.txt"}' in "".join(token["text"] for token in tokens)
    assert all(token["forced"] for token in tokens)
