"""Versions of harnesses, and telling them apart."""


def version_tuple(version: str) -> tuple[int, ...]:
    """`1.6.0-beta.2` as (1, 6, 0). Text that is no version is (), older than all."""
    numbers = version.removeprefix("v").split("+")[0].split("-")[0].split(".")
    return tuple(int(number) for number in numbers) if all(map(str.isdecimal, numbers)) else ()


def split_version(name: str) -> tuple[str, str | None]:
    """`codex@0.171.0` -> (`codex`, `0.171.0`)."""
    harness, at, version = name.partition("@")
    return harness, version if at else None
