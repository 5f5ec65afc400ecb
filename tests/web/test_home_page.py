"""The home page in a real browser: picks, the table of all models, filters, machines, a server that stops."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect
from tests.thoroughness import wide
from tests.web.accessibility import (
    LAYOUT_RULES,
    assert_no_severe_fault,
    assert_tab_reaches,
    severe_faults,
)
from tests.web.browser import FLAGS, FULL_BROWSERS, UNREACHABLE, chromium_path, new_visit
from tests.web.conftest import MACHINE, MakeVisit, Site
from tests.web.serving import start_process

from edgekit.cli import main

WORDS = {"passed": "Fits", "warning": "Tight", "failed": "Does not fit", "refused": "Cannot run"}
MACHINE_FLAGS = ("--device", "RTX 4090", "--ram", "64G", "--json")
SMALL_PHONE = (360, 780)
MAX_ROWS = 60  # in the document; the table has more than twice as many
MAX_SHIFT = 0.02
# Adds up how far things moved, except within half a second after the user did something.
RECORD_SHIFTS = """
window.shift = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


def home(make_visit: MakeVisit, query: str = MACHINE, **options: Any) -> Page:
    """Opens the home page, and waits until every model has its verdict."""
    page = make_visit(**options).open(f"/?{query}")
    wait_for_answers(page)
    return page


def wait_for_answers(page: Page) -> None:
    page.locator(".models[data-answers=all]").wait_for(state="attached")


def rows(page: Page) -> Locator:
    return page.get_by_role("table", name="Models").locator(".model-row[data-id]")


def row(page: Page, model: str) -> Locator:
    return page.locator(f'.model-row[data-id="{model}"]')


def first_ids(page: Page) -> list[str]:
    """The models of the rows in the document, from the top."""
    ids: list[str] = rows(page).evaluate_all("rows => rows.map(row => row.dataset.id)")
    return ids


def search_box(page: Page) -> Locator:
    return page.get_by_role("combobox", name="Find a model")


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main([*words])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def home_answer(page: Page) -> dict[str, Any]:
    """The server's answer for the machine of the page, with every card."""
    answer: dict[str, Any] = page.evaluate(
        f"async () => (await fetch('/api/v1/home?task=chat&engine=llama.cpp&{MACHINE}')).json()"
    )
    return answer


