"""What a page must be for people who do not see colours, use no mouse, or hold a phone."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # has no types
from playwright.sync_api import Page, expect
from tests.web.browser import PHONE

SEVERE = ("serious", "critical")
LARGEST = 320  # pixels that are left of 1280 where everything is four times as large
# What another theme or another width can break; the rest is the same document.
LOOKS = ("color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size")


def severe_faults(page: Page, *rules: str) -> list[str]:
    """By axe-core; of these rules, or of all."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    result = Axe().run(page, options=options).response["violations"]
    return [
        f"{fault['id']} ({fault['impact']}): {node['target']} {node['failureSummary']}"
        for fault in result
        if fault["impact"] in SEVERE
        for node in fault["nodes"][:3]
    ]


def assert_no_serious_fault(page: Page) -> None:
    """Light on a wide screen and dark on a phone; and nothing is wider than a phone, or than a page at four times its size."""
    faults = severe_faults(page)
    width, height = PHONE
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark")
    faults += [f"on a phone, dark: {fault}" for fault in severe_faults(page, *LOOKS)]
    assert not faults, "\n".join(faults)
    for narrow in (width, LARGEST):
        page.set_viewport_size({"width": narrow, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), _widest(page)


def _widest(page: Page) -> str:
    result: list[str] = page.evaluate(
        """[...document.querySelectorAll("main *, header *")].filter(one => one.getBoundingClientRect().right > innerWidth + 1)
        .map(one => `${one.tagName}.${one.getAttribute("class")} ${Math.round(one.getBoundingClientRect().right)}`)"""
    )
    return "\n".join(result[:10])


def assert_tab_reaches(page: Page, wanted: set[str]) -> None:
    """The Tab key comes to every one of these controls, and it can be seen where it is."""
    for name in wanted:
        expect(page.locator(f"#{name}")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    assert _reached(page, wanted) == wanted
    ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert ring != "none"


def _reached(page: Page, wanted: set[str], steps: int = 120) -> set[str]:
    result: set[str] = set()
    for _ in range(steps):
        page.keyboard.press("Tab")
        result.add(page.evaluate("document.activeElement.id"))
        if wanted <= result:
            break
    return result & wanted
