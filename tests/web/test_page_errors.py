"""What goes wrong, as the page tells it: names that mean nothing, doors that stay shut, servers that are slow or gone."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Response, Route, expect
from playwright.sync_api import Error as PlaywrightError
from tests.hub.raw_server import RawServer, Request, Send, serve
from tests.web.browser import PHONE, UNREACHABLE, new_visit
from tests.web.conftest import MACHINE, MakeVisit, Site
from tests.web.model_pages import choose_machine, read, wait_for_request, wait_until_ready
from tests.web.serving import ask, start_process


def box(page: Page) -> Locator:
    return page.get_by_role("main").get_by_label("Model ID, URL or file")


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


def test_names_that_cannot_be_opened(make_visit: MakeVisit) -> None:
    page = make_visit().open(f"/model?{MACHINE}")
    for ref, answer in REFUSED:
        box(page).fill(ref)
        box(page).press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(ref)
        expect(page.get_by_role("alert")).to_contain_text(answer)
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
    assert page.locator("main img").count() == 0  # markup in a name stays text


# What the address says beside the model, and how its fault is told.
ODD_SETTINGS = (
    ("context=NaN", "--ctx-size"),
    ("context=99999999999999999999", "--ctx-size"),
    (f"context={'1' * 5000}", "context: must have at most 4,096 characters"),
    ("foo=bar", "foo: unknown field"),
    ("cpu_moe=banana", "cpu_moe: must be true or false"),
    ("context=4096&job=6000%2B800", "give a context or a job, not both"),
    ("device=nonsense", "unknown device 'nonsense'"),
    ("device=m3-max-36&ram=64G", "M3 Max 36GB has 36 GiB of unified memory"),
)


def test_settings_that_mean_nothing_are_told(make_visit: MakeVisit) -> None:
    """The model is not blamed for them; without them there is an answer."""
    visit = make_visit(expected_faults=(r"status of 400",))
    page = visit.open("/model")
    for text, answer in ODD_SETTINGS:
        go(page, f"/model?ref=qwen3-8b&{text}")
        expect(page.get_by_role("alert")).to_contain_text(answer)
        expect(page.get_by_role("main")).not_to_contain_text("Check the spelling")
        page.get_by_role("button", name="Continue without these settings").click()
        page.wait_for_url(f"{visit.origin}/model?ref=qwen3-8b")
    wait_until_ready(page)
    go(page, "/model?ref=qwen3-8b&device=nonsense")
    expect(page.get_by_role("alert")).to_be_visible()
    choose_machine(page, device=["RTX 4090"], ram="64G")
    expect(page.get_by_role("region", name="Answer")).to_contain_text("RTX 4090")


def test_engines_are_asked_for_again_by_a_page_that_did_not_get_them(make_visit: MakeVisit) -> None:
    visit = make_visit(expected_faults=(r"status of 503",))
    error = {"error": {"type": "Error", "message": "busy"}}
    visit.context.route(
        "**/api/v1/engines", lambda route: route.fulfill(status=503, json=error), times=1
    )
    page = visit.open("/")
    expect(page.get_by_role("combobox", name="Engine")).to_contain_text("llama.cpp")


def go(page: Page, address: str) -> None:
    """As a link of the page does: nothing is loaded again. Only once the page has been drawn does it know its routes."""
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.evaluate("async (one) => (await import('/static/router.js')).go(one)", address)


def test_engines_that_cannot_answer_lead_to_others(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 400",)).open(
        f"/model?ref=qwen3-8b&engine=banana&context=4096&type_k=q8_0&{MACHINE}"
    )
    expect(page.get_by_role("alert")).to_contain_text("unknown engine 'banana'")
    page.get_by_role("link", name="Use MLX").click()
    expect(page.get_by_role("alert")).to_contain_text("Apple silicon")
    expect(page.get_by_role("link", name="Use MLX")).to_be_hidden()
    page.get_by_role("link", name="Use llama.cpp").click()
    assert "-c 4096" in read(page).command  # what every engine has is kept
    page.goto(page.url.replace("engine=llama.cpp", "engine=all"))
    page.wait_for_url(re.compile("/compare"))
    expect(page.get_by_role("combobox", name="Engine")).to_have_count(3)


@pytest.fixture
def silent() -> Iterator[RawServer]:
    """A server that takes requests, and never answers while the test runs."""
    over = threading.Event()

    def script(_request: Request, _send: Send) -> None:
        over.wait(60)

    with serve(script) as server:
        yield server
        over.set()


def test_a_slow_server_is_called_off(make_visit: MakeVisit, site: Site, silent: RawServer) -> None:
    jobs: list[str] = []

    def hear(response: Response) -> None:
        if response.request.method == "POST" and "/jobs/" in response.url:
            jobs.append(str(response.json()["id"]))

    visit = make_visit()
    page = visit.open(f"/model?{MACHINE}")
    page.on("response", hear)
    box(page).fill(f"{silent.address}/slow.gguf")
    box(page).press("Enter")
    expect(page.get_by_role("status").get_by_role("progressbar")).to_be_visible()
    wait_for_request(page, silent.requests)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", name="Cancelled")).to_be_visible()
    page.wait_for_function(
        "async (id) => (await (await fetch(`/api/v1/jobs/${id}`)).json()).state === 'cancelled'",
        arg=jobs[0],
    )
    box(page).fill("qwen3-8b")
    box(page).press("Enter")
    wait_until_ready(page)


def test_a_column_of_compare_is_called_off(make_visit: MakeVisit, silent: RawServer) -> None:
    slow = quote(f"{silent.address}/slow.gguf", safe="")
    page = make_visit().open(f"/compare?ref=qwen3-8b&ref={slow}&{MACHINE}")
    columns = page.get_by_role("main").locator("section")
    expect(columns.nth(0)).to_contain_text("Fits")
    columns.nth(1).get_by_role("button", name="Cancel").press("Enter")
    expect(columns.nth(1).get_by_role("alert")).to_contain_text("Cancelled")
    columns.nth(1).get_by_role("button", name="Try again").press("Enter")
    expect(columns.nth(1).get_by_role("button", name="Cancel")).to_be_focused()


def test_a_private_address_stays_shut_and_a_server_that_comes_back(
    browser: Browser, site: Site
) -> None:
    """Without --allow-private; then the server stops under the page, and starts again on its port."""
    with start_process(env=site.environment) as server:
        visit = new_visit(
            browser, server.address, expected_faults=(UNREACHABLE, r"status of 40[39]")
        )
        private = quote(f"{site.hub.cdn}/acme/tiny-GGUF/tiny-Q8_0.gguf", safe="")
        page = visit.open(f"/model?ref={private}&{MACHINE}")
        expect(page.get_by_role("alert")).to_contain_text("--allow-private")
        assert ask(server.address, "/healthz").status == 200
        page.goto(f"{server.address}/model?ref=qwen3-8b&{MACHINE}&context=4096")
        before = read(page, "-c 4096")
        port = urlsplit(server.address).port
    banner = page.get_by_text("The server has stopped")
    set_context(page, "8192")
    expect(banner).to_be_visible()
    with start_process("--port", str(port), env=site.environment):
        expect(banner).to_be_hidden()
        after = read(page)
        assert after.command.split()[:3] == before.command.split()[:3]
        set_context(page, "16384")
        assert read(page, "-c 16384").sizes["KV cache"] == 4 * before.sizes["KV cache"]
        assert not visit.close()


def set_context(page: Page, text: str) -> None:
    field = page.get_by_label("Context (tokens)")
    field.fill(text)
    field.press("Enter")


def test_who_presses_a_button_that_goes_is_led_on(make_visit: MakeVisit, silent: RawServer) -> None:
    slow = quote(f"{silent.address}/slow.gguf", safe="")
    page = make_visit().open(f"/model?ref={slow}&{MACHINE}")
    page.get_by_role("button", name="Cancel").press("Enter")
    expect(page.get_by_role("heading", name="Cancelled")).to_be_focused()
    page.get_by_role("button", name="Try again").press("Enter")
    page.get_by_role("button", name="Cancel").press("Enter")
    expect(page.get_by_role("heading", name="Cancelled")).to_be_focused()


def test_progress_stays_until_everything_is_known(make_visit: MakeVisit) -> None:
    page = make_visit().open(f"/model?{MACHINE}")
    waiting: list[Route] = []
    page.route("**/api/v1/catalog/*", lambda route: waiting.append(route))  # noqa: PLW0108 - Playwright writes into it
    box(page).fill("qwen3-8b")
    box(page).press("Enter")
    wait_for_request(page, waiting)
    expect(page.get_by_role("status").get_by_role("progressbar")).to_be_visible()
    for route in waiting:
        route.continue_()
    wait_until_ready(page)
    assert page.title() == "qwen3-8b - EdgeKit"


def test_a_catalog_that_does_not_come_is_asked_for_again(make_visit: MakeVisit) -> None:
    """Nor do its verdicts; who asks again is not led to nowhere."""
    page = make_visit(expected_faults=(r"status of 503",)).open("/api/docs")
    answer = {"error": {"type": "E", "message": "too busy"}}
    page.route("**/api/v1/catalog", lambda route: route.fulfill(status=503, json=answer))
    page.get_by_role("link", name="Home").click()
    expect(page.get_by_role("alert")).to_contain_text("too busy")
    expect(page.get_by_role("main")).not_to_contain_text("Loading the catalog")
    page.unroute("**/api/v1/catalog")
    page.route("**/api/v1/cards/events*", lambda route: route.fulfill(status=503, json=answer))
    again = page.get_by_role("button", name="Try again")
    again.press("Enter")
    expect(page.get_by_role("list", name="Models").locator("> li").first).to_be_visible()
    expect(page.get_by_role("heading", name="What can I run?")).to_be_focused()
    expect(page.get_by_role("alert")).to_contain_text("too busy")  # of the verdicts now
    again.press("Enter")
    expect(again).to_be_focused()
    page.unroute("**/api/v1/cards/events*")
    again.press("Enter")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_role("main").locator(".count")).to_be_focused()


def test_a_late_fault_is_not_told_of_another_machine(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 503",)).open("/hardware")
    result = page.get_by_role("region", name=re.compile("^(This|Checked) machine"))
    expect(result.first).to_be_visible()
    waiting: list[Route] = []
    page.route("**/api/v1/hardware?device=H100*", lambda route: waiting.append(route))  # noqa: PLW0108 - Playwright writes into it
    choose_machine(page, device=["H100"])
    wait_for_request(page, waiting)
    choose_machine(page, device=["RTX 4090"], ram="64G")
    answer = page.locator(".machine-told")
    expect(answer).to_contain_text("22.5 GiB VRAM")
    for route in waiting:
        with suppress(PlaywrightError):  # the page has called it off
            route.fulfill(status=503, json={"error": {"type": "E", "message": "of another"}})
    page.wait_for_timeout(200)
    expect(answer).to_contain_text("22.5 GiB VRAM")
    expect(page.get_by_role("main")).not_to_contain_text("of another")
    page.unroute("**/api/v1/hardware?device=H100*")
    busy = {"error": {"type": "E", "message": "too busy"}}
    page.route("**/api/v1/hardware*", lambda route: route.fulfill(status=503, json=busy), times=2)
    choose_machine(page, device=["H100"])
    page.get_by_role("button", name="Try again").press("Enter")
    expect(page.get_by_role("region", name="Checked machine: H100")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_what_is_asked_for_is_not_unknown(make_visit: MakeVisit) -> None:
    """Compare: while a plan is made, where nothing fits, and where a model cannot run."""
    page = make_visit(expected_faults=(r"status of (422|503)",)).open("/compare")
    waiting: list[Route] = []
    page.route("**/api/v1/jobs/plan", lambda route: waiting.append(route))  # noqa: PLW0108 - Playwright writes into it
    go(page, "/compare?ref=qwen3-32b&ref=qwen3-8b&engine=llama.cpp,mlx&device=RTX+3060+12GB&ram=8G")
    wait_for_request(page, waiting)
    columns = page.get_by_role("main").locator("section")
    expect(row(columns.nth(0), "Speed (one request)")).to_have_text("...")
    expect(row(columns.nth(0), "Max context")).to_contain_text("None")
    expect(columns.nth(1)).to_contain_text("Cannot run")
    expect(columns.nth(1)).not_to_contain_text("Unknown")
    for route in waiting:
        route.fulfill(status=503, json={"error": {"type": "E", "message": "no"}})
    expect(row(columns.nth(0), "Speed (one request)")).to_have_text("Unknown")


def row(column: Locator, label: str) -> Locator:
    named = column.page.get_by_text(label, exact=True)
    return column.locator("dl > div").filter(has=named).locator("dd")


def test_the_banner_is_seen_from_everywhere(make_visit: MakeVisit) -> None:
    """Also where the head has two rows and the page was moved; and a link into the API's page leads there."""
    visit = make_visit(size=(800, 600))
    page = visit.open("/api/docs#get-post-api-v1-check")
    section = page.get_by_role("region", name="GET, POST /api/v1/check", exact=True)
    expect(section).to_be_in_viewport()
    assert page.evaluate("scrollY") > 0
    page.evaluate(
        "async () => (await import('/static/api.js')).connection.dispatchEvent(new Event('lost'))"
    )
    banner = page.get_by_text("The server has stopped")
    expect(banner).to_be_in_viewport()
    is_top = "one => { const { x, y } = one.getBoundingClientRect(); return document.elementFromPoint(x + 20, y + 5) === one; }"
    assert banner.evaluate(is_top)


def test_a_very_long_name_is_blamed_itself(make_visit: MakeVisit) -> None:
    """A message cuts it; nor does it push the page down, or out of its sides."""
    name = "acme/" + "no-end-to-this-name-" * 20
    visit = make_visit(size=PHONE, expected_faults=(r"status of 400",))
    page = visit.open(f"/model?ref={name}&{MACHINE}")
    expect(page.get_by_role("main")).to_contain_text("Check the spelling")
    expect(page.get_by_role("button", name="Continue without these settings")).to_have_count(0)
    expect(box(page)).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
