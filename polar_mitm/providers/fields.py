"""Typed reading of a client's JSON body: every accessor gives the type it names, or a CallError that names the path.

This is what makes `parse` total: a provider that reads through `Fields` alone can raise nothing but CallError, whatever
JSON a client sends. It knows no provider; which fields there are and what they mean is each provider's own file.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Self

from polar_mitm.chat import CallError, Json

# orjson writes at most 254 levels and Python's own stack ends near 1000; the deepest real request seen has about 20.
MAX_DEPTH = 200


@dataclass(slots=True, frozen=True)
class Fields:
    """A JSON object of the request and the path it stands at (`messages.3.content.1`, empty for the body).

    An absent field and a null one are the same: SDKs send null for what the caller left out.
    """

    value: Json
    path: str = ""

    @classmethod
    def of_body(cls, body: object) -> Self:
        """The whole body. Raises CallError when it is no JSON object, or nested deeper than MAX_DEPTH."""
        if not isinstance(body, dict):
            raise CallError("invalid_request", f"the request body must be a JSON object, not {_kind(body)}")
        if deeper_than(body, MAX_DEPTH):
            raise CallError("invalid_request", f"the request body is nested deeper than {MAX_DEPTH} levels")
        return cls(body)

    def at(self, name: str) -> str:
        """The path of a field of this object, as error messages and NotCarried name it."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, problem: str) -> CallError:
        """The error to raise about a field; an empty name means this object itself."""
        where = self.at(name) if name else self.path
        return CallError("invalid_request", f"{where}: {problem}" if where else problem, param=where or None)

    def get(self, name: str) -> Any:
        """The raw value; None when absent."""
        return self.value.get(name)

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    def text(self, name: str) -> str:
        """A string that must be there."""
        value = self._typed(name, str, "a string")
        if value is None:
            raise self.error(name, "field required")
        return value

    def text_or(self, name: str, default: str = "") -> str:
        """A string; the default when absent."""
        value = self._typed(name, str, "a string")
        return default if value is None else value

    def flag(self, name: str) -> bool | None:
        return self._typed(name, bool, "a boolean")

    def integer(self, name: str) -> int | None:
        """A whole number; 3.0 counts as 3, because some clients write every number as a float."""
        value = self.get(name)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self._wrong(name, "an integer")
        return value

    def number(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number")
        try:
            return float(value)
        except OverflowError as error:
            raise self.error(name, "the number is too large") from error

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        values = self.list(name)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(f"{name}.{index}", f"expected a string, got {_kind(value)}")
        return tuple(values)

    def object(self, name: str) -> Json | None:
        """A JSON object as it is; None when absent."""
        return self._typed(name, dict, "an object")

    def list(self, name: str) -> list[Any]:
        """A JSON list as it is; empty when absent."""
        return self._typed(name, list, "a list") or []

    def child(self, name: str) -> Self | None:
        """A JSON object to read on; None when absent."""
        value = self.object(name)
        return None if value is None else type(self)(value, self.at(name))

    def required(self, name: str) -> Self:
        """A JSON object to read on that must be there."""
        child = self.child(name)
        if child is None:
            raise self.error(name, "field required")
        return child

    def children(self, name: str) -> Iterator[Self]:
        """A list of JSON objects to read on, in order; none when absent."""
        for index, value in enumerate(self.list(name)):
            if not isinstance(value, dict):
                raise self.error(f"{name}.{index}", f"expected an object, got {_kind(value)}")
            yield type(self)(value, self.at(f"{name}.{index}"))

    def present(self) -> tuple[str, ...]:
        """Names of the fields that are there, as the API's documents write them, in the client's order."""
        return tuple(name for name, value in self.value.items() if value is not None)

    def others(self, known: Collection[str]) -> tuple[str, ...]:
        """Names of fields that are there and not among the known ones, in the client's order."""
        return tuple(name for name, value in self.value.items() if name not in known and value is not None)

    def _typed[T](self, name: str, kind: type[T], words: str) -> T | None:
        value = self.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise self._wrong(name, words)

    def _wrong(self, name: str, words: str) -> CallError:
        return self.error(name, f"expected {words}, got {_kind(self.get(name))}")


def deeper_than(value: object, levels: int) -> bool:
    """Whether lists and objects are nested more than `levels` deep. Free of recursion: it may be asked of anything."""
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        layer = [inner for outer in layer for inner in _inside(outer) if isinstance(inner, dict | list)]
        if not layer:
            return False
    return bool(layer)


def _inside(value: dict[str, Any] | list[Any]) -> Collection[Any]:
    return value.values() if isinstance(value, dict) else value


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return type(value).__name__
