from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar_mitm.trajectory.credit import Standing, advantages, group, share

rewards = st.lists(st.floats(-10, 10).map(lambda value: round(value, 3)), min_size=2, max_size=12)


def standing(name: str, reward: float | None, masked: str | None = None) -> Standing:
    return Standing(name, None, 1, reward, masked)


@given(rewards)
def test_standard_advantages_are_rewards_in_standard_deviations(values: list[float]) -> None:
    found = advantages(values)
    if len(set(values)) == 1:
        assert found == [0.0] * len(values)
    else:
        assert found == pytest.approx([(value - fmean(values)) / stdev(values) for value in values], abs=1e-6)


@given(rewards)
def test_leave_one_out_compares_with_the_mean_of_the_others(values: list[float]) -> None:
    others = [fmean(values[:place] + values[place + 1 :]) for place in range(len(values))]
    expected = [value - mean for value, mean in zip(values, others, strict=True)]
    assert advantages(values, "leave_one_out") == pytest.approx(expected, abs=1e-9)


def test_equal_rewards_give_exactly_zero_though_their_mean_is_not_exact() -> None:
    assert advantages([0.1] * 3) == [0.0] * 3 == advantages([0.1] * 3, "leave_one_out")


def test_one_sample_has_nothing_to_compare_with() -> None:
    assert advantages([1.0]) == [None]
    assert advantages([]) == []


def test_a_masked_member_keeps_its_place_and_moves_no_mean() -> None:
    members = [standing("a", 1.0), standing("b", 0.0), standing("c", 0.0, "timeout"), standing("d", None, "no reward")]
    found = group("task", members)
    assert len(found.members) == 4 and found.mean == 0.5
    assert found.advantages["c"] is None and found.advantages["d"] is None
    assert found.advantages["a"] == pytest.approx(2**-0.5) and found.signal


def test_a_group_of_equal_rewards_has_no_signal() -> None:
    found = group("task", [standing("a", 1.0), standing("b", 1.0)])
    assert not found.signal and found.deviation == 0.0 and set(found.advantages.values()) == {0.0}
    alone = group("task", [standing("a", 1.0)])
    assert not alone.signal and alone.deviation is None and alone.advantages == {"a": None}


@given(st.lists(st.integers(0, 1000), max_size=8))
def test_the_weights_of_a_session_sum_to_one_and_weigh_each_token_the_same(trained: list[int]) -> None:
    weights = share(trained)
    if sum(trained):
        assert sum(weights) == pytest.approx(1.0)
        each = {round(weight / tokens, 12) for weight, tokens in zip(weights, trained, strict=True) if tokens}
        assert len(each) == 1
    assert all((weight > 0) == (tokens > 0) for weight, tokens in zip(weights, trained, strict=True))
