"""The pages home, hardware, API and compare in a real browser: cards, filters, machines, links."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.thoroughness import wide
from tests.web.accessibility import assert_no_severe_fault, assert_tab_reaches
from tests.web.browser import FLAGS, FULL_BROWSERS, chromium_path, new_visit
from tests.web.conftest import MACHINE, MakeVisit, Site
from tests.web.serving import start_process

from edgekit.cli import main
from edgekit.index import checked_entries, read_index

VERDICTS = {"passed": "Fits", "warning": "Tight", "failed": "Does not fit", "refused": "Cannot run"}
VLLM_VERDICTS = VERDICTS | {"passed": "Starts", "failed": "Does not start"}
MACHINE_FLAGS = ("--device", "RTX 4090", "--ram", "64G", "--json")


def cards(page: Page) -> Locator:
    return page.get_by_role("list", name="Models").locator("> li")


def home(make_visit: MakeVisit, query: str = MACHINE) -> Page:
    """Opens the home page, and waits until every card has its verdict."""
    page = make_visit().open(f"/?{query}")
    wait_for_cards(page)
    return page


def wait_for_cards(page: Page) -> None:
    """Waits until every card has its verdict."""
    # Not with `expect`: each of its attempts blocks a page of this size for most of a second.
    models = page.locator("ul[aria-label=Models][aria-busy=false]")
    models.wait_for(state="attached")


def visible_ids(page: Page) -> list[str]:
    """The models of the visible cards, in order."""
    ids: list[str] = page.evaluate(
        "[...document.querySelectorAll('li[data-id]')].filter(card => card.checkVisibility()).map(card => card.dataset.id)"
    )
    return ids


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main([*words])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_home_has_a_card_with_a_verdict_for_each_of_the_most_used_models(
    make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    page = home(make_visit)
    checked = {entry.id for entry in checked_entries(read_index())}
    assert set(visible_ids(page)) == checked
    statuses: dict[str, str] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('li[data-id]')].map(card => [card.dataset.id, card.dataset.status]))"
    )
    assert set(statuses.values()) <= set(VERDICTS)
    assert {"passed", "failed"} <= set(statuses.values())
    for model in ("qwen3-8b", "deepseek-v3"):
        plan = run_command(capsys, "plan", model, "--no-drafter", *MACHINE_FLAGS)
        card = page.locator(f'li[data-id="{model}"]')
        assert statuses[model] == plan["status"]
        expect(card).to_contain_text(VERDICTS[plan["status"]])
        expect(card).to_contain_text(plan["variant"]["name"])
        expect(card).to_contain_text(f"{plan['context_tokens']:,}")
    expect(page.get_by_role("main").get_by_text(f"of {len(checked)} models fit")).to_be_visible()
    expect(cards(page).filter(has_text="<1 %").first).to_be_visible()  # as on the command line
    page.get_by_text("What the bars mean").click()
    expect(page.get_by_text("Usable limit")).to_be_visible()
    bar = page.get_by_role("img", name=re.compile(r"^RTX 4090: \d+\.\d of 22\.5 GiB usable"))
    expect(bar.first).to_be_visible()
    expect(bar.first.locator(".mark")).to_have_count(1)  # one mark, at the usable limit


def test_home_has_no_severe_accessibility_fault(make_visit: MakeVisit) -> None:
    page = home(make_visit, f"q=qwen3-coder&{MACHINE}")
    # axe-core would take seconds to walk through the hidden cards.
    page.locator("li[data-id][hidden]").evaluate_all(
        "cards => cards.forEach(card => card.remove())"
    )
    expect(cards(page).filter(visible=True).get_by_role("img").first).to_be_visible()
    assert_tab_reaches(page, {"open-ref", "filter-q", "filter-kind", "filter-sort", "filter-fits"})
    assert_no_severe_fault(page)


@wide
def test_full_browser_shows_cards_and_model_page(browser: Browser, site: Site) -> None:
    """Other tests use Chromium's headless shell where it is installed."""
    path = chromium_path(FULL_BROWSERS)
    full_browser = browser.browser_type.launch(executable_path=path, args=list(FLAGS))
    visit = new_visit(full_browser, site.origin)
    page = visit.open(f"/?q=qwen3-8b&{MACHINE}")
    wait_for_cards(page)
    card = page.locator('li[data-id="qwen3-8b"]')
    expect(card).to_have_attribute("data-status", "passed")
    card.get_by_role("link").click()
    expect(page.locator("html")).to_have_attribute("data-fit", "ready")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("Fits")
    assert visit.close() == []
    full_browser.close()


