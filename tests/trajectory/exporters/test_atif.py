"""ATIF documents: one a session, and one more for every trace that the conversation goes on in."""

import json
from pathlib import Path
from typing import Any

import pytest

from polar_mitm.trajectory.exporters import FORMATS
from polar_mitm.trajectory.exporters.base import ExportRefused, Session
from polar_mitm.trajectory.exporters.run import export
from polar_mitm.trajectory.trace import Lineage
from tests.trajectory.exporters.samples import PROMPT, masked, session, trace, without_traces


def written(folder: Path, *sessions: Session) -> dict[str, Any]:
    export(sessions, FORMATS["atif"], folder / "out")
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "out").iterdir())}


def test_steps_are_the_conversation_and_sampled_ones_carry_their_tokens(tmp_path: Path) -> None:
    [document] = written(tmp_path, session()).values()
    assert [step["source"] for step in document["steps"]] == ["system", "user", "agent", "agent"]
    _, _, first, last = document["steps"]
    assert first["tool_calls"][0]["arguments"] == {"cmd": "ls"}
    assert first["observation"]["results"] == [{"source_call_id": "call_0", "content": "a.txt"}]
    assert last["metrics"]["prompt_token_ids"] == [*PROMPT, 100, 101, 102, 510, 511]
    assert last["metrics"]["completion_token_ids"] == [110, 111, 112]
    assert last["metrics"]["extra"]["loss_mask"] == [1, 1, 1]
    assert document["final_metrics"] == {"total_prompt_tokens": 13, "total_completion_tokens": 6, "total_steps": 4}


def test_a_fork_goes_on_in_another_document_and_what_it_repeats_is_copied_context(tmp_path: Path) -> None:
    fork = trace("ses_a", 1, turns=1, lineage=Lineage(kind="fork", of_trace="ses_a/0"))
    fork = fork.model_copy(update={"messages": trace().messages})
    documents = written(tmp_path, session("ses_a", trace(turns=1), fork))
    assert list(documents) == ["ses_a.cont-1.json", "ses_a.json"]
    assert documents["ses_a.json"]["continued_trajectory_ref"] == "ses_a.cont-1.json"
    agents = [step for step in documents["ses_a.cont-1.json"]["steps"] if step["source"] == "agent"]
    assert [step.get("is_copied_context", False) for step in agents] == [True, False]
    assert "metrics" not in agents[0]


def test_subagents_and_side_requests_are_embedded(tmp_path: Path) -> None:
    others = [trace("ses_a", place, lineage=Lineage(kind=kind)) for place, kind in ((1, "subagent"), (2, "side"))]
    [document] = written(tmp_path, session("ses_a", trace(), *others)).values()
    assert [one["trajectory_id"] for one in document["subagent_trajectories"]] == ["ses_a/1", "ses_a/2"]


def test_arguments_that_are_no_object_are_kept_as_text(tmp_path: Path) -> None:
    made = trace()
    for written_as in ('{"cmd": ', "[1]"):
        made.messages[2]["tool_calls"][0]["function"]["arguments"] = written_as
        [document] = written(tmp_path / written_as.strip('{": '), session("ses_a", made)).values()
        [call] = document["steps"][2]["tool_calls"]
        assert (call["arguments"], call["extra"]) == ({}, {"arguments": written_as})


def test_a_masked_session_says_why_and_one_without_calls_has_a_document_too(tmp_path: Path) -> None:
    documents = written(tmp_path, masked(), without_traces())
    late = documents["ses_m.json"]
    assert late["extra"]["masked"] == "the session timed out"
    assert late["steps"][-1]["metrics"]["extra"]["loss_mask"] == [0, 0, 0]
    assert documents["ses_0.json"]["steps"] == [
        {"step_id": 1, "source": "system", "message": "No model call was captured."}
    ]


@pytest.mark.parametrize("name", ["../ses_a", "a/b", "/ses_a"])
def test_a_session_writes_no_file_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match="would be a file elsewhere"):
        written(tmp_path, session(name))
    assert list(tmp_path.iterdir()) == []


def test_images_are_named_and_a_tool_result_without_its_call_is_a_users_step(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    said = [{"role": "user", "content": parts}, {"role": "tool", "tool_call_id": "gone", "content": None}]
    [document] = written(tmp_path, session("ses_a", trace(turns=1, messages=said))).values()
    first, second, _ = document["steps"]
    assert first["message"] == "See\n[image_url]"
    assert (second["source"], second["extra"]) == ("user", {"tool_call_id": "gone"})
