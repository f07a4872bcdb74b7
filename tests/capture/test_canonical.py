from typing import Any

import pytest

from polar_mitm.capture.canonical import content_hash, dumps, loads


def test_a_hash_is_128_bits_of_sha256_over_compact_utf8_json_with_sorted_keys() -> None:
    # printf '%s' '{"content":"Grüße","role":"user"}' | sha256sum | cut -c1-32
    assert content_hash({"role": "user", "content": "Grüße"}) == "e5291a5e01e1d3030902d3b51448a6a7"


def test_the_hash_does_not_depend_on_key_order_at_any_depth() -> None:
    assert content_hash({"a": 1, "b": {"c": 2, "d": 3}}) == content_hash({"b": {"d": 3, "c": 2}, "a": 1})


def test_values_that_json_tells_apart_have_different_hashes() -> None:
    bodies: list[dict[str, Any]] = [{"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"a": None}, {"a": [1]}, {}]
    assert len({content_hash(body) for body in bodies}) == len(bodies)


@pytest.mark.parametrize(
    "value", [{"cut emoji": "\ud83d"}, {"big": 2**64 + 1}, {"big": -(10**400)}, {"plain": ["é", 1.5, None]}]
)
def test_what_a_harness_can_send_is_written_and_read_back(value: dict[str, Any]) -> None:
    assert loads(dumps(value)) == value
    assert content_hash(value) == content_hash(dict(value))


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError):
        dumps({"a": object()})
