"""How a real browser gets the page: what it fetches again, what it does after an update, and the field for the token."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.web.accessibility import assert_no_severe_fault
from tests.web.browser import (
    FULL_BROWSERS,
    PHONE,
    UNREACHABLE,
    WIDE,
    chromium,
    new_visit,
    script,
)
from tests.web.conftest import Site
from tests.web.serving import start_process

TOKEN = "correct-horse-battery"
# Writes the path of each file of the page that is sent into a file.
COUNTED = """
from edgekit.web import app
asset_answer = app.asset_answer
def counted(request, *more):
    with open({log!r}, "a") as out:
        print(request.url.path, file=out)
    return asset_answer(request, *more)
app.asset_answer = counted
"""


def test_icon_is_fetched_once_while_the_address_changes(site: Site, tmp_path: Path) -> None:
    """Not by the headless shell: it has no icons. A real one looks for the icon at each change of the address."""
    log = tmp_path / "log"
    with (
        start_process(env=site.environment, setup=COUNTED.format(log=str(log))) as server,
        chromium(FULL_BROWSERS) as browser,
    ):
        visit = new_visit(browser, server.address)
        page = visit.open("/hardware")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.evaluate(
            f"""async () => {{
                const router = {script("router.js")};
                for (let n = 0; n < 20; n += 1) {{
                    router.replaceQuery({{ n }});
                    await new Promise((done) => setTimeout(done, 20));
                }}
            }}"""
        )
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert not visit.close()
    fetched = [path for path in log.read_text().split() if path.endswith("/icon.svg")]
    assert len(fetched) == 1


def test_second_visit_fetches_only_the_document(browser: Browser, site: Site) -> None:
    visit = new_visit(browser, site.origin)
    for path, is_cached in (("/hardware", False), ("/compare", True)):
        page = visit.open(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        sizes: list[int] = page.evaluate(
            """performance.getEntriesByType('resource')
            .filter((entry) => entry.name.includes('/static/'))
            .map((entry) => entry.transferSize)"""
        )
        assert len(sizes) > 10
        assert (sum(sizes) == 0) == is_cached
    assert not visit.close()


def test_open_page_loads_again_after_an_update(browser: Browser, site: Site) -> None:
    with start_process(env=site.environment) as server:
        # The server may stop while the scripts of other pages are still on their way.
        faults = (UNREACHABLE, "status of 40[49]", "Failed to fetch dynamically imported module")
        visit = new_visit(browser, server.address, expected_faults=faults)
        page = visit.open("/hardware?device=RTX+4090")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.evaluate("window.isOld = true")
        port = str(urlsplit(server.address).port)
    expect(page.get_by_text("The server has stopped")).to_be_visible()
    other_hash = "from edgekit.web import assets; assets.HASH_CHARS = 12"
    with start_process("--port", port, env=site.environment, setup=other_hash):
        page.wait_for_function("() => window.isOld === undefined")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert urlsplit(page.url).query == "device=RTX+4090"
        assert not visit.close()


def token_page(browser: Browser, origin: str, *, size: tuple[int, int], dark: bool) -> Page:
    visit = new_visit(browser, origin, size=size, dark=dark, expected_faults=("status of 401",))
    page = visit.open("/hardware?device=RTX+4090")
    expect(page.get_by_role("heading", name="Token required")).to_be_visible()
    return page


@pytest.mark.parametrize(("size", "dark"), [(WIDE, False), (PHONE, True)])
def test_token_is_entered_without_scripts_and_appears_in_no_address(
    browser: Browser, site: Site, size: tuple[int, int], *, dark: bool
) -> None:
    with start_process("--token", TOKEN, env=site.environment) as server:
        page = token_page(browser, server.address, size=size, dark=dark)
        width: int = page.evaluate("document.documentElement.scrollWidth")
        assert width <= size[0]
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(16, 21, 28)" if dark else "rgb(246, 247, 249)")
        assert_no_severe_fault(page)
        addresses = [page.url]
        page.on("request", lambda request: addresses.append(request.url))
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_text("The token is wrong.")).to_be_visible()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_label("Token").press("Enter")
        expect(page.get_by_role("region", name="Checked machine: RTX 4090")).to_be_visible()
        assert page.url == f"{server.address}/hardware?device=RTX+4090"
        assert not [address for address in addresses if TOKEN in address]
        page.context.close()


def test_missing_page_links_home(browser: Browser, site: Site) -> None:
    visit = new_visit(browser, site.origin, expected_faults=("status of 404",))
    page = visit.open("/nowhere")
    expect(page.get_by_role("heading", name="Not Found")).to_be_visible()
    assert_no_severe_fault(page)
    page.get_by_role("link", name="Back to EdgeKit").click()
    expect(page).to_have_title("EdgeKit")
    assert not visit.close()
