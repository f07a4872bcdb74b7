"""The rollout server's page in a real browser."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from polar_mitm.client.models import TaskRequest
from polar_mitm.client.sync import RolloutClient
from tests.browser.conftest import WINDOWS, Keep, Watched
from tests.client.test_clients import TOKEN, until_open

pytestmark = pytest.mark.browser


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    token = tmp_path / "token.txt"
    token.write_text(TOKEN)
    polar = Path(sys.executable).with_name("polar")
    command = [polar, "rollout", "serve", "--state", tmp_path / "state", "--port", "0", "--token-file", token]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            yield until_open(tmp_path / "log", server)
        finally:
            server.terminate()


@pytest.mark.parametrize("size", list(WINDOWS))
async def test_tasks_sessions_and_stages_are_shown_as_they_are(
    browser: Browser, url: str, size: str, keep: Keep
) -> None:
    with RolloutClient(url, TOKEN) as rollout:
        for number in range(3):
            rollout.submit(TaskRequest(task_id=f"task-{number}", scenario="hello", num_samples=4))
        rollout.cancel("task-1")
    width, height = WINDOWS[size]
    context = await browser.new_context(
        viewport={"width": width, "height": height}, http_credentials={"username": "any", "password": TOKEN}
    )
    seen = Watched(await context.new_page())
    await seen.page.goto(url)
    await seen.page.get_by_role("button", name="task-1").click()
    await seen.page.get_by_role("heading", name="Task task-1").wait_for()
    text = await seen.page.inner_text("body")
    assert re.search(r"queued\s+8", text)
    assert "task-2" in text
    assert text.count("cancelled") >= 5  # the task and its four sessions
    content, shown = await seen.width()
    assert content <= shown, "the page is wider than its window"
    assert seen.complaints == []
    assert all(asked.startswith(url) for asked in seen.asked)
    await seen.page.screenshot(path=str(keep(f"dashboard-{size}")), full_page=True)
    await context.close()


async def test_an_address_that_holds_the_token_is_as_good(browser: Browser, url: str) -> None:
    page = await browser.new_page()
    await page.goto(url.replace("http://", f"http://polar:{TOKEN}@"))
    await page.get_by_role("status").filter(has_text="version").wait_for()
    await page.close()


async def test_a_server_that_is_gone_is_said(browser: Browser, url: str) -> None:
    context = await browser.new_context(http_credentials={"username": "any", "password": TOKEN})
    page = await context.new_page()
    await page.goto(url)
    await page.get_by_role("status").filter(has_text="version").wait_for()
    await context.set_offline(True)
    await page.get_by_role("status").filter(has_text="the server does not answer").wait_for()
    await context.close()
