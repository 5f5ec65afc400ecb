"""Accessibility of every page except home, which test_home_page.py checks."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from tests.thoroughness import LONG
from tests.web.accessibility import assert_no_severe_fault, assert_tab_reaches
from tests.web.browser import PHONE
from tests.web.conftest import DENSE, MACHINE, MakeVisit

FILE = ".".join((*DENSE, "gguf"))
# Address of a page -> an element that exists once the page is complete.
MAIN_PAGES = {
    f"/model?ref={FILE}&{MACHINE}&context=8192": "html[data-fit=ready] [role=radiogroup]",
}
PAGES = MAIN_PAGES | {
    "/model": "main h2",
    f"/model?ref=broken.gguf&{MACHINE}": "main [role=alert]",
    "/api/docs": "main h2",
}


@pytest.mark.parametrize("path", PAGES if LONG else MAIN_PAGES)
def test_page_has_no_severe_accessibility_fault(path: str, make_visit: MakeVisit) -> None:
    page = make_visit().open(path)
    expect(page.locator(PAGES[path]).first).to_be_attached()
    assert_no_severe_fault(page)


CONTROLS = {
    f"/model?ref={FILE}&{MACHINE}&batch=1024": {"set-quant", "set-engine", "context-slider", "context", "set-cache", "set-n_gpu_layers"},
    f"/compare?ref=qwen3-8b&ref=qwen3-14b&{MACHINE}": {"compare-context"},
}  # fmt: skip


@pytest.mark.parametrize("path", CONTROLS)
def test_tab_key_reaches_every_control(path: str, make_visit: MakeVisit) -> None:
    assert_tab_reaches(make_visit().open(path), CONTROLS[path])


def test_touch_targets_on_a_phone_are_at_least_40_px_high(make_visit: MakeVisit) -> None:
    page = make_visit(size=PHONE).open(f"/compare?ref=qwen3-8b&ref=qwen3-14b&{MACHINE}")
    expect(page.get_by_role("button", name="Copy the command of Qwen3 14B")).to_be_visible()
    small: list[str] = page.evaluate(
        """[...document.querySelectorAll("button, select, input:not([type=checkbox], [type=range])")]
        .filter(node => node.checkVisibility() && node.getBoundingClientRect().height < 40).map(node => node.outerHTML.slice(0, 100))"""
    )
    assert not small


def test_theme_follows_the_system_until_one_is_chosen(make_visit: MakeVisit) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light_page = make_visit().open("/hardware")
    dark_page = make_visit(dark=True).open("/hardware")
    light = light_page.evaluate(background)
    assert dark_page.evaluate(background) != light
    button = dark_page.get_by_role("button", name=re.compile("^Theme"))
    button.click()
    expect(button).to_have_accessible_name("Theme: light")
    assert dark_page.evaluate(background) == light
    dark_page.reload()
    assert dark_page.evaluate(background) == light
