"""Every page but home (test_pages.py) for people who do not see colours, use no mouse, or hold a phone."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from tests.thoroughness import LONG
from tests.web.accessibility import assert_no_serious_fault, assert_tab_reaches
from tests.web.browser import PHONE
from tests.web.conftest import DENSE, MACHINE, Visitor

FILE = ".".join((*DENSE, "gguf"))
# A page, and what is there once it is complete.
FULLEST = {
    f"/model?ref={FILE}&{MACHINE}&context=8192": "html[data-fit=ready] [aria-label^='KV cache types'] button",
    f"/compare?ref=qwen3-8b&ref=qwen3-32b&ref=missing.gguf&{MACHINE}": "main section:nth-of-type(2) [role=img]",
}
PAGES = FULLEST | {
    "/model": "main h2",
    f"/model?ref=broken.gguf&{MACHINE}": "main [role=alert]",
    f"/hardware?{MACHINE}": "main h2",
    "/api/docs": "main h2",
}


@pytest.mark.parametrize("path", PAGES if LONG else FULLEST)
def test_no_serious_fault(path: str, visitor: Visitor) -> None:
    page = visitor().open(path)
    expect(page.locator(PAGES[path]).first).to_be_attached()
    assert_no_serious_fault(page)


WANTED = {
    f"/model?ref={FILE}&{MACHINE}": {"ref", "set-engine", "context-slider", "context", "set-type_k", "set-n_gpu_layers"},
    f"/compare?ref=qwen3-8b&ref=qwen3-14b&{MACHINE}": {"compare-context", "compare-model-0", "compare-engine-1"},
}  # fmt: skip


@pytest.mark.parametrize("path", WANTED)
def test_the_tab_key_comes_to_every_control(path: str, visitor: Visitor) -> None:
    assert_tab_reaches(visitor().open(path), WANTED[path])


def test_touch_targets_on_a_phone(visitor: Visitor) -> None:
    """Buttons and fields are at least 40 px high."""
    page = visitor(size=PHONE).open(f"/compare?ref=qwen3-8b&ref=qwen3-14b&{MACHINE}")
    expect(page.get_by_role("button", name="Copy command").first).to_be_visible()
    small: list[str] = page.evaluate(
        """[...document.querySelectorAll("button, select, input:not([type=checkbox], [type=range])")]
        .filter(one => one.checkVisibility() && one.getBoundingClientRect().height < 40).map(one => one.outerHTML.slice(0, 100))"""
    )
    assert not small
