"""The page of trajectories: it needs nothing from outside, only its own script runs in it, and it stays small."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from polar_mitm.trajectory.builders import Options, build
from polar_mitm.trajectory.page import Page, page
from polar_mitm.trajectory.trace import Trajectory
from tests.trajectory.sessions import World
from tests.trajectory.stories import a_long_day, vocabulary

HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(2)>"'{{ 7*7 }}\u202emoc.elpmaxe\x1b[2J"""


class Read(HTMLParser):
    """What a browser would see: tags, attributes, text, and the classes of tokens."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def tokens(self, mask: str) -> int:
        """Tokens of this mask (`t` trained, `m` not), each counted by what a tap would tell of it."""
        told = re.findall(rf'<b class="{mask} l\w" data-t="[^·]*· ([^"]*)">', self.html)
        return sum(text.count(",") + 1 for text in told)


def page_of(world: World, folder: Path, **limits: int) -> tuple[str, Trajectory]:
    known = vocabulary(world, folder / "model")
    trajectory = build(world.write(folder))
    made = Page("runs", **limits)
    made.add("runs/ses_1", trajectory, known, "decoded by the test")
    return made.html(), trajectory


def test_every_trained_token_is_shown_as_trained_and_no_other_one(tmp_path: Path) -> None:
    html, trajectory = page_of(a_long_day(), tmp_path)
    trained = sum(trace.trained for trace in trajectory.traces)
    sampled = sum(turn.end - turn.start for trace in trajectory.traces for turn in trace.turns)
    assert Read(html).tokens("t") == trained > 0
    assert Read(html).tokens("m") == sampled - trained > 0


def test_turns_forks_lineage_and_the_ledger_are_there(tmp_path: Path) -> None:
    html, trajectory = page_of(a_long_day(), tmp_path)
    text = re.sub(r"\s+", " ", " ".join(Read(html).text))
    for words in ("arguments_rerendered", "fork of 1", "subagent of 2", "a grammar chose", "1 session ·"):
        assert words in text, words
    assert f"sampled {trajectory.ledger.sampled}" in text
    for name, tokens in trajectory.ledger.bins.items():
        assert re.search(rf"{name}\s+{tokens}\b", text)
    assert "The loop forgets what it had" in "".join(Read(html).text)


def test_the_page_loads_nothing_and_its_policy_lets_its_own_style_and_script_alone(tmp_path: Path) -> None:
    html, _ = page_of(a_long_day(), tmp_path)
    seen = Read(html)
    assert not {name for name, _ in seen.attributes} & {"src", "srcset", "style", "onclick", "action"}
    assert all((value or "").startswith("#") for name, value in seen.attributes if name == "href")
    assert "url(" not in html and "@import" not in html
    policy = next(value for _, value in seen.attributes if value and "default-src" in value)
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize("builder", ["prefix_merging", "per_request"])
def test_what_others_wrote_is_text(builder: str, tmp_path: Path) -> None:
    plain, _ = page_of(a_long_day(), tmp_path / "plain")
    world = a_long_day(status="completed", task_id=HOSTILE)
    world.record |= {"harness": HOSTILE, "scenario": HOSTILE}
    talk = world.talk(HOSTILE, HOSTILE)
    talk.tools = [{"type": "function", "function": {"name": HOSTILE, "parameters": {HOSTILE: HOSTILE}}}]
    world.answer(talk, HOSTILE, tool=HOSTILE, arguments="{}", reasoning=HOSTILE, finish=HOSTILE)
    world.answer(talk.tool(HOSTILE), HOSTILE)
    folder = world.write(tmp_path)
    made = Page(HOSTILE)
    trajectory = build(folder, Options(builder=builder))  # type: ignore[arg-type]
    made.add(HOSTILE, trajectory, vocabulary(world, tmp_path / "model"), HOSTILE)
    seen = Read(made.html())
    assert set(seen.tags) == set(Read(plain).tags)
    assert seen.tags.count("script") == seen.tags.count("style") == 1
    assert {name for name, _ in seen.attributes} == {name for name, _ in Read(plain).attributes}
    assert not [sign for sign in made.html() if not sign.isprintable() and sign != "\n"]
    assert "49" not in "".join(seen.text[:5])


def test_long_sessions_are_cut_and_say_so(tmp_path: Path) -> None:
    world, talk = World(), World().talk()
    for place in range(40):
        world.answer(talk, f"Turn {place}: " + "word " * 1500, spelled=place == 7)
        talk.user("Go on. " * 400)
    html, trajectory = page_of(world, tmp_path, tokens=20_000)
    assert trajectory.ledger.sampled > 60_000
    assert len(html) < 3_000_000
    text = " ".join(Read(html).text)
    assert re.search(r"… [\d,]+ tokens …", text)
    assert "This page shows 20,000 tokens and no more" in text
    seen = Read(html)
    assert 0 < seen.tokens("t") <= 20_000


def test_many_sessions_and_traces_stand_in_the_tables_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "SESSIONS", 2)
    monkeypatch.setattr(page, "TRACES", 1)
    made = Page("runs")
    for name in ("ses_1", "ses_2", "ses_3"):
        world = a_long_day(name)
        made.add(name, build(world.write(tmp_path)), None, "no tokenizer")
    text = " ".join(Read(made.html()).text)
    assert "1 more sessions stand in the table only" in text
    assert "more traces of this session are not shown" in text
    assert text.count("ses_3") == 1


def test_a_session_without_a_call_has_a_page(tmp_path: Path) -> None:
    html, _ = page_of(World(), tmp_path)
    assert "0 calls" in html
