"""A sample of `make bench-fuzz`, and that it would find what it looks for."""

from typing import Any

import pytest

from bench.fuzz import MOST_GROWTH, Outcome, in_form, in_process, refusal_defect, through_proxy
from bench.malformed import cases
from polar_mitm.chat import CallError
from polar_mitm.providers import PROVIDERS, Provider, anthropic
from tests.conftest import Staged
from tests.fakes.vllm import Reply

SEED = 7


def well(outcome: Outcome) -> None:
    assert not outcome.defects, "\n".join(f"{defect}\n{case}" for defect, case in outcome.defects.items())
    assert outcome.growth < MOST_GROWTH
    for provider in PROVIDERS:
        assert outcome.statuses[provider.NAME, 200] and outcome.statuses[provider.NAME, 400], "one-sided cases"


def test_malformed_requests_raise_nothing_but_call_errors() -> None:
    outcome = in_process(SEED, 1500)
    assert outcome.total == 1500
    well(outcome)


async def test_malformed_requests_get_no_server_error_from_the_proxy(stage: Staged) -> None:
    async with stage(Reply()) as on:
        outcome = await through_proxy(on, SEED, 200)
    assert outcome.total == 200
    well(outcome)


def test_the_same_seed_gives_the_same_cases() -> None:
    assert list(map(str, cases(SEED, 50))) == list(map(str, cases(SEED, 50)))
    assert list(map(str, cases(SEED, 50))) != list(map(str, cases(SEED + 1, 50)))


def test_a_provider_that_breaks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> None:
        raise KeyError("role")

    monkeypatch.setattr(anthropic, "parse", broken)
    outcome = in_process(SEED, 100)
    assert outcome.statuses["anthropic", 500] > 0
    assert [defect.partition(" at ")[0] for defect in outcome.defects] == ["KeyError"]


def test_a_server_error_is_a_defect_in_whatever_form() -> None:
    status, body = anthropic.error(CallError("internal", "it broke"))
    assert refusal_defect(anthropic, status, str(body).encode()).startswith("anthropic: status 500")


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.NAME)
def test_an_answer_in_another_form_than_the_providers_is_a_defect(provider: Provider) -> None:
    openais = b'{"error": {"message": "m", "type": "t", "param": null, "code": null}}'
    assert in_form(provider, 400, openais) == provider.NAME.startswith("openai")
    assert not in_form(provider, 400, b"<html>")
    assert not in_form(provider, 400, b'{"error": "m"}')
