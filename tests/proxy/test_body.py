"""Request bodies in every coding that clients send: read whole, or refused with the status that says why."""

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import product

import brotli
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.net import encoding

from polar_mitm.chat import CallError
from polar_mitm.proxy.body import LARGEST_BODY, MOST_CODINGS, decode, read_object
from tests.conftest import Staged
from tests.fakes.vllm import Reply
from tests.proxy.asks import ANTHROPIC, CHAT, JSON_ASKS, Ask, streamed
from tests.proxy.test_intercept import INVALID, status_of

TEXT = b'{"model": "m", "text": "' + bytes(range(32, 34)).replace(b'"', b"'") * 400 + b'"}'


def zstd(data: bytes) -> bytes:
    encoded = encoding.encode(data, "zstd")
    assert isinstance(encoded, bytes)
    return encoded


def bare_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


CODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": lambda data: brotli.compress(data, quality=1),
    "zstd": zstd,
}


def refused(raw: bytes, codings: str, limit: int = LARGEST_BODY) -> tuple[str, str]:
    with pytest.raises(CallError) as caught:
        decode(raw, codings, limit=limit)
    return caught.value.kind, caught.value.message


@pytest.mark.parametrize("coding", CODERS)
def test_a_body_in_every_coding_comes_out_as_it_went_in(coding: str) -> None:
    assert decode(CODERS[coding](TEXT), coding) == TEXT
    assert decode(CODERS[coding](TEXT), f" {coding.upper()} ") == TEXT
    assert decode(CODERS[coding](b""), coding) == b""


@pytest.mark.parametrize("codings", ["", "identity", "identity, identity", " , "])
def test_a_body_without_a_coding_is_left_as_it_is(codings: str) -> None:
    assert decode(TEXT, codings) == TEXT


def test_deflate_is_read_with_its_wrapper_and_without() -> None:
    assert decode(bare_deflate(TEXT), "deflate") == TEXT


@pytest.mark.parametrize(("first", "second"), list(product(CODERS, CODERS)))
def test_P044_stacked_codings_are_undone_from_the_last_to_the_first(first: str, second: str) -> None:
    stacked = CODERS[second](CODERS[first](TEXT))
    assert decode(stacked, f"{first}, {second}") == TEXT
    assert decode(stacked, f"{first},identity,{second}") == TEXT


@given(st.binary(max_size=300), st.lists(st.sampled_from(sorted(CODERS)), max_size=MOST_CODINGS))
def test_any_body_in_any_stack_of_codings_comes_out_as_it_went_in(data: bytes, names: list[str]) -> None:
    encoded = data
    for name in names:
        encoded = CODERS[name](encoded)
    assert decode(encoded, ", ".join(names)) == data


@pytest.mark.parametrize("coding", CODERS)
def test_P044_a_stream_cut_anywhere_is_a_400(coding: str) -> None:
    whole = CODERS[coding](TEXT)
    for length in range(len(whole)):
        kind, message = refused(whole[:length], coding)
        assert kind == "invalid_request", length
        assert f"no whole {coding} stream" in message


@pytest.mark.parametrize("coding", CODERS)
def test_what_is_no_stream_of_its_coding_is_a_400(coding: str) -> None:
    for junk in (b"{}", b"junk " * 50, CODERS[coding](TEXT) + b"junk after it"):
        assert refused(junk, coding)[0] == "invalid_request"


def test_streams_that_follow_each_other_are_one_body_and_too_many_are_a_400() -> None:
    assert decode(gzip.compress(b"one") + gzip.compress(b"two"), "gzip") == b"onetwo"
    assert decode(zstd(b"one") + zstd(b"two"), "zstd") == b"onetwo"
    assert refused(gzip.compress(b"") * 10_000, "gzip")[0] == "invalid_request"


@pytest.mark.parametrize("codings", ["snappy", "gzip, snappy", "gzip;q=1", "*", "gzip br"])
def test_P044_an_unknown_coding_is_a_415_that_names_it_before_anything_is_undone(codings: str) -> None:
    kind, message = refused(b"not looked at", codings)
    assert kind == "unsupported_encoding"
    assert repr(codings.rpartition(", ")[2]) in message


