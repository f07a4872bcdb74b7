"""Google's `Schema` objects (an OpenAPI 3.0 subset in proto JSON) as JSON Schema."""

from functools import lru_cache
from typing import Any

from polar_mitm.chat import Json

# Proto JSON writes 64-bit integers as strings.
COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})

# Far more digits than 64 bits hold, far fewer than Python converts.
LONGEST_COUNT = 100

RENAMED = {"defs": "$defs", "ref": "$ref"}

# Words of Google's own that JSON Schema has not.
DROPPED = frozenset({"nullable", "propertyOrdering", "example"})


# A bounded cache: the names are the client's.
@lru_cache(maxsize=1000)
def camel_case(name: str) -> str:
    """`any_of` as `anyOf`: proto JSON may be written either way. A leading underscore stays."""
    head, *rest = name.lstrip("_").split("_")
    return name[: len(name) - len(name.lstrip("_"))] + head + "".join(word[:1].upper() + word[1:] for word in rest)


def json_schema(schema: Json) -> Json:
    """The same schema in JSON Schema's words, recursively. What is no schema inside it is left as it is.

    The caller has bounded the depth (`Fields.of_body`).
    """
    result: Json = {}
    for name, value in ((camel_case(name), value) for name, value in schema.items()):
        if name not in DROPPED and not (name == "type" and value == "TYPE_UNSPECIFIED"):
            result[RENAMED.get(name, name)] = _value(name, value)
    return _nullable(result) if schema.get("nullable") is True else result


def _value(name: str, value: Any) -> Any:
    match name, value:
        case "type", str():
            return value.lower()
        case "type", list():
            return [word.lower() if isinstance(word, str) else word for word in value]
        case "properties" | "defs", dict():
            return {key: json_schema(inner) if isinstance(inner, dict) else inner for key, inner in value.items()}
        case "items" | "additionalProperties", dict():
            return json_schema(value)
        case "anyOf" | "prefixItems", list():
            return [json_schema(inner) if isinstance(inner, dict) else inner for inner in value]
        case _, str() if name in COUNTS and value.isdecimal() and len(value) <= LONGEST_COUNT:
            return int(value)
        case _:
            return value


def _nullable(schema: Json) -> Json:
    if isinstance(kind := schema.get("type"), str):
        schema = {**schema, "type": [kind, "null"]}
    if isinstance(options := schema.get("anyOf"), list):
        schema = {**schema, "anyOf": [*options, {"type": "null"}]}
    if isinstance(words := schema.get("enum"), list):
        schema = {**schema, "enum": [*words, None]}
    return schema
