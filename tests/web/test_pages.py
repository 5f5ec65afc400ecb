"""Home, hardware, API and compare in a real browser: every card, filters, the address, another machine."""

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

from edgekit.catalog import read_catalog
from edgekit.cli import main
from edgekit.units import format_bytes

WORDS = {"passed": "Fits", "warning": "Tight", "failed": "Does not fit", "refused": "Cannot run"}
VLLM_WORDS = WORDS | {"passed": "Starts", "failed": "Does not start"}
ON_A_4090 = ("--device", "RTX 4090", "--ram", "64G", "--json")


def cards(page: Page) -> Locator:
    return page.get_by_role("list", name="Models").locator("> li")


def home(make_visit: MakeVisit, query: str = MACHINE) -> Page:
    """The home page, once every card has its verdict."""
    page = make_visit().open(f"/?{query}")
    judged(page)
    return page


def judged(page: Page) -> None:
    # A look of `expect` that finds it busy holds so large a page up for most of a second.
    models = page.locator("ul[aria-label=Models][aria-busy=false]")
    models.wait_for(state="attached")


def shown(page: Page) -> list[str]:
    """The ids of the cards that can be seen, in their order."""
    result: list[str] = page.evaluate(
        "[...document.querySelectorAll('li[data-id]')].filter(one => one.checkVisibility()).map(one => one.dataset.id)"
    )
    return result


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main([*words])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_every_model_has_a_card_with_a_verdict(
    make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    page = home(make_visit)
    known = {entry.id for entry in read_catalog().entries}
    assert set(shown(page)) == known
    statuses: dict[str, str] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('li[data-id]')].map(one => [one.dataset.id, one.dataset.status]))"
    )
    assert set(statuses.values()) <= set(WORDS)
    assert {"passed", "failed"} <= set(statuses.values())
    for model in ("qwen3-8b", "deepseek-v3"):
        plan = told(capsys, "plan", model, "--no-drafter", *ON_A_4090)
        card = page.locator(f'li[data-id="{model}"]')
        assert statuses[model] == plan["status"]
        expect(card).to_contain_text(WORDS[plan["status"]])
        expect(card).to_contain_text(plan["variant"]["name"])
        expect(card).to_contain_text(f"{plan['context_tokens']:,}")
    expect(page.get_by_role("main").get_by_text(f"of {len(known)} models fit")).to_be_visible()
    expect(cards(page).filter(has_text="<1 %").first).to_be_visible()  # as the command line says it
    page.get_by_text("What the bars mean").click()
    expect(page.get_by_text("Usable limit")).to_be_visible()
    bar = page.get_by_role("img", name=re.compile(r"^RTX 4090: \d+\.\d of 22\.5 GiB usable"))
    expect(bar.first).to_be_visible()
    expect(bar.first.locator(".mark")).to_have_count(1)  # at what is usable, not at a share of it


def test_home_is_for_everyone(make_visit: MakeVisit) -> None:
    page = home(make_visit, f"q=qwen3-coder&{MACHINE}")
    # Nobody comes to what is hidden, but who looks for faults walks through it for seconds.
    page.locator("li[data-id][hidden]").evaluate_all("all => all.forEach(one => one.remove())")
    expect(cards(page).filter(visible=True).get_by_role("img").first).to_be_visible()
    assert_tab_reaches(page, {"open-ref", "filter-q", "filter-kind", "filter-sort", "filter-fits"})
    assert_no_severe_fault(page)


@wide
def test_the_whole_browser_shows_the_same(browser: Browser, site: Site) -> None:
    """What people have on their desks, with all that surrounds a window."""
    path = chromium_path(FULL_BROWSERS)
    whole = browser.browser_type.launch(executable_path=path, args=list(FLAGS))
    visit = new_visit(whole, site.origin)
    page = visit.open(f"/?q=qwen3-8b&{MACHINE}")
    judged(page)
    card = page.locator('li[data-id="qwen3-8b"]')
    expect(card).to_have_attribute("data-status", "passed")
    card.get_by_role("link").click()
    expect(page.locator("html")).to_have_attribute("data-fit", "ready")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("Fits")
    assert visit.close() == []
    whole.close()


