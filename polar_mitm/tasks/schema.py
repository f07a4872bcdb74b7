"""The JSON Schema of a scenario file, published in `docs/schemas/`: editors check and complete YAML by it.

python -m polar_mitm.tasks.schema docs/schemas
"""

import sys
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from polar_mitm.capture.schema import DIALECT, schema_text
from polar_mitm.harnesses import RUNNABLE
from polar_mitm.sandboxes import SANDBOXES
from polar_mitm.tasks.scenario import NOT_IN_FILE, Scenario


class _Plain(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # it would repeat the name


def scenario_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of what a scenario file may hold. Loading checks more than a schema can say."""
    schema = Scenario.model_json_schema(mode="validation", schema_generator=_Plain)
    properties = schema["properties"]
    for name in NOT_IN_FILE:
        properties.pop(name, None)
    properties["harness"]["enum"] = list(RUNNABLE)
    properties["sandbox"]["enum"] = list(SANDBOXES)
    del schema["required"]
    sources = [{"required": ["harbor"]}, {"required": ["swebench"]}]
    tested = {"properties": {"tasks": {"anyOf": sources}}, "required": ["tasks"]}
    graded = {"if": tested, "then": {}, "else": {"required": ["evaluator"]}}  # such tasks bring their own tests
    return {"$schema": DIALECT, **schema, **graded, "title": "polar-mitm scenario"}


def files() -> dict[str, bytes]:
    """File name and content of each published schema."""
    return {"scenario.json": schema_text(scenario_schema())}


def write(folder: Path) -> None:
    """Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_bytes(text)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [folder]:
            write(Path(folder))
        case _:
            sys.exit("usage: python -m polar_mitm.tasks.schema FOLDER")
