"""The JSON Schemas of `calls.jsonl` and `session.json`, published in `docs/schemas/`.

python -m polar_mitm.capture.schema docs/schemas
"""

import sys
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from polar_mitm.capture.folder import SESSION_SCHEMA, SessionRecord
from polar_mitm.capture.record import SCHEMA, CallLine

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def call_line_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of calls.jsonl, as it is written: every field is there, null when unknown."""
    return written_schema(CallLine, f"polar-mitm call record, version {SCHEMA}", SCHEMA)


def session_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of session.json, as it is written."""
    return written_schema(SessionRecord, f"polar-mitm session record, version {SESSION_SCHEMA}", SESSION_SCHEMA)


def files() -> dict[str, bytes]:
    """File name and content of each published schema."""
    return {
        f"call-record.v{SCHEMA}.json": schema_text(call_line_schema()),
        f"session.v{SESSION_SCHEMA}.json": schema_text(session_schema()),
    }


def write(folder: Path) -> None:
    """Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_bytes(text)


class _Written(GenerateJsonSchema):
    """The form that is written: no field is left out, so defaults say nothing; titles would repeat the names."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def written_schema(model: type[BaseModel], title: str, version: int) -> dict[str, Any]:
    """JSON Schema (2020-12) of what `model` writes. Its schema version is in the field `schema`."""
    schema = model.model_json_schema(by_alias=True, mode="serialization", schema_generator=_Written)
    schema["properties"]["schema"] = {"const": version, "description": "Schema version."}
    return {"$schema": DIALECT, **schema, "title": title}


def schema_text(schema: dict[str, Any]) -> bytes:
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [folder]:
            write(Path(folder))
        case _:
            sys.exit("usage: python -m polar_mitm.capture.schema FOLDER")
