"""Reading proto JSON, in which a field has two names and a list of one may stand without its list."""

import re
from functools import cache
from typing import Any

from polar_mitm.providers.fields import Fields
from polar_mitm.providers.google_schema import camel_case

INTEGER = re.compile(r"-?[0-9]{1,20}")
NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")


class ProtoFields(Fields):
    """Fields in proto JSON: a client may write `topP` or `top_p`. Names asked for are camelCase."""

    __slots__ = ()

    def get(self, name: str) -> Any:
        value = self.value.get(name)
        return self.value.get(snake_case(name)) if value is None else value

    def integer(self, name: str) -> int | None:
        """A whole number; proto JSON may write one as a string."""
        value = self.get(name)
        if isinstance(value, str) and INTEGER.fullmatch(value):
            return int(value)
        return Fields.integer(self, name)

    def number(self, name: str) -> float | None:
        value = self.get(name)
        if isinstance(value, str) and NUMBER.fullmatch(value):
            return float(value)
        return Fields.number(self, name)

    def present(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(camel_case, Fields.present(self))))

    def repeated(self, name: str) -> list["ProtoFields"]:
        """A list of objects; one object stands for a list of one, as it does at Google."""
        if isinstance(self.get(name), dict):
            return [self.required(name)]
        return list(self.children(name))


@cache
def snake_case(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
