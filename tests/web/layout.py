"""What moves while a page is drawn, and whether it can be moved sideways."""

from __future__ import annotations

from playwright.sync_api import Page

# The sum of the layout shifts that no input caused, as browsers report it to web authors.
_OBSERVE = """window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({ type: "layout-shift", buffered: true });"""
_TWO_FRAMES = (
    "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
)


def reload_observed(page: Page) -> None:
    """Loads the page again, and adds up its layout shifts from now on."""
    page.add_init_script(_OBSERVE)
    page.reload()


def layout_shift(page: Page) -> float:
    """The sum so far: 0 if nothing moved, 0.1 is what users notice."""
    page.evaluate(_TWO_FRAMES)
    shift: float = page.evaluate("window.shifted")
    return shift


def assert_no_sideways_scroll(page: Page) -> None:
    width, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= room