def test_filters_and_order_stand_in_the_address(make_visit: MakeVisit) -> None:
    page = home(make_visit)
    everything = shown(page)
    page.get_by_label("Search").fill("qwen3 coder")
    expect(page.get_by_role("main").get_by_text(re.compile(r"of \d+ match"))).to_be_visible()
    result = shown(page)
    assert result
    assert all("qwen3" in item for item in result)
    assert len(result) < len(everything)
    assert query_of(page)["q"] == ["qwen3 coder"]
    page.get_by_label("Search").fill("")
    page.get_by_label("Task").select_option("embedding")
    page.get_by_label("Sort by", exact=True).select_option("smallest")
    page.get_by_label("Fits only").check()
    expect(page.get_by_role("main").get_by_text(re.compile(r"of \d+ match"))).to_be_visible()
    embedders = shown(page)
    assert query_of(page)["kind"] == ["embedding"]
    page.reload()
    judged(page)
    expect(page.get_by_label("Task")).to_have_value("embedding")
    expect(page.get_by_label("Fits only")).to_be_checked()
    assert shown(page) == embedders
    entries = {entry.id: entry for entry in read_catalog().entries}
    sizes = [entries[embedder].parameters or 0 for embedder in embedders]
    assert sizes == sorted(sizes)
    assert all(
        "embedding" in {kind.value for kind in entries[embedder].kinds} for embedder in embedders
    )
    page.get_by_label("Search").fill("no such model")
    page.get_by_role("button", name="Show all models").click()
    expect(page.get_by_label("Search")).to_have_value("")
    expect(page.get_by_label("Task")).to_have_value("")


def test_another_machine_gives_other_verdicts(make_visit: MakeVisit) -> None:
    page = home(make_visit)
    large = page.locator('li[data-id="mimo-v2-flash"]')  # the first to be judged on the other one
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


def test_a_machine_that_means_nothing_is_told(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 400",)).open("/hardware")
    page.locator("summary", has_text="Machine").click()
    page.get_by_label("System RAM", exact=True).fill("much")
    page.get_by_role("button", name="Check this machine", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="much")).to_be_visible()


def test_from_cards_to_compare_and_to_the_model(make_visit: MakeVisit) -> None:
    page = home(make_visit, f"{MACHINE}&q=qwen3")
    for model in ("qwen3-8b", "qwen3-14b"):
        page.locator(f'li[data-id="{model}"]').get_by_role("checkbox").check()
    page.get_by_role("link", name="Compare 2 models").click()
    expect(page.get_by_role("heading", level=1, name="Compare")).to_be_visible()
    assert query_of(page)["ref"] == ["catalog:qwen3-8b", "catalog:qwen3-14b"]
    assert query_of(page)["engine"] == ["llama.cpp,llama.cpp"]
    expect(page.get_by_role("region", name="qwen3-14b")).to_contain_text("Fits")
    page.go_back()
    judged(page)
    last = page.locator(f'li[data-id="{shown(page)[-1]}"]')
    last.scroll_into_view_if_needed()
    top = top_of(last)
    name, status = last.get_attribute("data-id"), last.get_attribute("data-status")
    tokens = last.locator("dd").nth(1).inner_text()
    last.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(str(name))
    expect(page.get_by_role("region", name="Answer")).to_contain_text(WORDS[str(status)])
    expect(page.get_by_role("region", name="Answer")).to_contain_text(f"{tokens} tokens")
    assert query_of(page)["device"] == ["RTX 4090"]
    assert query_of(page)["context"] == [tokens.replace(",", "")]
    assert page.evaluate("scrollY") == 0
    page.go_back()
    judged(page)
    page.wait_for_function("scrollY > 0")
    assert top_of(last) == pytest.approx(top, abs=3)  # where it was left


def top_of(card: Locator) -> float:
    result: float = card.evaluate("one => one.getBoundingClientRect().top")
    return result


