"""What is said of a scenario that cannot be used: the place, the field, and what was expected there."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypeGuard, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from typing_extensions import is_typeddict

from polar_mitm.tasks.errors import ScenarioError, shown
from polar_mitm.tasks.evaluators import EVALUATORS
from polar_mitm.tasks.scenario import NOT_IN_FILE, Scenario


def problem(path: Path, document: CommentedMap, changes: Mapping[str, object], details: ErrorDetails) -> ScenarioError:
    location = _location(document, details)
    field = ".".join(_dotted(document, location))
    expected = _expected(details, location)
    if location and location[0] in changes:
        return ScenarioError(path, None, field, f"{expected} (given in place of the file's)")
    return ScenarioError(path, line_of(document, location), field, expected)


def _location(document: CommentedMap, details: ErrorDetails) -> tuple[int | str, ...]:
    """pydantic's location with the union tags, which are no keys of the file, taken out or made the field they are."""
    match details:
        case {"type": "harness" | "sandbox" | "evaluator" | "workspace" | "files" | "container" as field, "loc": ()}:
            return (field,)
        case {"type": "instruction"}:
            return ("instruction_file" if "instruction_file" in document else "instruction",)
        case {"type": "union_tag_not_found" | "union_tag_invalid", "loc": loc}:
            return (*loc, "type")
        case {"loc": ("evaluator", str(kind), *rest)} if kind in EVALUATORS:
            return ("evaluator", *rest)
    return details["loc"]


def _dotted(document: CommentedMap, location: Sequence[int | str]) -> Iterator[str]:
    """The location's parts as a person counts: the first step of a script is `script.1`."""
    node: Any = document
    for key in location:
        yield str(key + 1) if isinstance(node, CommentedSeq) and isinstance(key, int) else str(key)
        node = (
            node.get(key) if isinstance(node, CommentedMap) else node[key] if isinstance(node, CommentedSeq) else None
        )


def line_of(document: CommentedMap, location: Sequence[int | str]) -> int:
    """The line of the field, or of the nearest thing around it that is in the file; counts from 1."""
    node: Any = document
    line = 0
    for key in location:
        places = node.lc.data if isinstance(node, CommentedMap | CommentedSeq) else None
        if not places or key not in places:  # not in the file, or merged into this mapping from elsewhere
            break
        line = places[key][0]
        node = node[key]
    return line + 1


def _expected(details: ErrorDetails, location: Sequence[int | str]) -> str:
    """pydantic's complaint in the words of someone who writes YAML."""
    context = details.get("ctx", {})
    got = details.get("input")
    match details["type"]:
        case "missing":
            return "expected, but it is not there"
        case "extra_forbidden":
            return unknown(str(location[-1]), fields_of(location))
        case "union_tag_not_found":
            return f"expected one of {_names(EVALUATORS)}, but it is not there"
        case "union_tag_invalid":
            return f"expected one of {_names(EVALUATORS)}; got {context['tag']!r}"
        case "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            return f"expected one of {_names(choices)}; got {shown(got)}"
        case "string_type":
            return f"expected text; got {shown(got)}"
        case "string_too_short" | "string_pattern_mismatch" if location[-1] == "name":
            return f"expected letters, digits, '.', '_' and '-'; got {shown(got)}"
        case "string_too_short" | "string_pattern_mismatch":
            return "expected text; got nothing but blanks"
        case "int_type" | "int_from_float":
            return f"expected a whole number; got {shown(got)}"
        case "invalid-json-value":
            return f"expected what JSON can hold; got {shown(got)}"
        case "float_type" | "finite_number":
            return f"expected a number; got {shown(got)}"
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than" as kind:
            sign = {"greater_than_equal": ">= ", "greater_than": "> ", "less_than_equal": "<= ", "less_than": "< "}[
                kind
            ]
            bound = next(context[key] for key in ("ge", "gt", "le", "lt") if key in context)
            return f"expected a number {sign}{bound:g}; got {shown(got)}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"expected a mapping; got {shown(got)}"
        case "list_type":
            return f"expected a list; got {shown(got)}"
        case _:
            return details["msg"]


def fields_of(location: Sequence[int | str]) -> tuple[str, ...]:
    """The fields that may stand where the last key of `location` does."""
    if location[:-1] == ("evaluator",):
        return tuple({name: None for fields in EVALUATORS.values() for name in fields.model_fields})
    found: Any = Scenario
    for key in location[:-1]:
        if _is_part(found):
            if key not in found.model_fields:
                return ()
            found = found.model_fields[key].annotation
        else:
            found = get_args(found)[-1] if get_args(found) else None
        found = _given(found)
    if _is_part(found):
        return tuple(name for name in found.model_fields if found is not Scenario or name not in NOT_IN_FILE)
    return tuple(found.__annotations__) if is_typeddict(found) else ()


def _is_part(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _given(kind: Any) -> Any:
    """The type of an optional field when it is there."""
    return next((one for one in get_args(kind) if one is not NoneType), kind) if NoneType in get_args(kind) else kind


def unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown field; did you mean {near[0]}?" if near else f"unknown field; known are {_names(known)}"


def _names(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names)
