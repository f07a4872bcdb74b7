import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator, ValidationError  # type: ignore[import-untyped]  # it ships no types

from polar_mitm.capture.log import CallLog
from polar_mitm.capture.record import Call
from polar_mitm.capture.schema import call_line_schema, files, session_schema
from polar_mitm.capture.session import SessionEngine, SessionFolder, SessionRecord
from tests.capture.samples import make_call, sessions

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas"
CALLS = Draft202012Validator(call_line_schema())


@pytest.mark.parametrize("name", ["call-record.v1.json", "session.v1.json"])
def test_the_published_schema_is_the_one_the_code_has(name: str) -> None:
    assert (PUBLISHED / name).read_bytes() == files()[name], "run: python -m polar_mitm.capture.schema docs/schemas"


def test_the_command_writes_the_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "polar_mitm.capture.schema", str(tmp_path / "new")], check=True, timeout=60)
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == files()


@pytest.mark.parametrize("schema", [call_line_schema(), session_schema()])
def test_the_schemas_are_valid_2020_12_and_say_what_fields_mean(schema: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"].endswith("record, version 1")
    assert "$id" not in schema


def test_a_field_carries_its_description() -> None:
    prompt = call_line_schema()["$defs"]["Response"]["properties"]["response_ids"]
    assert prompt["description"].startswith("Sampled token ids")


@settings(max_examples=30, deadline=None)
@given(sessions(max_calls=4))
def test_every_written_line_validates(tmp_path_factory: pytest.TempPathFactory, calls: list[Call]) -> None:
    path = tmp_path_factory.mktemp("schema") / "calls.jsonl"
    with CallLog(path, durability="none") as log:
        for call in calls:
            log.append(call)
    for line in path.read_bytes().splitlines():
        CALLS.validate(json.loads(line))


@pytest.mark.parametrize("field", ["schema", "identity", "prompt", "response", "error"])
def test_a_line_without_one_of_its_fields_does_not_validate(tmp_path: Path, field: str) -> None:
    with CallLog(tmp_path / "calls.jsonl") as log:
        log.append(make_call("a"))
    line = json.loads((tmp_path / "calls.jsonl").read_text())
    CALLS.validate(line)
    del line[field]
    with pytest.raises(ValidationError, match=f"'{field}' is a required property"):
        CALLS.validate(line)


def test_a_written_session_record_validates(tmp_path: Path) -> None:
    record = SessionRecord(session_id="ses_1", started_at=1.0, reward=0.0, rewards={"tests": 0.0})
    record.engine = SessionEngine(url="http://127.0.0.1:8000", model="tiny")
    SessionFolder(tmp_path).write(record)
    written = json.loads((tmp_path / "session.json").read_text())
    Draft202012Validator(session_schema()).validate(written)
    written["status"] = "fine"
    with pytest.raises(ValidationError):
        Draft202012Validator(session_schema()).validate(written)