def test_picks_are_the_first_of_recommend_and_rows_equal_plans(
    make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    page = home(make_visit)
    picks: list[str] = page.locator("[data-pick]").evaluate_all(
        "nodes => nodes.filter(node => node.checkVisibility()).map(node => node.dataset.pick)"
    )
    recommended = run_command(capsys, "recommend", "--task", "chat", *MACHINE_FLAGS)
    assert picks == [each["id"] for each in recommended["suggestions"][: len(picks)]]
    page.reload()
    wait_for_answers(page)
    assert first_ids(page)[: len(picks)] == picks  # everything is known from the start
    for model in (picks[0], "llama-3.1-8b"):
        plan = run_command(capsys, "plan", model, "--no-drafter", *MACHINE_FLAGS)
        search_box(page).fill(model)
        expect(row(page, model)).to_have_attribute("data-status", plan["status"])
        expect(row(page, model)).to_contain_text(WORDS[plan["status"]])
        expect(row(page, model)).to_contain_text(f"{plan['max_context'] // 1024}K")
    search_box(page).press("Escape")
    first = page.locator(f'[data-pick="{picks[0]}"]')
    plan = run_command(capsys, "plan", picks[0], "--no-drafter", *MACHINE_FLAGS)
    expect(first).to_contain_text(f"{plan['variant']['name']} download")
    expect(first).to_contain_text(f"{plan['max_context'] // 1024}K")
    bar = first.get_by_role("img", name=re.compile(r"^RTX 4090: \d+\.\d of 22\.5 GiB usable"))
    expect(bar).to_be_visible()
    expect(bar.locator(".mark")).to_have_count(1)
    first.get_by_role("button", name="Copy run command").click()
    command: str = page.evaluate("navigator.clipboard.readText()")
    assert command.startswith("llama-server -hf ")
    assert f"-c {plan['context_tokens']}" in command


@pytest.mark.parametrize("dark", [False, True])
def test_home_has_no_severe_accessibility_fault(make_visit: MakeVisit, *, dark: bool) -> None:
    page = home(make_visit, dark=dark)
    if dark:
        assert not severe_faults(page, *LAYOUT_RULES)
        return
    search = search_box(page).get_attribute("id")
    assert_tab_reaches(page, {str(search), "home-engine", "filter-fits", "filter-sort"})
    assert_no_severe_fault(page)


@wide
def test_full_browser_shows_home_and_model_page(browser: Browser, site: Site) -> None:
    """Other tests use Chromium's headless shell where it is installed."""
    path = chromium_path(FULL_BROWSERS)
    full_browser = browser.browser_type.launch(executable_path=path, args=list(FLAGS))
    visit = new_visit(full_browser, site.origin)
    page = visit.open(f"/?q=qwen3-8b&{MACHINE}")
    wait_for_answers(page)
    expect(row(page, "qwen3-8b")).to_have_attribute("data-status", "passed")
    row(page, "qwen3-8b").get_by_role("link").click()
    expect(page.locator("html")).to_have_attribute("data-fit", "ready")
    assert visit.close() == []
    full_browser.close()


def test_filters_and_order_are_kept_in_the_url(make_visit: MakeVisit) -> None:
    page = home(make_visit)
    every = page.locator(".count").inner_text()
    search_box(page).fill("qwen3 coder")
    expect(page.locator(".count")).not_to_have_text(every)
    found = first_ids(page)
    assert found
    assert all("qwen3" in model and "coder" in model for model in found)
    assert query_of(page)["q"] == ["qwen3 coder"]
    search_box(page).fill("llama3.1")  # as Ollama spells it
    expect(row(page, "llama-3.1-8b")).to_be_visible()
    search_box(page).fill("")
    page.get_by_role("button", name="Embedding", exact=True).click()
    page.get_by_label("Sort by").select_option("parameters")
    page.get_by_label("Fits only").check()
    assert query_of(page) | {"task": ["embedding"], "sort": ["parameters"], "fits": ["1"]} == (
        query_of(page)
    )
    wait_for_answers(page)
    offer = page.locator(".offer-button")
    if offer.is_visible():
        offer.click()
    embedders = first_ids(page)
    page.reload()
    wait_for_answers(page)
    expect(page.get_by_role("button", name="Embedding", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.get_by_label("Fits only")).to_be_checked()
    assert first_ids(page) == embedders
    search_box(page).fill("no such model")
    page.get_by_role("button", name="Show all models").click()
    expect(search_box(page)).to_have_value("")
    expect(page.get_by_label("Fits only")).not_to_be_checked()
    assert set(first_ids(page)) >= set(embedders)


def test_column_heads_sort_by_pointer_and_key(make_visit: MakeVisit) -> None:
    page = home(make_visit)
    head = page.get_by_role("columnheader", name="Speed")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert query_of(page)["sort"] == ["speed"]
    speeds = shown_speeds(page)
    assert speeds == sorted(speeds, reverse=True)
    head.get_by_role("button").press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert query_of(page)["sort"] == ["-speed"]
    speeds = shown_speeds(page)
    assert speeds == sorted(speeds)
    page.get_by_label("Sort by").select_option("best")
    expect(head).to_have_attribute("aria-sort", "none")
    assert "sort" not in query_of(page)


def shown_speeds(page: Page) -> list[float]:
    cells: list[str] = page.locator(".model-row .cell-speed").all_inner_texts()
    return [float(re.sub(r"[^\d.]", "", cell)) for cell in cells if "tok/s" in cell]


def scroll_to(page: Page, y: int) -> None:
    """Scrolls, and waits until the rows near the window are there."""
    page.evaluate("async (y) => { scrollTo(0, y); await new Promise(requestAnimationFrame); }", y)


def test_table_keeps_only_the_rows_near_the_window_and_reaches_all(make_visit: MakeVisit) -> None:
    page = home(make_visit)
    table = page.get_by_role("table", name="Models")
    count = int(str(table.get_attribute("aria-rowcount"))) - 1
    assert count > 2 * MAX_ROWS
    seen: set[str] = set()
    bottom = 0
    while len(seen) < count:
        assert rows(page).count() < MAX_ROWS
        seen |= set(first_ids(page))
        bottom += 600
        assert bottom < 100 * count, f"{count - len(seen)} rows are never shown"
        scroll_to(page, bottom)
    indices = rows(page).evaluate_all("rows => rows.map(row => Number(row.ariaRowIndex))")
    assert indices == list(range(indices[0], indices[0] + len(indices)))
    scroll_to(page, 0)
    row(page, first_ids(page)[0]).get_by_role("link").focus()
    page.keyboard.press("ArrowDown")
    assert focused_index(page) == 3  # the head is the first row
    # A held key comes faster than frames are drawn.
    page.evaluate(
        """count => {
          for (let at = 0; at < count; at += 1) {
            document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
          }
        }""",
        count,
    )
    assert focused_index(page) == count + 1
    expect(page.locator(":focus")).to_be_in_viewport()
    page.keyboard.press("ArrowUp")
    assert focused_index(page) == count


def focused_index(page: Page) -> int:
    return int(page.evaluate("document.activeElement.closest('.model-row').ariaRowIndex"))


def test_rows_keep_their_places_while_models_are_judged(make_visit: MakeVisit) -> None:
    """The final order is offered: nothing changes places by itself. The table is filled in place."""
    known = home(make_visit)
    known.reload()  # now that every model is judged, the best come first
    wait_for_answers(known)
    answer = home_answer(known)
    best_first = first_ids(known)[:10]
    visit = make_visit()
    page = visit.context.new_page()
    page.add_init_script(RECORD_SHIFTS)
    cards = [model["card"] for model in answer["models"]]
    reversed_models = [{**model, "card": None} for model in reversed(answer["models"])]
    serve_home(page, {**answer, "picks": None, "models": reversed_models})
    events = hold_events(page)
    page.goto(f"{visit.origin}/?{MACHINE}")
    expect(rows(page).first).to_be_visible()
    expect(page.locator(".pick .skeleton").first).to_be_visible()
    before = first_ids(page)
    assert before[0] == next(each["id"] for each in reversed_models if each["is_for_task"])
    page.wait_for_function("navigator.userActivation !== undefined")  # the page's scripts run
    send_events(events, cards, answer)
    wait_for_answers(page)
    assert first_ids(page) == before
    expect(page.locator(".pick .skeleton")).to_have_count(0)
    assert page.evaluate("shift") < MAX_SHIFT
    page.get_by_role("button", name=re.compile(r"better found: show$")).click()
    assert first_ids(page)[:10] == best_first
    expect(page.get_by_role("button", name=re.compile("found: show"))).to_be_hidden()
    expect(page.locator(".count")).to_be_focused()


def serve_home(page: Page, answer: dict[str, Any]) -> None:
    page.route("**/api/v1/home?*", lambda route: route.fulfill(json=answer))


def hold_events(page: Page) -> list[Route]:
    held: list[Route] = []
    page.route("**/api/v1/cards/events?*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright sets an attribute on it
    return held


def send_events(
    held: list[Route], cards: list[dict[str, Any] | None], answer: dict[str, Any]
) -> None:
    parts = [("picks", {"ids": answer["picks"]})]
    parts += [
        ("card", {"id": model["id"], **card})
        for model, card in zip(answer["models"], cards, strict=True)
        if card is not None  # of another task, and not made yet
    ]
    parts.append(("done", {"count": len(cards)}))
    body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in parts)
    (route,) = held
    route.fulfill(body=body, content_type="text/event-stream")


@pytest.mark.parametrize("size", [(1440, 900), (1024, 768), SMALL_PHONE])
def test_layout_does_not_shift(make_visit: MakeVisit, size: tuple[int, int]) -> None:
    visit = make_visit(size=size)
    page = visit.context.new_page()
    page.add_init_script(RECORD_SHIFTS)
    page.goto(f"{visit.origin}/?{MACHINE}")
    wait_for_answers(page)
    expect(page.locator(".pick .skeleton")).to_have_count(0)
    assert page.evaluate("shift") < MAX_SHIFT
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_phone_does_not_scroll_sideways_while_models_are_judged(make_visit: MakeVisit) -> None:
    """The line of counts is at its longest: models that run, that are too large, and that are not judged yet."""
    answer = home_answer(home(make_visit))
    models = [
        {**model, "card": {**model["card"], "status": ("passed", "failed", "refused")[at % 3]} if at < 100 else None}
        for at, model in enumerate(answer["models"])
    ]  # fmt: skip
    visit = make_visit(size=SMALL_PHONE)
    page = visit.context.new_page()
    serve_home(page, {**answer, "models": models})
    hold_events(page)
    page.goto(f"{visit.origin}/?{MACHINE}")
    expect(page.locator(".count")).to_have_text(re.compile("run · .* too large · .* to check"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    fits = page.locator(".count").evaluate("node => node.scrollWidth <= node.clientWidth")
    assert fits, "the counts are cut off"


def test_phone_shows_the_first_pick_on_its_first_screen(make_visit: MakeVisit) -> None:
    page = home(make_visit, size=SMALL_PHONE)
    button = page.get_by_role("button", name="Copy run command").first
    box = button.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= SMALL_PHONE[1]
    small: list[str] = page.evaluate(
        """[...document.querySelectorAll("main button, main select, main input:not([type=checkbox])")]
        .filter(node => node.checkVisibility() && node.getBoundingClientRect().height < 40).map(node => node.outerHTML.slice(0, 100))"""
    )
    assert not small


def test_chip_chooses_a_machine_and_other_opens_the_form(make_visit: MakeVisit) -> None:
    page = home(make_visit, f"{MACHINE}&q=deepseek-v3")
    large = row(page, "deepseek-v3")
    expect(large).to_have_attribute("data-status", "failed")
    expect(chip(page, "RTX 4090")).to_have_attribute("aria-pressed", "true")
    chip(page, "RTX 3060 12 GB").click()
    expect(chip(page, "RTX 3060 12 GB")).to_have_attribute("aria-pressed", "true")
    expect(chip(page, "RTX 4090")).to_have_attribute("aria-pressed", "false")
    expect(page.locator(".machine-name")).to_have_text("RTX 3060 · 12 GB · 32 GB RAM")
    assert (query_of(page)["device"], query_of(page)["ram"]) == (["RTX 3060"], ["32G"])
    chip(page, "Other ...").click()
    expect(page.get_by_label("Add a device")).to_be_focused()
    page.get_by_role("button", name="Remove RTX 3060").click()
    page.get_by_label("Add a device").fill("h200")
    page.get_by_role("button", name=re.compile("^Add H200")).first.click()
    page.get_by_label("How many").select_option("2")
    page.get_by_label("System RAM", exact=True).fill("2T")
    page.get_by_role("button", name="Use this machine", exact=True).click()
    page.wait_for_url(re.compile("device=2x"))
    expect(large).to_have_attribute("data-status", re.compile("passed|warning"))
    used = page.get_by_role("group", name="Machines").get_by_role("button", pressed=True)
    expect(used).to_have_text("2x H200 · 2T RAM")
    page.goto(f"{page.url.split('/?')[0]}/?{MACHINE}")
    expect(page.get_by_role("button", name="2x H200 · 2T RAM")).to_be_visible()  # used before


def chip(page: Page, name: str) -> Locator:
    return page.get_by_role("group", name="Machines").get_by_role("button", name=name, exact=True)


def test_unknown_machine_is_reported_at_the_machine(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 400",)).open("/?device=nonsense&fits=1")
    alert = page.get_by_role("alert").filter(has_text="nknown device 'nonsense'")
    expect(alert).to_contain_text("Choose one of these machines")
    expect(page.get_by_role("table", name="Models")).to_be_hidden()
    alert.get_by_role("button", name="Back to this computer").click()
    expect(rows(page).first).to_be_visible()
    expect(alert).to_be_hidden()
    expect(chip(page, "This computer")).to_have_attribute("aria-pressed", "true")


def test_search_completes_and_opens_what_was_typed(make_visit: MakeVisit) -> None:
    page = home(make_visit)
    box = search_box(page)
    box.press_sequentially("gemma3:27b")
    option = page.get_by_role("option", name=re.compile("^Gemma 3 27B")).first
    expect(option).to_be_visible()
    expect(page.locator("[role=option]").last).to_have_text('Search Hugging Face for "gemma3:27b"')
    option.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(
        re.compile("gemma.3.27b", re.IGNORECASE)
    )
    assert query_of(page)["ref"][0].removeprefix("catalog:").startswith("gemma-3-27b")
    page.go_back()
    search_box(page).fill("https://huggingface.co/acme/tiny-GGUF")
    search_box(page).press("Enter")
    page.wait_for_url(re.compile("/model"))
    assert query_of(page)["ref"] == ["https://huggingface.co/acme/tiny-GGUF"]


def test_back_restores_the_place_and_the_order(make_visit: MakeVisit) -> None:
    page = home(make_visit, f"{MACHINE}&sort=download")
    scroll_to(page, 3000)
    model = str(rows(page).nth(12).get_attribute("data-id"))
    status = str(row(page, model).get_attribute("data-status"))
    top = top_of(row(page, model))
    row(page, model).get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.wait_for_url(re.compile("/model"))
    assert query_of(page)["device"] == ["RTX 4090"]
    assert query_of(page)["ref"] == [f"catalog:{model}"]
    page.go_back()
    expect(row(page, model)).to_have_attribute("data-status", status)
    page.wait_for_function("scrollY > 0")
    assert top_of(row(page, model)) == pytest.approx(top, abs=3)
    assert query_of(page)["sort"] == ["download"]


def top_of(node: Locator) -> float:
    top: float = node.evaluate("node => node.getBoundingClientRect().top")
    return top


def test_up_to_six_models_can_be_compared(make_visit: MakeVisit) -> None:
    page = home(make_visit)
    tray = page.get_by_role("region", name="Models to compare")
    boxes = rows(page).get_by_role("checkbox")
    for at in range(6):
        boxes.nth(at).check()
    expect(boxes.nth(6)).to_be_disabled()
    expect(tray.get_by_role("link", name="Compare 6 models")).to_be_visible()
    first, second = first_ids(page)[:2]
    expect(page.locator(f'[data-pick="{first}"]').get_by_role("checkbox")).to_be_checked()
    for at in range(5, 1, -1):
        boxes.nth(at).uncheck()
    tray.get_by_role("link", name="Compare 2 models").click()
    expect(page.get_by_role("heading", level=1, name="Compare")).to_be_visible()
    assert query_of(page)["ref"] == [f"catalog:{first}", f"catalog:{second}"]


def test_stopped_server_leaves_the_last_figures_in_grey(browser: Browser, site: Site) -> None:
    with start_process(env=site.environment) as server:
        visit = new_visit(
            browser, server.address, expected_faults=(UNREACHABLE, r"status of (409|503)")
        )
        page = visit.open(f"/?{MACHINE}")
        page.locator(
            ".model-row[data-status=passed], .model-row[data-status=warning]"
        ).first.wait_for()
        before = first_ids(page)
        server.process.kill()
        expect(page.locator(".results.stale")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="last figures")).to_be_visible()
    assert first_ids(page) == before
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    assert not visit.close()


def test_names_in_the_address_stay_text(make_visit: MakeVisit) -> None:
    name = "<img src=x onerror=alert(1)>"
    page = make_visit(expected_faults=(r"status of 400",)).open(
        f"/?q={quote(name)}&publisher={quote(name)}&sort={quote(name)}&task={quote(name)}&{MACHINE}"
    )
    expect(page.get_by_text(f'No model in this list matches "{name}".')).to_be_visible()
    assert page.locator("main img").count() == 0
    page.goto(f"{page.url.split('/?')[0]}/?device={quote(name)}")
    expect(page.get_by_role("alert").filter(has_text="onerror")).to_be_visible()
    expect(chip(page, name)).to_be_visible()
    page.evaluate("localStorage.setItem('edgekit-machines', '[{\"device\": \"x\"}, 7, null]')")
    page.goto(f"{page.url.split('/?')[0]}/?{MACHINE}")
    expect(rows(page).first).to_be_visible()
    assert page.locator("main img").count() == 0
