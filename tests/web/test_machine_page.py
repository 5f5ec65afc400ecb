"""The machine page and the API's page in a real browser."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Locator, Page, expect
from tests.web.accessibility import assert_no_severe_fault
from tests.web.browser import PHONE
from tests.web.conftest import MACHINE, MakeVisit, Site
from tests.web.layout import assert_no_sideways_scroll, layout_shift, reload_observed
from tests.web.model_pages import choose_machine, hold, wait_for_request
from tests.web.serving import ask

FIELDS = {"device": "RTX 4090", "ram": "64G"}
USABLE_BYTES = 25216155648 - (1 << 30)  # of an RTX 4090: 1 GiB is reserved
CALLS = ("hardware", "devices", "catalog", "inspect", "estimate", "check", "plan", "recommend")


def upgrades_of(site: Site, **fields: str) -> dict[str, Any]:
    answer: dict[str, Any] = ask(site.origin, f"/api/v1/upgrades?{urlencode(fields)}").json()
    return answer


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def line(page: Page) -> Locator:
    return page.locator(".machine-line")


def steps(page: Page) -> Locator:
    return page.get_by_role("radiogroup", name=re.compile("^Models that run")).get_by_role("radio")


def panel(page: Page) -> Locator:
    return page.get_by_role("region", name="What would a bigger card give me?")


def test_machine_in_one_line_and_what_engines_may_use(make_visit: MakeVisit) -> None:
    page = make_visit().open(f"/hardware?{MACHINE}")
    expect(line(page)).to_have_text("What if: RTX 4090 · 24 GB · 64 GB RAM")
    parts = page.get_by_role("region", name="Checked machine: RTX 4090 + 64 GiB RAM")
    expect(parts).to_contain_text("24 GB")
    expect(parts).to_contain_text("1,008 GB/s")
    usable = f"{USABLE_BYTES / (1 << 30):.1f} of 23.5 GiB usable"
    expect(parts).to_contain_text(usable)
    engines = page.get_by_role("region", name="What each engine may use")
    expect(engines).to_contain_text(usable)
    expect(engines).to_contain_text("MLX needs a Mac")
    expect(engines).not_to_contain_text("--device")
    expect(page.get_by_role("region", name="Engines on this computer")).to_have_count(
        0
    )  # it is another one


def test_this_computer_shows_its_processor_and_programs(make_visit: MakeVisit, site: Site) -> None:
    told = ask(site.origin, "/api/v1/hardware").json()
    page = make_visit().open("/hardware")
    expect(line(page)).to_have_text(f"This computer: {told['machine']['label']}")
    expect(page.get_by_role("region", name="This machine")).to_contain_text("core")
    programs = page.get_by_role("region", name="Engines on this computer")
    if told["programs"]:
        expect(programs.get_by_role("listitem")).to_have_count(len(told["programs"]))
    else:
        expect(programs).to_contain_text("pip install")
    expect(page.get_by_role("button", name="Back to this computer")).to_be_disabled()


def test_every_change_of_the_builder_is_the_machine_at_once(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 400",)).open(f"/hardware?{MACHINE}")
    builder = page.get_by_role("form", name="What if?")
    expect(builder.get_by_role("button", name="RTX 4090", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    builder.get_by_role("button", name="RTX 3060", exact=True).click()
    expect(line(page)).to_have_text("What if: RTX 3060 · 12 GB · 64 GB RAM")
    assert query_of(page)["device"] == ["RTX 3060"]
    builder.get_by_label("How many RTX 3060").select_option("2")
    expect(line(page)).to_contain_text("2x RTX 3060")
    builder.get_by_label("System RAM", exact=True).select_option("128 GB")
    builder.get_by_label("RAM type").select_option("DDR5-6000")
    expect(line(page)).to_contain_text("128 GB RAM")
    page.wait_for_url(re.compile("DDR5-6000"))
    assert query_of(page)["ram"] == ["128G DDR5-6000"]
    expect(page.get_by_role("region", name=re.compile("^Checked machine"))).to_contain_text(
        "96 GB/s"
    )
    builder.get_by_role("button", name="M4 Max 64GB").click()  # a whole machine: its RAM is its own
    expect(line(page)).to_contain_text("64 GB unified memory")
    expect(builder.get_by_label("System RAM", exact=True)).to_be_disabled()
    assert "ram" not in query_of(page)
    builder.get_by_label("Add a device").fill("rtx 5090")
    builder.get_by_role("button", name=re.compile("^Add RTX 5090,")).click()
    expect(line(page)).to_contain_text("RTX 5090")  # it takes the place of the machine
    expect(builder.get_by_label("System RAM", exact=True)).to_be_enabled()
    builder.get_by_text("A card that is not listed, processor").click()
    builder.get_by_role("button", name="No GPU").click()
    builder.get_by_label("Or VRAM per GPU").fill("much")
    builder.get_by_label("Or VRAM per GPU").press("Tab")
    expect(builder.get_by_role("alert")).to_contain_text("much")
    builder.get_by_role("button", name="Back to this computer").click()
    expect(line(page)).to_contain_text("This computer")
    assert not query_of(page)


def height_of(step: Locator) -> float:
    """The height of its bar: what runs already, and what it adds."""
    height: float = step.evaluate(
        "node => [...node.querySelectorAll('.upgrade-kept, .upgrade-more')].reduce((sum, bar) => sum + bar.height.baseVal.value, 0)"
    )
    return height


def test_picture_of_upgrades_equals_the_answer(make_visit: MakeVisit, site: Site) -> None:
    answer = upgrades_of(site, **FIELDS)
    now = next(step for step in answer["steps"] if step["is_now"])
    page = make_visit().open(f"/hardware?{MACHINE}")
    expect(steps(page)).to_have_count(len(answer["steps"]))
    heights = []
    for node, step in zip(steps(page).all(), answer["steps"], strict=True):
        expect(node).to_have_accessible_name(
            re.compile(f"^{step['label']}: {step['count']} of {answer['models']} models")
        )
        heights.append(height_of(node))
    tallest = max(step["count"] for step in answer["steps"])
    expected = [step["count"] / tallest for step in answer["steps"]]
    assert [height / max(heights) for height in heights] == pytest.approx(expected, abs=0.01)
    expect(panel(page).locator(".upgrade-step.now")).to_have_accessible_name(
        re.compile(f"^{now['label']}: .*your size")
    )
    expect(panel(page)).to_contain_text("you are here")
    panel(page).get_by_text("Show as a table").click()
    for row, step in zip(panel(page).locator("tbody tr").all(), answer["steps"], strict=True):
        expect(row).to_contain_text(step["label"])
        expect(row.get_by_role("cell").nth(0)).to_have_text(str(step["count"]))
        expect(row.get_by_role("cell").nth(1)).to_have_text(str(step["count"] - now["count"]))


def test_arrow_keys_choose_a_size_and_its_models_are_links(
    make_visit: MakeVisit, site: Site
) -> None:
    answer = upgrades_of(site, **FIELDS)
    sizes = [step["label"] for step in answer["steps"]]
    at = sizes.index("48 GB")
    step = answer["steps"][at]
    page = make_visit().open(f"/hardware?{MACHINE}")
    chosen = panel(page).get_by_role("radio", checked=True)
    expect(chosen).to_have_count(1)
    chosen.focus()
    page.keyboard.press("Home")
    expect(steps(page).first).to_be_focused()
    for _ in range(at):
        page.keyboard.press("ArrowRight")
    expect(steps(page).nth(at)).to_be_focused()
    expect(steps(page).nth(at)).to_have_attribute("aria-checked", "true")
    expect(panel(page).get_by_role("heading", name="New with 48 GB")).to_be_visible()
    links = panel(page).get_by_role("list").get_by_role("link")
    expect(links).to_have_text([model["title"] for model in step["gained"]])
    target = parse_qs(urlsplit(str(links.first.get_attribute("href"))).query)
    assert target == {
        "ref": [step["gained"][0]["id"]],
        "device": [step["devices"][0]],
        "ram": ["64G"],
    }
    steps(page).first.click()
    expect(steps(page).first).to_have_attribute("aria-checked", "true")
    panel(page).get_by_role("button", name=f"Try {answer['steps'][0]['devices'][0]}").click()
    expect(line(page)).to_contain_text(answer["steps"][0]["devices"][0])
    panel(page).get_by_label("Models for").select_option("code")
    code = upgrades_of(site, device=answer["steps"][0]["devices"][0], ram="64G", task="code")
    expect(steps(page).last).to_have_accessible_name(
        re.compile(f"{code['steps'][-1]['count']} of {code['models']} models")
    )


def test_late_error_of_another_machine_is_not_shown(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 503",)).open("/hardware")
    expect(page.get_by_role("region", name="This machine")).to_be_visible()
    requests = hold(page, "hardware?device=H100*")
    choose_machine(page, device=["H100"])
    wait_for_request(page, requests)
    choose_machine(page, device=["RTX 4090"], ram="64G")
    expect(line(page)).to_contain_text("RTX 4090")
    for route in requests:
        with suppress(PlaywrightError):  # the page has cancelled it
            route.fulfill(status=503, json={"error": {"type": "E", "message": "of another"}})
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    expect(line(page)).to_contain_text("RTX 4090")
    expect(page.get_by_role("main")).not_to_contain_text("of another")
    page.unroute("**/api/v1/hardware?device=H100*")
    busy = {"error": {"type": "E", "message": "too busy"}}
    page.route("**/api/v1/hardware*", lambda route: route.fulfill(status=503, json=busy), times=1)
    choose_machine(page, device=["H100"])
    expect(page.get_by_role("alert")).to_contain_text("too busy")
    page.get_by_role("button", name="Try again").press("Enter")
    expect(page.get_by_role("region", name="Checked machine: H100")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_known_devices_are_folded_and_can_be_used(make_visit: MakeVisit) -> None:
    page = make_visit().open(f"/hardware?{MACHINE}")
    expect(page.get_by_label("Find a device")).to_be_hidden()
    page.get_by_role("heading", name="All known devices").click()
    page.get_by_label("Find a device").fill("h100 nvl")
    page.get_by_role("button", name="Use H100 NVL").click()
    expect(line(page)).to_contain_text("H100 NVL")
    expect(page.get_by_role("heading", level=1)).to_be_focused()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_severe_accessibility_fault(make_visit: MakeVisit, theme: str) -> None:
    page = make_visit(dark=theme == "dark").open(f"/hardware?{MACHINE}")
    expect(steps(page).first).to_be_visible()
    expect(line(page)).to_contain_text("RTX 4090")
    assert_no_severe_fault(page)


@pytest.mark.parametrize("size", [(1440, 900), (1024, 768), PHONE], ids=["wide", "middle", "phone"])
def test_nothing_moves_when_answers_come(make_visit: MakeVisit, size: tuple[int, int]) -> None:
    page = make_visit(size=size).open(f"/hardware?{MACHINE}")
    reload_observed(page)
    expect(steps(page).first).to_be_visible()
    expect(page.get_by_role("region", name="What each engine may use")).to_be_visible()
    assert layout_shift(page) < 0.02
    assert_no_sideways_scroll(page)


def test_api_page_lists_the_calls(make_visit: MakeVisit) -> None:
    page = make_visit().open("/api/docs")
    for call in CALLS:
        expect(page.get_by_role("main")).to_contain_text(f"/api/v1/{call}")