def test_a_machine_is_read_from_the_address_and_from_the_box(make_visit: MakeVisit) -> None:
    page = make_visit().open(
        "/hardware?device=RTX+3090&device=2xRTX+3090&device=12x+RTX+4060&ram=64G"
    )
    machine = page.locator("summary", has_text="Machine")
    machine.click()
    expect(page.get_by_label("How many RTX 3090")).to_have_value("3")
    expect(page.get_by_label("How many RTX 4060")).to_have_value("12")
    page.get_by_role("button", name="Remove RTX 4060").click()
    box = page.get_by_label("Add a device")
    expect(box).to_be_focused()
    box.fill("2x rtx 4090")
    expect(page.get_by_role("button", name=re.compile("^Add RTX 4090,"))).to_be_visible()
    page.get_by_role("button", name="Check this machine", exact=True).click()
    page.wait_for_url(re.compile("device=3x"))
    assert query_of(page)["device"] == ["3x RTX 3090", "2x RTX 4090"]
    machine.click()
    box.fill("RTX 30")
    page.get_by_role("button", name="Check this machine", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="Pick one from the list")).to_be_visible()
    expect(box).to_be_focused()
    assert query_of(page)["device"] == ["3x RTX 3090", "2x RTX 4090"]
    box.fill("2x 5090")
    page.get_by_role("button", name=re.compile("^Add RTX 5090,")).click()
    expect(page.get_by_label("How many RTX 5090")).to_have_value("2")
    expect(box).to_have_value("")


def test_what_was_not_judged_is_not_counted_as_if_it_did_not_fit(
    make_visit: MakeVisit, browser: Browser
) -> None:
    page = make_visit(expected_faults=(r"status of 400",)).open("/?device=nonsense&fits=1")
    count = len(read_catalog().entries)
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
        told = page.get_by_role("main").get_by_text(
            re.compile("checked models fit; .* not checked")
        )
        expect(told).to_be_visible()
        fit, of, left = map(int, re.findall(r"\d+", told.inner_text()))
        assert 0 < fit <= of == count - left
        expect(page.get_by_role("alert").filter(has_text="server")).to_be_visible()
        visit.close()


def cell(column: Locator, label: str) -> Locator:
    """What a column says under a label."""
    return (
        column.locator("dl > div")
        .filter(has=column.page.get_by_text(label, exact=True))
        .locator("dd")
    )


def test_engines_side_by_side(make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]) -> None:
    page = make_visit().open(
        "/compare?ref=qwen3-8b&ref=qwen3-8b&ref=qwen3-8b&engine=llama.cpp,vllm,mlx&context=8192"
        "&device=H100+PCIe&ram=64G"
    )
    columns = page.get_by_role("main").locator("section")
    expect(columns).to_have_count(3)
    for at, engine in enumerate(("llama.cpp", "vllm")):
        words = ("--engine", engine, "-c", "8192", "--device", "H100 PCIe", "--ram", "64G")
        check = told(capsys, "check", "qwen3-8b", *words, "--json")
        bill, column = check["estimate"], columns.nth(at)
        words_of = VLLM_WORDS if engine == "vllm" else WORDS
        expect(cell(column, "Verdict")).to_contain_text(words_of[check["status"]])
        expect(cell(column, "Weights")).to_contain_text(format_bytes(bill["model_bytes"]))
        expect(cell(column, "KV cache")).to_contain_text(format_bytes(bill["kv_bytes"]))
        expect(cell(column, "Total memory")).to_contain_text(format_bytes(bill["total_bytes"]))
        expect(cell(column, "Max context")).to_contain_text(f"{check['max_context']:,}")
        expect(cell(column, "Command").locator("code")).to_have_text(check["command"])
        expect(column.get_by_role("img").first).to_be_visible()
    refused = cell(columns.nth(2), "Verdict")
    expect(refused).to_contain_text("Cannot run")
    expect(refused).to_contain_text("Apple silicon")
    expect(cell(columns.nth(0), "Weights")).to_contain_text("lowest")
    expect(cell(columns.nth(1), "Weights")).not_to_contain_text("lowest")


