"""`polar web --read` in a real browser: what mitmweb shows of saved flows."""

from pathlib import Path

import orjson
import pytest
from mitmproxy.http import Headers
from mitmproxy.io import FlowWriter
from mitmproxy.test import tflow, tutils
from playwright.async_api import Browser, Page, expect

from polar_mitm.capture.record import Call
from polar_mitm.capture.session import SessionFolder
from polar_mitm.proxy.look import SESSION
from polar_mitm.proxy.master import FlowReader
from polar_mitm.proxy.view import annotate
from tests.browser.conftest import Keep, window
from tests.ports import free_port
from tests.trajectory.sessions import World
from tests.trajectory.stories import a_long_day, with_model

pytestmark = pytest.mark.browser

NAME = "ses_01a22b3b7834aae3c2d6f41db7"


def save(world: World, folder: SessionFolder) -> None:
    with folder.flows.open("wb") as file:
        writer = FlowWriter(file)
        for call in world.calls:
            writer.add(flow_of(call))


def flow_of(call: Call) -> tflow.http.HTTPFlow:
    """The call as a client of the Anthropic API would have made it."""
    call.origin.provider, call.origin.path = "anthropic", "/v1/messages"
    asked = {"model": "claude", "max_tokens": 1024, "messages": call.request.messages[1:]}
    headers = Headers(content_type="application/json", x_api_key="redacted")
    request = tutils.treq(
        method=b"POST", scheme=b"https", host="api.anthropic.com", port=443, path=b"/v1/messages", headers=headers
    )
    request.content = orjson.dumps(asked)
    assert call.response
    answer = {"type": "message", "content": [{"type": "text", "text": call.response.text}]}
    response = tutils.tresp(headers=Headers(content_type="application/json"), content=orjson.dumps(answer))
    flow = tflow.tflow(req=request, resp=response)
    flow.metadata[SESSION] = call.identity.session_id
    annotate(flow, call)
    return flow


async def test_a_call_opens_with_its_tokens_and_its_row_says_how_it_went(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: Keep
) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path / "home"))
    world = a_long_day(NAME)
    with_model(world, tmp_path / "home")
    folder = SessionFolder(world.write(tmp_path))
    save(world, folder)
    seen = await window(browser, "desktop")
    page = seen.page
    async with FlowReader(folder.flows, free_port()) as reader:
        await page.goto(reader.web_url)
        rows = page.locator("tr", has=page.locator("td.col-path"))
        await expect(rows).to_have_count(len(world.calls))
        await expect(rows.nth(1)).to_contain_text("turn 1")
        await expect(rows.nth(1)).to_contain_text(f"read · reward 1 · {NAME}")
        await expect(rows.nth(0)).to_contain_text("title")
        await rows.nth(2).click()
        await tab(page, "Response")
        await expect(page.locator(".contentview")).to_contain_text("Polar tokens")
        await expect(page.locator(".contentview")).to_contain_text("The loop forgets what it had")
        await page.screenshot(path=keep("mitmweb"))
        await tab(page, "Request")
        await expect(page.locator(".contentview")).to_contain_text("Chat form: 4 messages, 1 tools")
        await page.screenshot(path=keep("mitmweb-request"))
        await page.close()


async def test_the_command_polar_session_shows_one_sessions_flows(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_HOME", str(tmp_path / "home"))
    flows = tmp_path / "flows.mitm"
    with flows.open("wb") as file:
        for name in (NAME, "ses_02"):
            for call in a_long_day(name).calls:
                FlowWriter(file).add(flow_of(call))
    seen = await window(browser, "desktop")
    async with FlowReader(flows, free_port()) as reader:
        await seen.page.goto(reader.web_url)
        rows = seen.page.locator("tr", has=seen.page.locator("td.col-path"))
        await expect(rows).to_have_count(12)
        assert await run(seen.page, "polar.session", "ses_02") == {"value": "ses_02: 6 flows"}
        await expect(rows).to_have_count(6)
        await expect(rows.first).to_contain_text("ses_02")
        assert "sessions here have an id" in (await run(seen.page, "polar.session", "ses_9"))["error"]
        exported = await run(seen.page, "polar.export", "@shown", str(tmp_path / "out"))
        assert exported == {"value": f"{tmp_path}/out/ses_02: 6 calls, 4 traces"}
        await run(seen.page, "polar.session")
        await expect(rows).to_have_count(12)
        await seen.page.close()


async def run(page: Page, command: str, *arguments: str) -> dict[str, str]:
    """As mitmweb's command bar does."""
    answer: dict[str, str] = await page.evaluate(
        """async ([command, args]) => {
            const token = /_mitmproxy_xsrf=([^;]*)/.exec(document.cookie)[1];
            const headers = {"X-XSRFToken": token, "Content-Type": "application/json"};
            const body = JSON.stringify({arguments: args});
            return (await fetch("./commands/" + command, {method: "POST", headers, body})).json();
        }""",
        [command, list(arguments)],
    )
    return answer


async def tab(page: Page, name: str) -> None:
    await page.get_by_text(name, exact=True).first.click()