def test_more_codings_than_any_client_stacks_are_a_415() -> None:
    assert refused(TEXT, ", ".join(["gzip"] * (MOST_CODINGS + 1)))[0] == "unsupported_encoding"


@pytest.mark.parametrize("coding", ["", *CODERS])
def test_P044_a_body_of_the_limit_is_read_and_one_byte_more_is_a_413(coding: str) -> None:
    encode = CODERS.get(coding, bytes)
    assert decode(encode(b"x" * 1000), coding, limit=1000) == b"x" * 1000
    assert refused(encode(b"x" * 1001), coding, limit=1000) == (
        "too_large",
        "the request body is larger than 1000 bytes",
    )


@pytest.mark.parametrize("coding", CODERS)
def test_P044_a_bomb_is_a_413_and_is_never_unpacked(coding: str) -> None:
    bomb = CODERS[coding](bytes(50_000_000))
    tracemalloc.start()
    assert refused(bomb, coding, limit=1_000_000)[0] == "too_large"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000


def test_P044_a_bomb_inside_another_coding_is_a_413() -> None:
    assert refused(zstd(gzip.compress(bytes(5_000_000))), "gzip, zstd", limit=1_000_000)[0] == "too_large"


@pytest.mark.parametrize(
    "raw", [b"", b"{not json", b"[1]", b'"text"', b"null", b"{} {}", b'{"a": "\xff"}', b"{" * 9999]
)
def test_what_is_no_json_object_is_a_400(raw: bytes) -> None:
    with pytest.raises(CallError) as caught:
        read_object(raw, "")
    assert caught.value.kind == "invalid_request"


# Through the proxy


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_P045_every_providers_requests_are_read_in_every_coding(ask: Ask, stage: Staged) -> None:
    async with stage() as on:
        data = orjson.dumps(ask.body)
        for coding, encode in CODERS.items():
            got = await on.post(ask, data=encode(data), headers={"content-encoding": coding})
            assert got.status == 200, (coding, got.body)
        got = await on.post(ask, data=zstd(gzip.compress(data)), headers={"content-encoding": "gzip, zstd"})
        assert got.status == 200
        assert len(on.calls()) == len(CODERS) + 1


@pytest.mark.parametrize("ask", JSON_ASKS, ids=str)
async def test_P044_a_refused_body_has_its_status_in_the_providers_shape_and_is_no_call(
    ask: Ask, stage: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polar_mitm.proxy.intercept.LARGEST_BODY", 100_000)
    whole = zstd(orjson.dumps(ask.body))
    cases: list[tuple[bytes, str, int]] = [
        (whole[:-3], "zstd", 400),
        (whole, "gzip", 400),
        (whole, "snappy", 415),
        (zstd(bytes(10_000_000)), "zstd", 413),
        (b" " * 100_001, "identity", 413),
    ]
    async with stage() as on:
        for data, coding, status in cases:
            got = await on.post(ask, data=data, headers={"content-encoding": coding})
            assert got.status == status, (coding, got.body)
            assert got.headers["content-type"] == "application/json"
            if status == 400:
                assert status_of(got.json) == INVALID[ask.provider]
        assert (on.fake.requests, on.calls()) == ([], [])


async def test_P040_P041_a_zstd_request_through_the_proxy_port_is_recorded_in_the_hook_and_as_a_stream(
    stage: Staged,
) -> None:
    async with stage(Reply(), Reply(delay_s=0.2), grace_s=0.05, keepalive_s=0.05) as on:
        for ask in (CHAT, streamed(ANTHROPIC)):  # the second one goes through the loopback
            data = zstd(orjson.dumps(ask.body))
            got = await on.post_through(ask, data=data, headers={"content-encoding": "zstd"})
            assert got.status == 200, got.body
            assert b"Hello." in got.body
        assert [call.request.messages for call in on.calls()] == [[{"role": "user", "content": "Say hello."}]] * 2
