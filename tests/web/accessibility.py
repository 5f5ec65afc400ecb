"""Accessibility checks of a page: axe-core's rules, keyboard focus, narrow screens and zoom."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # has no types
from playwright.sync_api import Page, expect
from tests.web.browser import PHONE

SEVERE = ("serious", "critical")
MAX_TABS = 120
WIDTH_AT_400_PERCENT = 320  # CSS pixels: a window of 1280 at 400 % zoom
# Rules that depend on theme or width; the others need only one check of the document.
LAYOUT_RULES = (
    "color-contrast",
    "link-in-text-block",
    "scrollable-region-focusable",
    "target-size",
)


def severe_faults(page: Page, *rules: str) -> list[str]:
    """Violations that axe-core finds of these rules, or of all."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    violations = Axe().run(page, options=options).response["violations"]
    return [
        f"{violation['id']} ({violation['impact']}): {node['target']} {node['failureSummary']}"
        for violation in violations
        if violation["impact"] in SEVERE
        for node in violation["nodes"][:3]
    ]


def assert_no_severe_fault(page: Page) -> None:
    """In light on a wide screen and in dark on a phone; and nothing overflows on a phone, or at 400 % zoom."""
    faults = severe_faults(page)
    width, height = PHONE
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark")
    faults += [f"on a phone, dark: {fault}" for fault in severe_faults(page, *LAYOUT_RULES)]
    assert not faults, "\n".join(faults)
    for narrow in (width, WIDTH_AT_400_PERCENT):
        page.set_viewport_size({"width": narrow, "height": height})
        fits = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert fits, _overflowing(page)


def _overflowing(page: Page) -> str:
    elements: list[str] = page.evaluate(
        """[...document.querySelectorAll("main *, header *")].filter(node => node.getBoundingClientRect().right > innerWidth + 1)
        .map(node => `${node.tagName}.${node.getAttribute("class")} ${Math.round(node.getBoundingClientRect().right)}`)"""
    )
    return "\n".join(elements[:10])


def assert_tab_reaches(page: Page, controls: set[str]) -> None:
    """The Tab key reaches each of these controls, and the focus is visible."""
    for control in controls:
        expect(page.locator(f"#{control}")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    reached: set[str] = set()
    for _ in range(MAX_TABS):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
        if controls <= reached:
            break
    assert reached & controls == controls
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
