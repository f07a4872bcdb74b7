"""Reward files: what is a reward, what is none and why, and that harbor reads them the same way."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from polar_mitm.tasks.harbor.reward import NoReward, read, remove
from tests.harbor.running import LOADER, need_harbor

type Files = dict[str, str | bytes]

GIVE: dict[str, tuple[Files, dict[str, float]]] = {
    "text": ({"reward.txt": "1"}, {"reward": 1.0}),
    "text with blanks": ({"reward.txt": "\n  -2.5e-1\r\n"}, {"reward": -0.25}),
    "text as Python reads numbers": ({"reward.txt": "1_000"}, {"reward": 1000.0}),
    "one name": ({"reward.json": '{"reward": 0.5}'}, {"reward": 0.5}),
    "names": ({"reward.json": '{"a": 1, "b": 0.5, "ü": -3}'}, {"a": 1.0, "b": 0.5, "ü": -3.0}),
    "truth": ({"reward.json": '{"a": true, "b": false}'}, {"a": 1.0, "b": 0.0}),
    "a name twice": ({"reward.json": '{"a": 1, "a": 2}'}, {"a": 2.0}),
    "JSON before text": ({"reward.json": '{"a": 1}', "reward.txt": "7"}, {"a": 1.0}),
    "JSON before text that is none": ({"reward.json": '{"a": 1}', "reward.txt": "x"}, {"a": 1.0}),
    "large and small": (
        {"reward.json": '{"a": 1e300, "b": 5e-324, "c": 100000000000000000000}'},
        {"a": 1e300, "b": 5e-324, "c": 1e20},
    ),
}

GIVE_NONE: dict[str, tuple[Files, str]] = {
    "nothing": ({}, "left neither reward.json nor reward.txt"),
    "another file": ({"Reward.txt": "1"}, "left neither"),
    "empty text": ({"reward.txt": ""}, "reward.txt is empty"),
    "blank text": ({"reward.txt": " \n"}, "reward.txt is empty"),
    "words": ({"reward.txt": "good"}, "reward.txt holds good: expected a number"),
    "two numbers": ({"reward.txt": "1 2"}, "reward.txt holds 1 2: expected a number"),
    "infinite text": ({"reward.txt": "-inf"}, "reward.txt holds -inf, which is not finite"),
    "no number in text": ({"reward.txt": "nan"}, "reward.txt holds nan, which is not finite"),
    "text that overflows": ({"reward.txt": "1e999"}, "not finite"),
    "text in another encoding": ({"reward.txt": b"\xff\xfe1\x00"}, "reward.txt is no UTF-8 text"),
    "empty JSON": ({"reward.json": "", "reward.txt": "1"}, "reward.json is empty"),
    "broken JSON beside text": ({"reward.json": "{", "reward.txt": "1"}, "reward.json is no JSON"),
    "a mark of byte order": ({"reward.json": '\ufeff{"a": 1}'}, "reward.json is no JSON"),
    "deep JSON": ({"reward.json": "[" * 100_000}, "reward.json is no JSON"),
    "a number": ({"reward.json": "0.5"}, "reward.json holds 0.5: expected an object"),
    "a list": ({"reward.json": "[1]"}, "expected an object"),
    "null": ({"reward.json": "null"}, "expected an object"),
    "a name without number": ({"reward.json": '{"a": 1, "b": null}'}, "reward.json: b is null: expected a number"),
    "a number as text": ({"reward.json": '{"a": "1"}'}, 'reward.json: a is "1": expected a number'),
    "names within": ({"reward.json": '{"a": {"b": 1}}'}, "expected a number"),
    "not a number": ({"reward.json": '{"a": NaN}'}, "reward.json: a is not finite"),
    "infinite": ({"reward.json": '{"a": 1, "b": -Infinity}'}, "reward.json: b is not finite"),
    "overflows": ({"reward.json": '{"a": 1e999}'}, "reward.json: a is not finite"),
}

DIFFER: dict[str, tuple[Files, str]] = {
    "no names": ({"reward.json": "{}"}, "reward.json names no reward"),
    "a whole number past any float": ({"reward.json": f'{{"a": {"9" * 400}}}'}, "reward.json: a is not finite"),
    "huge": ({"reward.json": '{"a": 1}' + " " * 1024 * 1024}, "reward.json has more than 1,048,576 bytes"),
}
"""harbor takes them."""


def lay(folder: Path, files: Files) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize("case", GIVE)
def test_a_reward(tmp_path: Path, case: str) -> None:
    files, rewards = GIVE[case]
    assert read(lay(tmp_path / "verifier", files)) == rewards


@pytest.mark.parametrize("case", GIVE_NONE | DIFFER)
def test_no_reward_and_why(tmp_path: Path, case: str) -> None:
    files, why = (GIVE_NONE | DIFFER)[case]
    with pytest.raises(NoReward) as caught:
        read(lay(tmp_path / "verifier", files))
    assert why in str(caught.value)


def odd(folder: Path) -> dict[str, Path]:
    """Folders with something else in the place of a reward file."""
    made = {}
    for name in ("folder", "pipe", "link within", "link that leads nowhere", "link out", "link to itself"):
        made[name] = lay(folder / name / "verifier", {})
    (made["folder"] / "reward.json").mkdir()
    os.mkfifo(made["pipe"] / "reward.txt")
    lay(made["link within"] / "inner", {"score": '{"a": 0.75}'})
    (made["link within"] / "reward.json").symlink_to("inner/score")
    (made["link that leads nowhere"] / "reward.json").symlink_to("nowhere")
    (made["link that leads nowhere"] / "reward.txt").write_text("0.25")
    lay(folder / "elsewhere", {"secret": "1"})
    (made["link out"] / "reward.txt").symlink_to(folder / "elsewhere" / "secret")
    (made["link to itself"] / "reward.json").symlink_to("reward.json")
    return made


def test_what_is_no_file_is_no_reward_and_is_never_waited_for(tmp_path: Path) -> None:
    made = odd(tmp_path)
    assert read(made["link within"]) == {"a": 0.75}
    assert read(made["link that leads nowhere"]) == {"reward": 0.25}
    for name, why in {
        "folder": "reward.json is no regular file",
        "pipe": "reward.txt is no regular file",
        "link out": "reward.txt is a link that leads out of /logs/verifier",
        "link to itself": "left neither",
    }.items():
        with pytest.raises(NoReward, match=why):
            read(made[name])


def test_whatever_lies_in_their_place_is_removed_and_nothing_that_it_leads_to(tmp_path: Path) -> None:
    made = odd(tmp_path)
    (made["folder"] / "reward.json" / "deep").mkdir()
    (made["folder"] / "reward.json" / "deep" / "link").symlink_to(tmp_path / "elsewhere")
    for folder in made.values():
        (folder / "other.txt").write_text("stays")
        remove(folder)
        assert not list(folder.glob("reward*"))
        assert (folder / "other.txt").exists()
    assert (tmp_path / "elsewhere" / "secret").read_text() == "1"
    assert (made["link within"] / "inner" / "score").exists()


@pytest.mark.live
def test_harbor_reads_them_the_same_way(tmp_path: Path) -> None:
    need_harbor()
    folders = {name: path for name, path in odd(tmp_path).items() if name not in ("pipe", "link out")}
    for name, (files, _) in {**GIVE, **GIVE_NONE}.items():
        folders[name] = lay(tmp_path / name / "verifier", files)
    asked = "".join(f"{path.parent}\n" for path in folders.values())
    script = Path(__file__).with_name("parse_rewards.py")
    command = [str(LOADER.python), "-W", "ignore", str(script)]
    said = subprocess.run(command, input=asked, capture_output=True, text=True, check=True, timeout=120)
    for (name, path), line in zip(folders.items(), said.stdout.splitlines(), strict=True):
        harbors = json.loads(line)
        try:
            assert harbors == {"rewards": read(path)}, name
        except NoReward:
            assert "error" in harbors, name