def test_bars_of_all_columns_have_one_scale(make_visit: MakeVisit) -> None:
    """A GPU of 24 GB is as wide in every column, whatever lies in it."""
    page = make_visit().open(f"/compare?ref=qwen3-8b&ref=qwen3-14b&context=4096&{MACHINE}")
    tracks = page.get_by_role("img", name=re.compile("^RTX 4090"))
    expect(tracks).to_have_count(2)
    expect(page.get_by_role("img", name=re.compile("^RAM"))).to_have_count(2)
    cards, hosts = (
        page.locator(f"[role=img][aria-label^='{name}'] .room").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect().width)"
        )
        for name in ("RTX 4090", "RAM")
    )
    assert cards[0] == pytest.approx(cards[1], abs=1)
    assert cards[0] == pytest.approx(hosts[0] * 25216155648 / (64 << 30), rel=0.02)


def test_one_column_fails_alone_and_is_mended(make_visit: MakeVisit, site: Site) -> None:
    page = make_visit().open(f"/compare?ref=qwen3-8b&ref=acme/no-such-model&context=2048&{MACHINE}")
    columns = page.get_by_role("main").locator("section")
    expect(columns.nth(1).get_by_role("alert")).to_contain_text("acme/no-such-model")
    expect(cell(columns.nth(0), "Verdict")).to_contain_text("Fits")
    columns.nth(1).get_by_label("Model", exact=True).fill("acme/tiny-GGUF:Q8_0")
    columns.nth(1).get_by_label("Model", exact=True).press("Enter")
    expect(cell(columns.nth(1), "Verdict")).to_contain_text("Fits")
    expect(columns.nth(1).get_by_role("alert")).to_have_count(0)
    assert query_of(page)["ref"] == ["qwen3-8b", "acme/tiny-GGUF:Q8_0"]
    page.get_by_role("button", name="Add a column").click()
    expect(columns).to_have_count(3)
    columns.nth(2).get_by_label("Model", exact=True).fill("gemma-3-4b")
    columns.nth(2).get_by_label("Engine").select_option("llama.cpp")
    expect(cell(columns.nth(2), "Verdict")).to_contain_text("Fits")
    page.get_by_label("Context (tokens)").fill("4096")
    page.get_by_label("Context (tokens)").press("Enter")
    page.wait_for_url(re.compile("context=4096"))
    expect(cell(columns.nth(2), "Command")).to_contain_text("-c 4096")
    page.get_by_role("button", name="Copy link").click()
    link: str = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    page.get_by_role("button", name="Remove model 1").click()
    expect(columns).to_have_count(2)
    expect(columns.nth(0).get_by_label("Model", exact=True)).to_have_value("acme/tiny-GGUF:Q8_0")


def test_hardware_says_what_is_usable(make_visit: MakeVisit) -> None:
    page = make_visit().open(f"/hardware?{MACHINE}")
    expect(page.get_by_role("main")).to_contain_text("RTX 4090")
    usable = 24142413824 / (1 << 30)  # 1 GiB is reserved
    expect(page.get_by_role("main")).to_contain_text(f"{usable:.1f} of 23.5 GiB usable")


def test_the_api_is_described(make_visit: MakeVisit) -> None:
    page = make_visit().open("/api/docs")
    for call in (
        "hardware",
        "devices",
        "catalog",
        "inspect",
        "estimate",
        "check",
        "plan",
        "recommend",
    ):
        expect(page.get_by_role("main")).to_contain_text(f"/api/v1/{call}")


def test_light_and_dark(make_visit: MakeVisit) -> None:
    """As the system has it, until a person chooses; the choice is kept."""
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = make_visit().open("/hardware"), make_visit(dark=True).open("/hardware")
    grounds = light.evaluate(ground), dark.evaluate(ground)
    assert grounds[0] != grounds[1]
    button = dark.get_by_role("button", name=re.compile("^Theme"))
    button.click()
    expect(button).to_have_accessible_name("Theme: light")
    assert dark.evaluate(ground) == grounds[0]
    dark.reload()
    assert dark.evaluate(ground) == grounds[0]
