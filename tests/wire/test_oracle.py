"""polar's translation of real requests against vLLM's own: the same token ids, or a reviewed reason why not.

vLLM has no Google API: those requests are held against expected.json alone.
"""

import json

import pytest

from tests.wire.fixtures import DIFFERENCES, Fixture, fixtures
from tests.wire.oracle import REWRITES, Oracle, comparable, explain

TABLE = json.loads(DIFFERENCES.read_bytes())
COMPARED = list(comparable(fixtures()))


@pytest.fixture(scope="module")
def oracle(engine_url: str) -> Oracle:
    return Oracle(engine_url)


@pytest.mark.live
@pytest.mark.parametrize("fixture", COMPARED, ids=lambda fixture: fixture.id)
def test_the_prompt_is_vllms_own_or_the_difference_is_reviewed(fixture: Fixture, oracle: Oracle) -> None:
    """A reason counts when rewriting the body for it, and no less, makes the ids equal."""
    assert explain(oracle, fixture) == TABLE["fixtures"].get(fixture.id)


def test_every_reason_is_explained_and_used() -> None:
    known = {reason for rewrites in REWRITES.values() for reason in rewrites}
    used = {reason for entry in TABLE["fixtures"].values() for reason in entry.get("reasons", [])}
    assert TABLE["reasons"].keys() == known == used


def test_no_difference_is_listed_for_a_fixture_that_is_gone() -> None:
    assert TABLE["fixtures"].keys() <= {fixture.id for fixture in COMPARED}
