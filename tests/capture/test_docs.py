import re
from pathlib import Path

import pytest

from polar_mitm.capture.log import CallLog
from tests.capture.samples import SYSTEM, assistant, make_call, user

PAGE = Path(__file__).parents[2] / "docs" / "jsonl.md"


def test_the_code_on_the_jsonl_page_reads_a_written_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with CallLog(tmp_path / "calls.jsonl") as log:
        log.append(make_call("a", [SYSTEM, user("Hi.")], [1, 2], [3]))
        log.append(make_call("b", [SYSTEM, user("Hi."), assistant("Hello."), user("More\u2028")], [1, 2, 3, 4], [5]))
        log.append(make_call("c", [user("lost")], [1, 9], None))
    with_polar, without = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

    exec(re.sub(r'"runs/.*?"', repr(str(tmp_path / "calls.jsonl")), with_polar), {})
    assert capsys.readouterr().out == "a 2 [3] True\nb 4 [5] True\nc 2 None False\n"

    monkeypatch.chdir(tmp_path)
    names: dict[str, dict[str, list[int]]] = {}
    exec(without, names)
    assert names["prompts"] == {"a": [1, 2], "b": [1, 2, 3, 4], "c": [1, 9]}