def test_filters_and_order_are_kept_in_the_url(make_visit: MakeVisit) -> None:
    page = home(make_visit)
    all_ids = visible_ids(page)
    page.get_by_label("Search", exact=True).fill("qwen3 coder")
    expect(page.get_by_role("main").get_by_text(re.compile(r"of \d+ match"))).to_be_visible()
    found = visible_ids(page)
    assert found
    assert all("qwen3" in model for model in found)
    assert len(found) < len(all_ids)
    assert query_of(page)["q"] == ["qwen3 coder"]
    page.get_by_label("Search", exact=True).fill("")
    page.get_by_label("Task").select_option("embedding")
    page.get_by_label("Sort by", exact=True).select_option("smallest")
    page.get_by_label("Fits only").check()
    expect(page.get_by_role("main").get_by_text(re.compile(r"of \d+ match"))).to_be_visible()
    embedders = visible_ids(page)
    assert query_of(page)["kind"] == ["embedding"]
    page.reload()
    wait_for_cards(page)
    expect(page.get_by_label("Task")).to_have_value("embedding")
    expect(page.get_by_label("Fits only")).to_be_checked()
    assert visible_ids(page) == embedders
    entries = {entry.id: entry for entry in read_index().entries}
    sizes = [entries[embedder].parameters or 0 for embedder in embedders]
    assert sizes == sorted(sizes)
    assert all(
        "embedding" in {kind.value for kind in entries[embedder].kinds} for embedder in embedders
    )
    page.get_by_label("Search", exact=True).fill("no such model")
    page.get_by_role("button", name="Show all models").click()
    expect(page.get_by_label("Search", exact=True)).to_have_value("")
    expect(page.get_by_label("Task")).to_have_value("")


def test_choosing_another_machine_changes_the_verdicts(make_visit: MakeVisit) -> None:
    page = home(make_visit)
    large = page.locator('li[data-id="deepseek-v3"]')
    expect(large).to_have_attribute("data-status", "failed")
    page.locator("summary", has_text="Machine").click()
    page.get_by_role("button", name="Remove RTX 4090").click()
    page.get_by_label("Add a device").fill("h200")
    page.get_by_role("button", name=re.compile("^Add H200")).first.click()
    page.get_by_label("How many").select_option("2")
    page.get_by_label("System RAM", exact=True).fill("2T")
    page.get_by_role("button", name="Check this machine", exact=True).click()
    page.wait_for_url(re.compile("device=2x"))
    fits = re.compile("passed|warning")
    expect(large).to_have_attribute("data-status", fits)
    assert query_of(page)["ram"] == ["2T"]


def test_links_from_cards_to_compare_and_to_the_model(make_visit: MakeVisit) -> None:
    page = home(make_visit, f"{MACHINE}&q=qwen3")
    for model in ("qwen3-8b", "qwen3-14b"):
        page.locator(f'li[data-id="{model}"]').get_by_role("checkbox").check()
    page.get_by_role("link", name="Compare 2 models").click()
    expect(page.get_by_role("heading", level=1, name="Compare")).to_be_visible()
    assert query_of(page)["ref"] == ["catalog:qwen3-8b", "catalog:qwen3-14b"]
    assert query_of(page)["engine"] == ["llama.cpp,llama.cpp"]
    expect(page.get_by_role("region", name="qwen3-14b")).to_contain_text("Fits")
    page.go_back()
    wait_for_cards(page)
    last = page.locator(f'li[data-id="{visible_ids(page)[-1]}"]')
    last.scroll_into_view_if_needed()
    top = top_of(last)
    name, status = last.get_attribute("data-id"), last.get_attribute("data-status")
    tokens = last.locator("dd").nth(1).inner_text()
    last.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(str(name))
    expect(page.get_by_role("region", name="Answer")).to_contain_text(VERDICTS[str(status)])
    expect(page.get_by_role("region", name="Answer")).to_contain_text(f"{tokens} tokens")
    assert query_of(page)["device"] == ["RTX 4090"]
    assert query_of(page)["context"] == [tokens.replace(",", "")]
    assert page.evaluate("scrollY") == 0
    page.go_back()
    wait_for_cards(page)
    page.wait_for_function("scrollY > 0")
    assert top_of(last) == pytest.approx(top, abs=3)  # the scroll position is restored


def top_of(card: Locator) -> float:
    top: float = card.evaluate("node => node.getBoundingClientRect().top")
    return top


def test_unchecked_models_are_not_counted_as_failed(
    make_visit: MakeVisit, browser: Browser
) -> None:
    page = make_visit(expected_faults=(r"status of 400",)).open("/?device=nonsense&fits=1")
    count = len(checked_entries(read_index()))
    expect(
        page.get_by_role("main").get_by_text(f"{count} models, not checked", exact=True)
    ).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="unknown device 'nonsense'")).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text(f"known to fit: {count} could not be checked")
    with start_process("--offline") as server:
        visit = new_visit(browser, server.address)
        page = visit.open("/?ram=8G")
        page.locator("li[data-status=passed], li[data-status=warning]").first.wait_for()
        server.process.kill()
        summary = page.get_by_role("main").get_by_text(
            re.compile("checked models fit; .* not checked")
        )
        expect(summary).to_be_visible()
        fit, checked, unchecked = map(int, re.findall(r"\d+", summary.inner_text()))
        assert 0 < fit <= checked == count - unchecked
        expect(page.get_by_role("alert").filter(has_text="server")).to_be_visible()
        visit.close()


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
