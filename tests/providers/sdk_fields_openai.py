"""Walks the request types of the official OpenAI SDK: every field a body can have, dotted, `*` for a list's index."""

from collections.abc import Collection, Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, TypeAliasType, Union

import typing_extensions


def fields(bodies: Iterable[Any], left_out: Collection[str]) -> set[str]:
    """The fields of these TypedDicts. Objects whose `type` is among `left_out` are those that are noted as a whole."""
    return {name for body in bodies for name in _named("", body, frozenset(left_out))}


def _named(prefix: str, kind: Any, left_out: frozenset[str]) -> Iterator[str]:
    hints = typing_extensions.get_type_hints(kind)
    if _types(hints.get("type")) & left_out:
        return
    for name, hint in hints.items():
        yield prefix + name
        for path, inner in _objects(hint):
            yield from _named(f"{prefix}{name}.{path}", inner, left_out)


def _types(hint: Any) -> frozenset[str]:
    """The words that a `type` field can have."""
    origin, inner = typing_extensions.get_origin(hint), typing_extensions.get_args(hint)
    if origin is Literal:
        return frozenset(inner)
    return frozenset().union(*map(_types, inner)) if inner else frozenset()


def _objects(hint: Any) -> Iterator[tuple[str, Any]]:
    """The TypedDicts that a value of this type can be or can hold in its lists; `*.` for each list around them."""
    if isinstance(hint, TypeAliasType):
        hint = hint.__value__
    origin, inner = typing_extensions.get_origin(hint), typing_extensions.get_args(hint)
    if typing_extensions.is_typeddict(hint):
        yield "", hint
    elif origin in (Union, UnionType):
        for option in inner:
            yield from _objects(option)
    elif origin in (Annotated, typing_extensions.Required, typing_extensions.NotRequired):
        yield from _objects(inner[0])
    elif origin is not None and origin is not dict and inner:  # some kind of list
        for path, kind in _objects(inner[0]):
            yield f"*.{path}", kind
