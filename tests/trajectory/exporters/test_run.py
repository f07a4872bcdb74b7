"""What an export refuses, what it leaves behind when it fails, and what it says at the end."""

import math
import resource
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar_mitm.trajectory.exporters import FORMATS, sinks
from polar_mitm.trajectory.exporters.base import ExportFailed, ExportRefused, PackageMissing, Session, principal
from polar_mitm.trajectory.exporters.run import export, summary
from polar_mitm.trajectory.trace import Lineage, Trajectory
from tests.trajectory.exporters.samples import masked, session, trace, turn_of, without_traces

EVERY = pytest.mark.parametrize("name", list(FORMATS))


def to(folder: Path, name: str) -> Path:
    return folder / f"out{FORMATS[name].suffix}"


@EVERY
def test_no_session_is_an_error_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match="no session"):
        export([], FORMATS[name], to(tmp_path, name))
    assert list(tmp_path.iterdir()) == []


@EVERY
def test_an_error_midway_leaves_nothing(name: str, tmp_path: Path) -> None:
    def sessions() -> Iterator[Session]:
        yield session()
        raise ValueError("the second cannot be read")

    with pytest.raises(ValueError, match="second"):
        export(sessions(), FORMATS[name], to(tmp_path, name))
    assert list(tmp_path.iterdir()) == []


@EVERY
def test_a_disk_that_takes_no_more_leaves_the_old_output(name: str, tmp_path: Path) -> None:
    out = to(tmp_path, name)
    export([session()], FORMATS[name], out)
    before = out.stat().st_ino
    long = trace(turns=0, response_ids=[7] * 50_000, loss_mask=[1] * 50_000, logprobs=[-math.pi] * 50_000)
    spread = [place * 7919 % 100_003 for place in range(50_000)]
    long = long.model_copy(update={"prompt_ids": spread, "turns": [turn_of("c", 0, 50_000)]})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(ExportFailed, match=r"out.* was not written: .*Nothing of it is left"):
            export([session("ses_a", long)], FORMATS[name], out, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    assert out.stat().st_ino == before


@EVERY
def test_what_is_there_is_replaced_only_when_asked(name: str, tmp_path: Path) -> None:
    out = to(tmp_path, name)
    export([session()], FORMATS[name], out)
    with pytest.raises(ExportRefused, match=r"exists: add --overwrite"):
        export([session("ses_b")], FORMATS[name], out)
    export([session("ses_b")], FORMATS[name], out, overwrite=True)
    content = b"".join(path.read_bytes() for path in (out.iterdir() if out.is_dir() else [out]))
    assert b"ses_b/0" in content and b"ses_a/0" not in content
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_a_file_is_not_put_in_place_of_a_folder_nor_the_other_way(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ExportRefused, match="is a folder: name a file in it"):
        export([session()], FORMATS["jsonl"], tmp_path / "folder", overwrite=True)
    with pytest.raises(ExportRefused, match="is a file, and this format writes a folder"):
        export([session()], FORMATS["atif"], tmp_path / "file", overwrite=True)


def test_a_folder_with_other_things_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ExportRefused, match=r"holds thesis\.tex"):
        export([session()], FORMATS["atif"], tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ExportFailed, match=r"file/out\.jsonl was not written"):
        export([session()], FORMATS["jsonl"], tmp_path / "file" / "out.jsonl")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"loss_mask": [1, 1]}, "differ in length: 8 response ids, 2 mask values, 8 logprobs"),
        ({"response_ids": [-1] * 8}, "response id is not a token id"),
        ({"prompt_ids": [2**31]}, "prompt id is not a token id"),
        ({"loss_mask": [2] * 8}, "other than 0 and 1"),
        ({"logprobs": [-1.0, math.nan, *[-1.0] * 6]}, "token 1 would be trained on a log-probability of nan"),
        ({"weight": math.inf}, "its weight is inf"),
        ({"advantage": math.nan}, "its advantage is nan"),
    ],
)
@EVERY
def test_broken_arrays_are_an_error(name: str, fields: dict[str, object], complaint: str, tmp_path: Path) -> None:
    broken = trace().model_copy(update=fields)
    made = session()
    made = Session(made.trajectory.model_copy(update={"traces": [broken]}), made.record)
    with pytest.raises(ExportFailed, match=f"ses_a/0: .*{complaint}"):
        export([made], FORMATS[name], to(tmp_path, name))
    assert list(tmp_path.iterdir()) == []


@EVERY
def test_trained_tokens_of_a_masked_session_are_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportFailed, match=r"its session is masked \(late\)"):
        export([session("ses_a", trace(), masked="late")], FORMATS[name], to(tmp_path, name))


@pytest.mark.parametrize("where", ["session", "trace", "named", "turn"])
@EVERY
def test_a_reward_that_is_no_number_masks_the_session(name: str, where: str, tmp_path: Path) -> None:
    bad = math.inf
    turn = turn_of("c", 0, 3, reward=bad if where == "turn" else None)
    made = trace(turns=1, reward=bad if where == "trace" else 1.0, rewards={"x": bad} if where == "named" else {})
    made = made.model_copy(update={"turns": [turn]})
    tally = export(
        [session("ses_a", made, reward=bad if where == "session" else 1.0)], FORMATS[name], to(tmp_path, name)
    )
    [reason] = tally.masked
    assert reason.startswith("reward is not finite: ") and reason.endswith("is inf")
    assert tally.trained_tokens == 0


