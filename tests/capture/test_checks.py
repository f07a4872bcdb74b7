import math

import pytest

from polar_mitm.capture.log import verify
from tests.capture.samples import make_call


def test_a_call_with_all_its_ids_and_logprobs_is_valid() -> None:
    checks = verify(make_call("c", prompt_ids=[0, 2**31 - 1], response_ids=[7, 8], logprobs=[-0.5, 0.0]))
    assert (checks.valid, checks.invalid_reason) == (True, None)


@pytest.mark.parametrize(
    ("prompt_ids", "response_ids", "logprobs", "reason"),
    [
        ([1], None, None, "no answer: engine away"),
        ([], [1], [-1.0], "no prompt ids"),
        ([1], [], [], "no response ids"),
        ([1], [2, 3], [-1.0], "1 logprobs for 2 response ids"),
        ([1], [2], [-1.0, -1.0], "2 logprobs for 1 response ids"),
        ([-1], [2], [-1.0], "a prompt id is outside 0..2147483647"),
        ([1], [2**31], [-1.0], "a response id is outside 0..2147483647"),
        ([1], [2, 3], [-1.0, math.nan], "the logprob of response id 1 is nan"),
        ([1], [2, 3], [-math.inf, -1.0], "the logprob of response id 0 is -inf"),
        ([1], [2, 3], [-1.0, 1e-9], "the logprob of response id 1 is 1e-09"),
    ],
)
def test_a_call_that_lacks_something_is_invalid_and_says_what(
    prompt_ids: list[int], response_ids: list[int] | None, logprobs: list[float] | None, reason: str
) -> None:
    checks = verify(make_call("c", prompt_ids=prompt_ids, response_ids=response_ids, logprobs=logprobs))
    assert (checks.valid, checks.invalid_reason) == (False, reason)


@pytest.mark.parametrize("span", [(-1, 1), (1, 0), (1, 3)])
def test_a_forced_span_outside_the_response_is_invalid(span: tuple[int, int]) -> None:
    call = make_call("c", response_ids=[4, 5])
    assert call.response
    call.response.forced = [span]
    assert verify(call).invalid_reason == f"the forced span {span[0]}..{span[1]} is outside the 2 response ids"


def test_the_other_checks_stay_as_they_are() -> None:
    assert verify(make_call("c")).decode_matches_text is True
