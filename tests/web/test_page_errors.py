"""Errors as the page shows them: references that cannot be opened, invalid settings, servers that are slow or gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Response, expect
from tests.hub.raw_server import RawServer
from tests.web.browser import PHONE, UNREACHABLE, new_visit, script
from tests.web.conftest import MACHINE, MakeVisit, Site
from tests.web.model_pages import (
    choose_machine,
    enter_model,
    finder,
    hold,
    read,
    release,
    wait_for_request,
    wait_until_ready,
)
from tests.web.serving import ask, start_process, stuck_hub

# A reference, and part of the message.
REFUSED = (
    ("acme/no-such-model", "acme/no-such-model"),
    ("no-such-model-at-all", "no-such-model-at-all"),
    ("../../etc/passwd", "--models-dir"),
    ("/etc/passwd", "outside the --models-dir folders"),
    ("file:///etc/passwd", "only http:// and https://"),
    ("missing.gguf", "missing.gguf"),
    ("broken.gguf", "broken.gguf"),
    ("<img src=x onerror=alert(1)>", "<img"),
)


def test_reference_that_cannot_be_opened_has_a_message(make_visit: MakeVisit) -> None:
    page = make_visit().open(f"/model?{MACHINE}")
    for ref, message in REFUSED:
        enter_model(page, ref)
        expect(page.get_by_role("heading", level=1)).to_have_text(ref)
        expect(page.get_by_role("alert")).to_contain_text(message)
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
    assert page.locator("main img").count() == 0  # markup in a reference stays text


# Part of the URL's query, and part of the message.
INVALID_SETTINGS = (
    ("context=NaN", "--ctx-size"),
    ("context=99999999999999999999", "--ctx-size"),
    (f"context={'1' * 5000}", "context: must have at most 4,096 characters"),
    ("foo=bar", "foo: unknown field"),
    ("cpu_moe=banana", "cpu_moe: must be true or false"),
    ("context=4096&job=6000%2B800", "give a context or a job, not both"),
    ("device=nonsense", "unknown device 'nonsense'"),
    ("device=m3-max-36&ram=64G", "M3 Max 36GB has 36 GiB of unified memory"),
)


def test_invalid_settings_can_be_dropped(make_visit: MakeVisit) -> None:
    """The message does not blame the model, and a button opens it without the settings."""
    visit = make_visit(expected_faults=(r"status of 400",))
    page = visit.open("/model")
    for query, message in INVALID_SETTINGS:
        go(page, f"/model?ref=qwen3-8b&{query}")
        expect(page.get_by_role("alert")).to_contain_text(message)
        expect(page.get_by_role("main")).not_to_contain_text("Check the spelling")
        page.get_by_role("button", name="Continue without these settings").click()
        page.wait_for_url(f"{visit.origin}/model?ref=qwen3-8b")
    wait_until_ready(page)
    go(page, "/model?ref=qwen3-8b&device=nonsense")
    expect(page.get_by_role("alert")).to_be_visible()
    choose_machine(page, device=["RTX 4090"], ram="64G")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("RTX 4090")


def test_list_of_engines_is_requested_again_after_an_error(make_visit: MakeVisit) -> None:
    visit = make_visit(expected_faults=(r"status of 503",))
    error = {"error": {"type": "Error", "message": "busy"}}
    visit.context.route(
        "**/api/v1/engines", lambda route: route.fulfill(status=503, json=error), times=1
    )
    page = visit.open("/")
    expect(page.get_by_role("combobox", name="Engine")).to_contain_text("llama.cpp")


def go(page: Page, address: str) -> None:
    """Navigates as a link of the page does, without a reload. Waits first until the page has registered its routes."""
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.evaluate(f"async (address) => {script('router.js')}.go(address)", address)


def test_engine_that_cannot_run_the_model_offers_others(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 400",)).open(
        f"/model?ref=qwen3-8b&engine=banana&context=4096&type_k=q8_0&{MACHINE}"
    )
    expect(page.get_by_role("alert")).to_contain_text("unknown engine 'banana'")
    page.get_by_role("link", name="Use MLX").click()
    expect(page.get_by_role("alert")).to_contain_text("Apple silicon")
    expect(page.get_by_role("link", name="Use MLX")).to_be_hidden()
    page.get_by_role("link", name="Use llama.cpp").click()
    assert "-c 4096" in read(page).command  # settings that every engine has are kept
    page.goto(page.url.replace("engine=llama.cpp", "engine=all"))
    page.wait_for_url(re.compile("/compare"))
    expect(page.locator(".compare-head")).to_have_count(3)


@pytest.fixture
def silent_server() -> Iterator[RawServer]:
    """A file server that does not answer."""
    with stuck_hub() as (server, _):
        yield server


def test_opening_from_a_slow_server_can_be_cancelled(
    make_visit: MakeVisit, site: Site, silent_server: RawServer
) -> None:
    job_ids: list[str] = []

    def record_job(response: Response) -> None:
        if response.request.method == "POST" and "/jobs/" in response.url:
            job_ids.append(str(response.json()["id"]))

    visit = make_visit()
    page = visit.open(f"/model?{MACHINE}")
    page.on("response", record_job)
    enter_model(page, f"{silent_server.address}/slow.gguf")
    expect(page.get_by_role("status").get_by_role("progressbar")).to_be_visible()
    wait_for_request(page, silent_server.requests)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", name="Cancelled")).to_be_visible()
    page.wait_for_function(
        "async (id) => (await (await fetch(`/api/v1/jobs/${id}`)).json()).state === 'cancelled'",
        arg=job_ids[0],
    )
    enter_model(page, "qwen3-8b")
    wait_until_ready(page)


def test_private_address_is_refused_without_allow_private(browser: Browser, site: Site) -> None:
    with start_process(env=site.environment) as server:
        visit = new_visit(browser, server.address, expected_faults=(r"status of 403",))
        private = quote(f"{site.hub.cdn}/acme/tiny-GGUF/tiny-Q8_0.gguf", safe="")
        page = visit.open(f"/model?ref={private}&{MACHINE}")
        expect(page.get_by_role("alert")).to_contain_text("--allow-private")
        assert ask(server.address, "/healthz").status == 200
        assert not visit.close()


def test_page_recovers_when_the_server_restarts_on_its_port(browser: Browser, site: Site) -> None:
    with start_process(env=site.environment) as server:
        # The server answers 409 to requests that its end cancels.
        visit = new_visit(browser, server.address, expected_faults=(UNREACHABLE, r"status of 409"))
        page = visit.open(f"/model?ref=qwen3-8b&{MACHINE}&context=4096")
        before = read(page, "-c 4096")
        port = urlsplit(server.address).port
    banner = page.locator("#banner")
    set_context(page, "8192")
    expect(banner).to_contain_text("The server has stopped")
    # The last figures stay, in grey, and say so.
    expect(page.locator(".model-grid")).to_have_class(re.compile("stale"))
    answer = page.get_by_role("region", name="Answer")
    expect(answer.get_by_role("alert")).to_contain_text("These are the last figures")
    expect(answer.locator("[data-figure=speed] dd")).to_contain_text("tokens/s")
    with start_process("--port", str(port), env=site.environment):
        expect(banner).to_be_hidden()
        after = read(page, "-c 8192")  # the setting that was made meanwhile
        expect(answer.get_by_role("alert")).to_be_empty()
        assert after.sizes["KV cache"] == 2 * before.sizes["KV cache"]
        set_context(page, "16384")
        assert read(page, "-c 16384").sizes["KV cache"] == 4 * before.sizes["KV cache"]
        assert not visit.close()


def set_context(page: Page, text: str) -> None:
    field = page.get_by_label("Context (tokens)")
    field.fill(text)
    field.press("Enter")


def test_focus_moves_on_from_a_button_that_disappears(
    make_visit: MakeVisit, silent_server: RawServer
) -> None:
    slow = quote(f"{silent_server.address}/slow.gguf", safe="")
    page = make_visit().open(f"/model?ref={slow}&{MACHINE}")
    page.get_by_role("button", name="Cancel").press("Enter")
    expect(page.get_by_role("heading", name="Cancelled")).to_be_focused()
    page.get_by_role("button", name="Try again").press("Enter")
    page.get_by_role("button", name="Cancel").press("Enter")
    expect(page.get_by_role("heading", name="Cancelled")).to_be_focused()


def test_progress_is_shown_until_all_answers_arrive(make_visit: MakeVisit) -> None:
    page = make_visit().open(f"/model?{MACHINE}")
    requests = hold(page, "catalog/*")
    enter_model(page, "qwen3-8b")
    wait_for_request(page, requests)
    expect(page.get_by_role("status").get_by_role("progressbar")).to_be_visible()
    release(page, "catalog/*", requests)
    wait_until_ready(page)
    assert page.title() == "Qwen3 8B - EdgeKit"


def test_failed_list_of_models_can_be_tried_again(make_visit: MakeVisit) -> None:
    """First the list, then the stream of cards. Each time, the focus moves to what has appeared."""
    page = make_visit(expected_faults=(r"status of 503",)).open("/api/docs")
    answer = {"error": {"type": "E", "message": "too busy"}}
    page.route("**/api/v1/home?*", lambda route: route.fulfill(status=503, json=answer))
    page.get_by_role("link", name="Models", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("too busy")
    expect(page.get_by_role("main")).not_to_contain_text("Loading the list")
    page.unroute("**/api/v1/home?*")
    page.route("**/api/v1/cards/events*", lambda route: route.fulfill(status=503, json=answer))
    try_again = page.get_by_role("button", name="Try again")
    try_again.press("Enter")
    expect(page.locator(".model-row[data-id]").first).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("too busy")  # now of the cards
    expect(try_again).to_be_focused()
    try_again.press("Enter")
    expect(try_again).to_be_focused()
    page.unroute("**/api/v1/cards/events*")
    try_again.press("Enter")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_role("main").locator(".count")).to_be_focused()


def test_server_stopped_banner_is_visible_on_a_scrolled_page(make_visit: MakeVisit) -> None:
    """Also with a header of two rows on a scrolled page. A link to a section of the API page scrolls to it."""
    visit = make_visit(size=(800, 600))
    page = visit.open("/api/docs#get-post-api-v1-check")
    section = page.get_by_role("region", name="GET, POST /api/v1/check", exact=True)
    expect(section).to_be_in_viewport()
    assert page.evaluate("scrollY") > 0
    page.evaluate(f"async () => {script('api.js')}.connection.dispatchEvent(new Event('lost'))")
    banner = page.get_by_text("The server has stopped")
    expect(banner).to_be_in_viewport()
    is_on_top = "node => { const { x, y } = node.getBoundingClientRect(); return document.elementFromPoint(x + 20, y + 5) === node; }"
    assert banner.evaluate(is_on_top)


def test_very_long_reference_is_reported_and_fits_the_page(make_visit: MakeVisit) -> None:
    """The message shortens it, so that it neither pushes the model field out of view nor makes the page wider."""
    name = "acme/" + "no-end-to-this-name-" * 20
    visit = make_visit(size=PHONE, expected_faults=(r"status of 400",))
    page = visit.open(f"/model?ref={name}&{MACHINE}")
    expect(page.get_by_role("main")).to_contain_text("Check the spelling")
    expect(page.get_by_role("button", name="Continue without these settings")).to_have_count(0)
    expect(finder(page)).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
