"""The page of `polar traces --html` in a real browser: at the width of a desk and of a phone, in light and in dark."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from polar_mitm.trajectory.builders import build
from polar_mitm.trajectory.page import Page
from tests.browser.conftest import Keep, window
from tests.conftest import Sentinel
from tests.trajectory.stories import a_long_day, vocabulary

pytestmark = pytest.mark.browser

HOSTILE = "</pre></script><script>document.title='owned'</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"


def write(folder: Path, *, said: str = "") -> Path:
    made = Page("runs")
    for name in ("ses_01a22b3b7834aae3c2d6f41db7", "ses_01a22b3b919a86548d611a10b2"):
        world = a_long_day(name)
        if said:
            talk = world.talk(said, said)
            world.answer(talk, said, reasoning=said)
        known = vocabulary(world, folder / "model")
        made.add(f"runs/{name}", build(world.write(folder)), known, f"{said} decoded by the model's tokenizer")
    file = folder / "page.html"
    file.write_text(made.html(), encoding="utf-8")
    return file


@pytest.mark.parametrize(("name", "dark"), [("desktop", False), ("phone", True)])
async def test_it_fits_the_window_and_tells_a_token_when_it_is_tapped(
    name: str, dark: bool, browser: Browser, tmp_path: Path, keep: Keep
) -> None:
    seen = await window(browser, name, dark=dark)
    page, file = seen.page, write(tmp_path)
    await page.goto(file.as_uri())
    content, width = await seen.width()
    assert content == width
    light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (light == "rgb(255, 255, 255)") == (not dark)

    trace = page.locator("details.trace", has_text="fork of 1").first
    await expect(trace).not_to_have_attribute("open", "")
    await page.locator("td", has_text="fork of").first.locator("xpath=../td[1]/a").click()
    await expect(trace).to_have_attribute("open", "")
    told = page.locator("#told")
    await expect(told).to_be_hidden()
    token = trace.locator("b.t.l4").first
    await token.click()
    await expect(told).to_contain_text("trained")
    await expect(told).to_contain_text((await token.get_attribute("data-t") or "").split("· ")[1])
    content, width = await seen.width()
    assert content == width
    await trace.scroll_into_view_if_needed()
    await page.screenshot(path=keep(f"traces-{name}"))
    await page.locator("h1").click()
    await expect(told).to_be_hidden()

    await page.get_by_role("button", name="open all").click()
    assert await page.locator("details.trace:not([open])").count() == 0
    assert (seen.complaints, set(seen.asked)) == ([], {file.as_uri()})


async def test_nothing_that_others_wrote_runs_or_asks_for_anything(browser: Browser, tmp_path: Path) -> None:
    seen = await window(browser, "desktop")
    file = write(tmp_path, said=HOSTILE)
    await seen.page.goto(file.as_uri())
    await seen.page.get_by_role("button", name="open all").click()
    assert await seen.page.title() == "runs · polar traces"
    assert "onerror=alert(1)" in (await seen.page.locator("pre.c", has_text="onerror").first.text_content() or "")
    assert await seen.page.locator("img").count() == 0
    assert (seen.complaints, set(seen.asked)) == ([], {file.as_uri()})


async def test_the_policy_stops_a_script_that_would_have_got_into_the_page(
    browser: Browser, tmp_path: Path, sentinel: Sentinel
) -> None:
    file = write(tmp_path)
    text = file.read_text()
    file.write_text(
        text.replace("<main>", f"<main>{HOSTILE}<img src=http://{sentinel.address}/x><p style='color:red'>x</p>")
    )
    seen = await window(browser, "desktop")
    await seen.page.goto(file.as_uri())
    assert await seen.page.title() == "runs · polar traces"
    for kind in ("inline script", "inline style", sentinel.address):
        assert any(kind in line and "Content Security Policy" in line for line in seen.complaints), seen.complaints
    assert sentinel.connections == 0
