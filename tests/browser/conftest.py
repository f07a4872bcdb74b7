"""A headless Chromium for the tests of what a person sees. `make screenshots` keeps what they saw in docs/."""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, async_playwright

from tests.needs import need

NAMES = ("chromium", "chromium-browser", "google-chrome")
WINDOWS = {"desktop": (1280, 900), "phone": (390, 844)}
"""Width and height, CSS pixels."""

type Keep = Callable[[str], Path]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Where the picture of a name goes: $POLAR_SCREENSHOTS, which `make screenshots` sets, else nowhere for long."""
    folder = Path(os.environ.get("POLAR_SCREENSHOTS", tmp_path))
    return lambda name: folder / f"{name}.png"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    need([] if found else ["no Chromium is here: make browser"])
    async with async_playwright() as playwright:
        # Without the sandbox it runs as root too; it opens nothing but what these tests make.
        started = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        await started.close()


class Watched:
    """A window, and what its page complained of or asked for outside."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.asked.append(request.url))

    async def width(self) -> tuple[int, int]:
        """Of the content and of the window."""
        content: int = await self.page.evaluate("document.documentElement.scrollWidth")
        window: int = await self.page.evaluate("innerWidth")
        return content, window


async def window(browser: Browser, name: str, *, dark: bool = False) -> Watched:
    width, height = WINDOWS[name]
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        has_touch=name == "phone",
        is_mobile=name == "phone",
    )
    return Watched(await context.new_page())
