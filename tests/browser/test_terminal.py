"""What `polar calls --call` and `polar traces --explain` print, drawn as a terminal would."""

import io
from pathlib import Path

import pytest
from playwright.async_api import Browser
from rich.console import Console

from polar_mitm.cli import calls as calls_command
from polar_mitm.cli import shell, traces
from polar_mitm.cli.coloured import COLOURS
from tests.browser.conftest import Keep, window
from tests.trajectory.stories import a_long_day, with_model

pytestmark = pytest.mark.browser


async def test_tokens_are_coloured_on_a_terminal(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Keep
) -> None:
    monkeypatch.chdir(tmp_path)
    world = a_long_day("ses_01a22b3b7834aae3c2d6f41db7")
    with_model(world, Path())
    folder, model = world.write(Path("runs")), Path("models/tiny")
    pages = {}
    for name in ("calls", "traces"):
        recorded = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        for module in (shell, calls_command, traces):
            monkeypatch.setattr(module, "out", recorded)
        if name == "calls":
            calls_command.calls(folder, call="2", tokens=False, full=False, tokenizer=model)
        else:
            traces.traces(folder, explain=True, tokenizer=model)
        pages[name] = recorded.export_html(inline_styles=True)
    assert pages["calls"].count("color: ") > len(COLOURS)
    for name, html in pages.items():
        file = tmp_path / f"{name}.html"
        file.write_text(html)
        seen = await window(browser, "desktop")
        await seen.page.goto(file.as_uri())
        await seen.page.add_style_tag(content="pre { white-space: pre-wrap; width: 100ch; padding: 1ch }")
        await seen.page.locator("pre").screenshot(path=keep(f"polar-{name}"))
        assert seen.complaints == []
