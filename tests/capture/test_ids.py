import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.capture.ids import Ids, common_prefix, pack, unpack

ids = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 1), max_size=40)


@given(ids, ids, ids)
def test_the_common_prefix_is_the_one_counted_token_by_token(
    head: list[int], left: list[int], right: list[int]
) -> None:
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(head + left, head + right, strict=False))
    expected = len(list(shared))
    assert common_prefix(pack(head + left), pack(head + right)) == expected


@pytest.mark.parametrize(("changed", "byte"), [(0, 0), (699, 3), (700, 0), (1023, 2), (1024, 1), (1999, 3)])
def test_a_single_changed_byte_anywhere_is_found(changed: int, byte: int) -> None:
    packed = pack(range(2000))
    other = bytearray(packed)
    other[changed * 4 + byte] ^= 1
    assert common_prefix(packed, bytes(other)) == changed


def test_a_prefix_of_the_other_counts_whole() -> None:
    assert common_prefix(pack(range(2000)), pack(range(1500))) == 1500


@given(ids)
def test_packed_ids_come_back(values: list[int]) -> None:
    assert unpack(pack(values)) == values


@given(st.lists(st.tuples(st.integers(0, 100), ids, ids), max_size=8), st.integers(0, 200))
def test_a_chain_of_shared_prefixes_gives_every_leading_part(
    steps: list[tuple[int, list[int], list[int]]], at: int
) -> None:
    chain, whole = Ids(), list[int]()
    for cut, suffix, response in steps:
        shared = min(cut, len(whole))
        chain, whole = Ids.of(chain, shared, suffix, response), whole[:shared] + suffix + response
    assert len(chain) == len(whole)
    assert unpack(chain.packed()) == whole
    assert unpack(chain.packed(min(at, len(whole)))) == whole[:at]


def test_ids_over_32_bits_are_kept_out_of_the_chain() -> None:
    assert len(Ids.of(None, 0, [1, 2**31], [3])) == 0
