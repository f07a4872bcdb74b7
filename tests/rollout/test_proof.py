"""`polar doctor` proves each way in with a real request from inside each sandbox."""

import pytest

from polar_mitm.rollout.proof import proofs
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.sandboxes.base_image import BASE_IMAGE
from polar_mitm.sandboxes.images import has_image
from tests.needs import need

pytestmark = pytest.mark.live


async def test_each_sandbox_and_mode_works_or_says_why_not() -> None:
    need([problem for sandbox in SANDBOXES.values() for problem in sandbox.check()])
    need([] if has_image(BASE_IMAGE) else [f"there is no image {BASE_IMAGE}"])
    found = {(proof.sandbox, proof.intercept): proof async for proof in proofs()}
    works = {place for place, proof in found.items() if proof.ok}
    told = {(sandbox, intercept) for sandbox in ("host", "bwrap", "container") for intercept in ("base-url", "proxy")}
    assert works == told | {(sandbox, way) for sandbox in ("bwrap", "container") for way in ("hosts", "transparent")}
    refused = {place: proof.says for place, proof in found.items() if not proof.ok}
    assert all("use --" in says for says in refused.values())
    assert {place for place, proof in found.items() if not proof.possible} == set(refused)


async def test_a_way_that_does_not_lead_to_polar_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polar_mitm.rollout.proof._ASK", "print('something else answered')")
    found = {(proof.sandbox, proof.intercept): proof async for proof in proofs()}
    proof = found["host", "base-url"]
    assert (proof.ok, proof.says) == (False, "no answer: something else answered\n")