def test_a_logprob_that_no_loss_sees_is_written_as_zero(tmp_path: Path) -> None:
    made = trace(turns=1, masked=True, logprobs=[-math.inf, math.nan, -1.0])
    export([session("ses_a", made, masked="late")], FORMATS["jsonl"], tmp_path / "out.jsonl")
    assert '"logprobs":[0.0,0.0,-1.0]' in (tmp_path / "out.jsonl").read_text(encoding="utf-8")


@EVERY
def test_two_models_are_kept_apart(name: str, tmp_path: Path) -> None:
    sessions = [session(), session("ses_b", trace("ses_b", model="large"))]
    if FORMATS[name].one_model:
        with pytest.raises(ExportRefused, match=r"ses_b brings the models together to large, tiny.*--model"):
            export(sessions, FORMATS[name], to(tmp_path, name))
    else:
        assert export(sessions, FORMATS[name], to(tmp_path, name)).models == {"tiny", "large"}
    tally = export(sessions, FORMATS[name], to(tmp_path / "one", name), models=["large"])
    assert (tally.sessions, tally.models, +tally.left_out) == (1, {"large"}, {"sessions of other models": 1})
    with pytest.raises(ExportRefused, match="no session with a trace of huge to export"):
        export(sessions, FORMATS[name], to(tmp_path / "none", name), models=["huge"])


@EVERY
def test_a_session_is_not_exported_twice(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match="ses_a is there twice"):
        export([session(), session()], FORMATS[name], to(tmp_path, name))


@EVERY
def test_any_text_and_an_empty_response_go_through(name: str, tmp_path: Path) -> None:
    said = [
        {"role": "user", "content": "\ud83d\x00\u2028"},
        {"role": "tool", "tool_call_id": "x", "content": ["\udfff"]},
    ]
    odd = trace(turns=1, sampled=0, messages=said, reply={"role": "assistant", "content": "\udc00"})
    tally = export([session("ses_a", odd), session("ses_b", trace("ses_b"))], FORMATS[name], to(tmp_path, name))
    assert tally.sessions == 2


def test_the_summary_counts_what_a_reader_must_know(tmp_path: Path) -> None:
    spans = [turn_of("c0", 0, 3, policy_version="v1"), turn_of("c1", 5, 8, policy_version="v2")]
    across = trace("ses_b", reward=None).model_copy(update={"turns": spans})
    sessions = [session(), session("ses_b", across, reward=None), masked(), without_traces()]
    assert summary(export(sessions, FORMATS["trl"], tmp_path / "out.parquet")) == {
        "sessions": 4,
        "rows": 3,
        "trained_tokens": 12,
        "models": ["tiny"],
        "masked": {"the session timed out": 1, "no call was captured": 1},
        "left_out": {"sessions without a sampled token": 1},
        "places": 0,
        "without_reward": 1,
        "across_versions": 1,
        "cautions": {},
    }


def test_turns_sampled_otherwise_than_their_logprobs_say_are_counted_once_trained(tmp_path: Path) -> None:
    warm = {"sampling": {"temperature": 0.7}, "logprobs_mode": "raw_logprobs"}
    turns = [turn_of("c0", 0, 3, **warm), turn_of("c1", 5, 8, **warm)]
    made = trace().model_copy(update={"turns": turns, "loss_mask": [1, 1, 1, 0, 0, 0, 0, 0]})
    tally = export([session("ses_a", made)], FORMATS["jsonl"], tmp_path / "out.jsonl")
    assert tally.cautions == {"sampled at temperature 0.7, and the log-probabilities are those at 1": 1}


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("parquet", "trl"):
        with pytest.raises(PackageMissing, match=r"pip install '\.\[parquet\]'"):
            export([session()], FORMATS[name], to(tmp_path, name))
    export([session()], FORMATS["jsonl"], tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("name", ["parquet", "jsonl"])
def test_memory_does_not_grow_with_the_number_of_sessions(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_GROUP_TOKENS", 40_000)
    ids = [1] * 20_000
    lists = {"response_ids": ids, "loss_mask": ids, "logprobs": [-0.5] * len(ids)}

    def peak(count: int) -> int:
        made = (session(f"ses_{place}", trace(f"ses_{place}", turns=0, **lists)) for place in range(count))
        tracemalloc.start()
        export(made, FORMATS[name], to(tmp_path / str(count), name))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(40) < 1.5 * peak(8)


@EVERY
def test_a_million_tokens(name: str, tmp_path: Path) -> None:
    size = 1_000_000
    lists = {"response_ids": list(range(size)), "loss_mask": [1] * size, "logprobs": [-0.5] * size}
    spans = [turn_of(f"c{place}", place * size // 4, (place + 1) * size // 4) for place in range(4)]
    long = trace(turns=0, **lists).model_copy(update={"turns": spans})
    tally = export([session("ses_a", long)], FORMATS[name], to(tmp_path, name))
    assert tally.trained_tokens == size


def test_the_trace_that_stands_for_a_session() -> None:
    sub = trace("ses_a", 1, turns=4, lineage=Lineage(kind="subagent"))
    fork = trace("ses_a", 2, turns=3, lineage=Lineage(kind="fork"))
    untrained = trace("ses_a", 0, turns=9, masked=True)

    def of(*traces: object) -> str | None:
        made = Trajectory.model_construct(**session().trajectory.model_dump(exclude={"traces"}), traces=list(traces))
        return one.trace_id if (one := principal(made)) else None

    assert of(untrained, sub, fork) == "ses_a/2", "of the main conversation, with most trained tokens"
    assert of(untrained, sub) == "ses_a/1", "a trained one before one that is not"
    assert of(untrained) == "ses_a/0"
    assert of(trace(turns=1, sampled=0)) is None
