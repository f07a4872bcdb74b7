"""Every field that an official SDK can send has a fate, every fate is of a field that somebody sends."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from polar_mitm.providers import PROVIDERS
from polar_mitm.providers.base import Provider
from polar_mitm.providers.fates import page

PAGE = Path(__file__).parents[2] / "docs/providers.md"


def walker(provider: Provider) -> ModuleType:
    """The module that knows the SDK: `fields()`, and `HARNESS_ONLY`, which names the harness that sends a field."""
    return import_module(f"tests.providers.sdk_fields_{provider.NAME.replace('-', '_')}")


each_provider = pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.NAME)


@each_provider
def test_every_field_that_the_sdk_can_send_has_a_fate_or_stands_in_an_object_that_is_left_out_whole(
    provider: Provider,
) -> None:
    left_out = {name for name, fate in provider.FATES.items() if fate.kind in ("ignored", "refused")}

    def is_settled(name: str) -> bool:
        parts = name.split(".")
        return name in provider.FATES or any(".".join(parts[:end]) in left_out for end in range(1, len(parts)))

    sent = walker(provider).fields()
    assert len(sent) > 20
    assert sorted(name for name in sent if not is_settled(name)) == []


@each_provider
def test_every_fate_is_of_a_field_that_the_sdk_or_a_named_harness_sends(provider: Provider) -> None:
    known = walker(provider)
    sent = known.fields()
    assert sorted(set(provider.FATES) - sent - set(known.HARNESS_ONLY)) == []
    assert sorted(set(known.HARNESS_ONLY) & sent) == []
    assert all(known.HARNESS_ONLY.values())


@each_provider
def test_every_fate_but_carried_says_why(provider: Provider) -> None:
    assert [name for name, fate in provider.FATES.items() if fate.kind != "carried" and not fate.why] == []


def test_the_page_is_in_sync_with_the_tables() -> None:
    assert PAGE.read_text() == page(), "run `make schemas`"
