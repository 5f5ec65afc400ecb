"""Every page for people who do not see colours, use no mouse, or hold a phone."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # has no types
from playwright.sync_api import Page, expect
from tests.web.browser import PHONE
from tests.web.conftest import DENSE, MACHINE, Visitor

FILE = ".".join((*DENSE, "gguf"))
SEVERE = ("serious", "critical")
# A page, and what is there once it is complete.
PAGES = {
    f"/?q=qwen3-coder&{MACHINE}": "li[data-status=passed] [role=img], li[data-status=warning] [role=img]",
    "/model": "main h2",
    f"/model?ref={FILE}&{MACHINE}&context=8192": "html[data-fit=ready] [aria-label^='Cache types'] button",
    f"/model?ref=broken.gguf&{MACHINE}": "main [role=alert]",
    f"/compare?ref=qwen3-8b&ref=qwen3-32b&ref=missing.gguf&{MACHINE}": "main section:nth-of-type(2) [role=img]",
    f"/hardware?{MACHINE}": "main h2",
    "/api/docs": "main h2",
}


def severe_faults(page: Page) -> list[str]:
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{fault['id']} ({fault['impact']}): {node['target']} {node['failureSummary']}"
        for fault in found
        if fault["impact"] in SEVERE
        for node in fault["nodes"][:3]
    ]


@pytest.mark.parametrize("path", PAGES)
def test_no_serious_fault(path: str, visitor: Visitor) -> None:
    """By axe-core, light on a wide screen and dark on a phone; and nothing is wider than a phone."""
    page = visitor().open(path)
    expect(page.locator(PAGES[path]).first).to_be_attached()
    faults = severe_faults(page)
    width, height = PHONE
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark")
    faults += [f"on a phone, dark: {fault}" for fault in severe_faults(page)]
    assert not faults, "\n".join(faults)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), widest(page)


def widest(page: Page) -> str:
    found: list[str] = page.evaluate(
        """[...document.querySelectorAll("main *, header *")].filter(one => one.getBoundingClientRect().right > innerWidth + 1)
        .map(one => `${one.tagName}.${one.getAttribute("class")} ${Math.round(one.getBoundingClientRect().right)}`)"""
    )
    return "\n".join(found[:10])


def reached(page: Page, wanted: set[str], steps: int = 120) -> set[str]:
    """Which of the controls the Tab key comes to."""
    found: set[str] = set()
    for _ in range(steps):
        page.keyboard.press("Tab")
        found.add(
            page.evaluate(
                "(one => one.id || one.getAttribute('aria-label') || one.textContent.trim())(document.activeElement)"
            )
        )
        if wanted <= found:
            break
    return found & wanted


WANTED = {
    f"/?{MACHINE}": {"open-ref", "filter-q", "filter-kind", "filter-sort", "filter-fits"},
    f"/model?ref={FILE}&{MACHINE}": {"ref", "set-engine", "context-slider", "context", "set-type_k", "set-n_gpu_layers"},
    f"/compare?ref=qwen3-8b&ref=qwen3-14b&{MACHINE}": {"compare-context", "compare-model-0", "compare-engine-1"},
}  # fmt: skip


@pytest.mark.parametrize("path", WANTED)
def test_the_tab_key_comes_to_every_control(path: str, visitor: Visitor) -> None:
    page = visitor().open(path)
    for name in WANTED[path]:
        expect(page.locator(f"#{name}")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    assert reached(page, WANTED[path]) == WANTED[path]
    ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert ring != "none"


def test_touch_targets_on_a_phone(visitor: Visitor) -> None:
    """Buttons and fields are at least 40 px high."""
    page = visitor(size=PHONE).open(f"/compare?ref=qwen3-8b&ref=qwen3-14b&{MACHINE}")
    expect(page.get_by_role("button", name="Copy command").first).to_be_visible()
    small: list[str] = page.evaluate(
        """[...document.querySelectorAll("button, select, input:not([type=checkbox], [type=range])")]
        .filter(one => one.checkVisibility() && one.getBoundingClientRect().height < 40).map(one => one.outerHTML.slice(0, 100))"""
    )
    assert not small
