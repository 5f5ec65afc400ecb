"""The model page in a real browser: its numbers are the command line's, to the byte, whatever is set."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page, Route, expect
from tests.web.browser import PHONE
from tests.web.conftest import DENSE, EXPERTS, MACHINE, Site, Visitor
from tests.web.model_pages import (
    COMMAND,
    another,
    assert_same,
    choose_machine,
    estimated,
    read,
    ready,
    until,
)

from edgekit.cli import main

FILE, SPARSE = ".".join((*DENSE, "gguf")), ".".join((*EXPERTS, "gguf"))

# What is set, and how the shown command says it.
STEPS = (
    ("Context (tokens)", "16,384", "-c 16384"),
    (
        "KV cache (K)",
        "q8_0",
        "-ctk q8_0 -ctv q8_0",
    ),  # V as K: a GPU has kernels for equal types only
    ("KV cache (V)", "q4_0", "-ctv q4_0"),
    ("Parallel requests", "3", "-np 3"),
    ("Layers on the GPU", "12", "-ngl 12"),
    ("Micro-batch size", "256", "-ub 256"),
    ("KV cache (V)", "", "-ctv q8_0"),
    ("Flash attention", "off", "^(?!.*-ctv).*-fa off"),  # a quantised V needs it
    ("Context (tokens)", "40k", "-c 40960"),
)


def set_to(page: Page, label: str, value: str) -> None:
    """As a person would: menus are chosen from, fields typed into, sliders moved."""
    control = page.get_by_label(label, exact=True)
    if control.evaluate("one => one.tagName") == "SELECT":
        control.select_option(value)
        return
    control.fill(value)
    if control.get_attribute("type") != "range":
        control.press("Tab")


def test_every_step_is_what_the_command_line_says(
    visitor: Visitor,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = ready(visitor().open(f"/model?ref={FILE}&{MACHINE}"))
    seen = set()
    for label, value, words in STEPS:
        set_to(page, label, value)
        shown = read(page, words)
        assert_same(shown, estimated(shown.command, site, monkeypatch, capsys))
        total = page.get_by_role("region", name="Answer").get_by_title(
            f"{shown.sizes['Total']:,} bytes"
        )
        expect(total).to_have_text(f"{shown.sizes['Total'] / (1 << 30):.1f} GiB")
        seen.add(shown.sizes["Total"])
    assert len(seen) == len(STEPS)
    # How long a step takes is a figure of benchmarks/web_page.py, which finds it under this name.
    assert page.evaluate("performance.getEntriesByName('fit').length") >= len(STEPS)


def test_experts_on_the_cpu(
    visitor: Visitor,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = ready(visitor().open(f"/model?ref={SPARSE}&{MACHINE}&context=8192"))
    before = read(page)
    page.get_by_label("All experts on the CPU").check()
    after = read(page, "-cmoe")
    assert_same(after, estimated(after.command, site, monkeypatch, capsys))
    assert after.command != before.command


@pytest.mark.parametrize("engine", ["vllm", "mlx"])
def test_other_engines(
    engine: str,
    visitor: Visitor,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = MACHINE if engine == "vllm" else "device=M3+Max+64GB"
    page = ready(visitor().open(f"/model?ref=qwen3-8b&context=8192&{machine}"))
    page.get_by_label("Engine", exact=True).select_option(engine)
    shown = read(page, f"--engine {engine}")
    assert_same(shown, estimated(shown.command, site, monkeypatch, capsys))


def test_from_the_hub_by_its_id_and_by_its_address(
    visitor: Visitor,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Typed into the one box; the page goes to an address of its own."""
    page = visitor().open(f"/model?{MACHINE}")
    page.get_by_role("main").get_by_label("Model ID, URL or file").fill("acme/tiny-GGUF:Q8_0")
    page.get_by_role("button", name="Check", exact=True).click()
    page.wait_for_url(re.compile("ref=acme"))
    shown = read(ready(page))
    assert_same(shown, estimated(shown.command, site, monkeypatch, capsys))
    expect(page.get_by_role("heading", level=1)).to_have_text("acme/tiny-GGUF:Q8_0")
    assert any("tiny-Q8_0.gguf" in line for line in site.hub.log("cdn"))
    address = f"{site.hub.cdn}/acme/tiny-GGUF/tiny-Q8_0.gguf"
    page.get_by_role("main").get_by_label("Model ID, URL or file").fill(address)
    page.get_by_role("button", name="Check", exact=True).click()
    assert address in read(page, re.escape(address)).command


def test_arrow_keys_move_the_context(visitor: Visitor) -> None:
    """Also where a step of the scale is less than the 256 tokens of a cell."""
    page = ready(visitor().open(f"/model?ref={FILE}&{MACHINE}&context=1024"))
    slider = page.get_by_label("Context, log scale")
    slider.focus()
    for key, compare in (("ArrowRight", int.__gt__), ("ArrowLeft", int.__lt__)):
        before = read(page)
        slider.press(key)
        slider.press(key)
        assert compare(another(page, before).sizes["KV cache"], before.sizes["KV cache"])


def test_the_link_restores_everything(visitor: Visitor) -> None:
    visit = visitor()
    page = ready(visit.open(f"/model?ref={FILE}&{MACHINE}"))
    for label, value, words in STEPS[:5]:
        set_to(page, label, value)
        shown = read(page, words)
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link: str = page.evaluate("navigator.clipboard.readText()")
    other = ready(visit.open(link.removeprefix(visit.origin)))
    again = read(other, "-ngl 12")
    assert again == shown
    expect(other.get_by_label("Parallel requests")).to_have_value("3")
    expect(other.get_by_label("KV cache (K)")).to_have_value("q8_0")


def test_what_is_taken_along(visitor: Visitor, tmp_path: Path) -> None:
    """The command on the clipboard, and the answer as files."""
    page = ready(visitor().open(f"/model?ref={FILE}&{MACHINE}&context=4096"))
    name = "llama.cpp command"
    page.get_by_role("button", name=f"Copy: {name}").click()
    copied: str = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.get_by_label(name, exact=True).inner_text()
    assert copied.startswith("llama-server")
    assert "-c 4096" in copied
    expect(page.get_by_label("KV cache types shown").get_by_role("button").first).to_be_visible()
    shown = read(page)
    saved = {}
    for kind in ("PNG", "SVG", "JSON"):
        with page.expect_download() as coming:
            page.get_by_role("button", name=f"Save as {kind}").click()
        saved[kind] = tmp_path / coming.value.suggested_filename
        coming.value.save_as(saved[kind])
        assert saved[kind].suffix == f".{kind.lower()}"
    assert saved["PNG"].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert saved["PNG"].stat().st_size > 10_000
    picture = saved["SVG"].read_text(encoding="utf-8")
    assert ET.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert "RTX 4090" in picture
    answer = json.loads(saved["JSON"].read_text(encoding="utf-8"))
    assert answer["fit"]["estimate"]["total_bytes"] == shown.sizes["Total"]
    assert answer["link"] == page.url
    words = "".join(ET.fromstring(picture).itertext())
    assert all(f"usable, {bar['share']}" in words for bar in answer["fit"]["bars"])


def test_what_would_make_it_fit_is_done(visitor: Visitor) -> None:
    page = ready(
        visitor().open(
            "/model?ref=qwen3-32b&engine=llama.cpp&context=32768&device=RTX+3060+12GB&ram=8G"
        )
    )
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text("Does not fit")
    before = read(page)
    page.get_by_role("button", name=re.compile("^Apply")).first.click()
    assert another(page, before).sizes["Total"] != before.sizes["Total"]


def held(page: Page, call: str) -> list[Route]:
    """Answers to a call wait here until they are let go."""
    waiting: list[Route] = []
    # Playwright writes into what it is given: no builtin, and a method's owner
    page.route(f"**/api/v1/{call}", lambda route: waiting.append(route))  # noqa: PLW0108 - see above
    return waiting


def let_go(page: Page, call: str, waiting: list[Route]) -> None:
    page.unroute(f"**/api/v1/{call}")
    for route in waiting:
        with suppress(PlaywrightError):  # the page has called it off
            route.continue_()


def test_late_answers_are_dropped(visitor: Visitor) -> None:
    """Those of another machine are never shown; those of other settings look so. A slider says its number at once."""
    page = ready(
        visitor(expected_faults=(r"status of 422",)).open(
            "/model?ref=qwen3-8b&engine=vllm&context=8192&device=H100"
        )
    )
    answer = page.get_by_role("region", name="Answer")
    grid = page.locator(".model-grid")
    waiting = held(page, "fit")
    page.get_by_label("GPU memory utilization").fill("0.7")
    until(page, waiting)
    expect(page.locator("output[for=set-gpu_memory_utilization]")).to_have_text("70 %")
    let_go(page, "fit", waiting)
    read(page, "--gpu-memory-utilization 0.7")
    field = page.get_by_label("Context (tokens)")
    waiting = held(page, "fit")
    field.fill("16k")
    field.press("Enter")
    expect(field).to_have_value("16,384")
    until(page, waiting)
    expect(grid).to_have_class(re.compile("stale"))
    choose_machine(page, device=["M3 Max 64GB"])
    expect(answer).to_contain_text("Cannot run")
    let_go(page, "fit", waiting)
    page.wait_for_timeout(300)
    expect(answer).to_contain_text("Cannot run")
    expect(page.get_by_label(COMMAND, exact=True)).to_be_hidden()
    choose_machine(page, device=["H100"])
    read(page, "-c 16384")
    expect(grid).not_to_have_class(re.compile("stale"))


def test_what_was_said_of_cards_goes_with_them(visitor: Visitor) -> None:
    """A card of the home page may say how two GPUs divide the layers; one has nothing to divide."""
    two = "device=2x+RTX+3090&ram=64G&engine=llama.cpp&context=8192&mix=Q8_0&tensor_split=1%2C3"
    page = ready(visitor().open(f"/model?ref=catalog:qwen3-8b&{two}"))
    read(page, "-ts 1,3")
    choose_machine(page, device=["RTX 4090"], ram="64G")
    alone = read(page, r"^(?!.*-ts).*--mix Q8_0.*$")
    assert "-c 8192" in alone.command
    expect(page.get_by_role("region", name="Answer")).to_contain_text("RTX 4090")


def test_commands_of_programs_go_with_the_settings(visitor: Visitor) -> None:
    page = ready(visitor().open(f"/model?ref={FILE}&{MACHINE}&context=4096"))
    ask, decisions = (
        page.get_by_role("button", name="Show commands for other programs"),
        page.locator(".decisions"),
    )
    ask.click()
    expect(decisions).to_be_visible()
    set_to(page, "Parallel requests", "2")  # what a plan is not asked with
    read(page, "-np 2")
    expect(decisions).to_be_visible()
    set_to(page, "Context (tokens)", "8192")
    expect(decisions).to_be_hidden()
    waiting = held(page, "plan")
    ask.click()
    until(page, waiting)
    set_to(page, "Context (tokens)", "16384")
    expect(ask).to_be_enabled()
    let_go(page, "plan", waiting)
    read(page, "-c 16384")
    expect(decisions).to_be_hidden()


def saved(page: Page, kind: str) -> str:
    with page.expect_download() as coming:
        page.get_by_role("button", name=f"Save as {kind}").click()
    return coming.value.path().read_text(encoding="utf-8")


def test_a_file_is_of_one_state(visitor: Visitor) -> None:
    """Saved at once after a change, or before the lines came: it waits for them."""
    page = visitor(expected_faults=(r"status of 503",)).open(
        f"/model?ref={FILE}&{MACHINE}&context=4096"
    )
    waiting = held(page, "curves")
    ready(page)
    until(page, waiting)
    expect(page.get_by_text("Loading the curves")).to_be_visible()
    button = page.get_by_role("button", name="Save as SVG")
    with page.expect_download() as coming:
        button.click()
        expect(button).to_have_attribute("aria-busy", "true")
        let_go(page, "curves", waiting)
    picture = coming.value.path().read_text(encoding="utf-8")
    assert "usable 22.5 GiB" in picture
    assert "stroke-dasharray" in picture
    set_to(page, "Batch size", "1024")
    answer = json.loads(saved(page, "JSON"))
    assert "batch=1024" in answer["link"]
    assert answer["fit"]["flags"]["batch"] == answer["check"]["flags"]["batch"] == "1024"
    assert answer["curves"]
    page.route(
        "**/api/v1/curves",
        lambda route: route.fulfill(status=503, json={"error": {"type": "E", "message": "no"}}),
    )
    set_to(page, "Batch size", "512")
    picture = saved(page, "SVG")
    assert "context (tokens)" not in picture
    expect(page.get_by_text("Can't draw the curves: no")).to_be_visible()
    assert "curves" not in json.loads(saved(page, "JSON"))
    page.unroute("**/api/v1/curves")
    page.get_by_role("button", name="Try again").press("Enter")
    expect(page.get_by_label("KV cache types shown").get_by_role("button").first).to_be_visible()
    expect(page.locator(".plot-stage")).to_be_focused()  # the button went


def test_a_model_that_does_not_fit(visitor: Visitor, capsys: pytest.CaptureFixture[str]) -> None:
    """Why, how well the numbers are known, and only what can be done has a button."""
    visit, changes = visitor(), ".changes li"
    request = "/model?ref=catalog:qwen3-32b&type_k=f16&type_v=f16&device=m3-max-36"
    page = ready(visit.open(f"{request}&context=40960&n_gpu_layers=all"))
    limit = page.locator(changes, has_text="iogpu.wired_limit_mb")
    expect(limit).to_be_visible()
    expect(limit.get_by_role("button")).to_have_count(0)
    page.goto(f"{visit.origin}{request}&context=81920")
    ready(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("qwen3-32b")
    answer = page.get_by_role("region", name="Answer")
    expect(answer.get_by_role("heading", name="Why")).to_be_visible()
    expect(answer).to_contain_text("the longest context that fits is 40,960 tokens")
    main(shlex.split("check qwen3-32b -c 81920 -ctk f16 -ctv f16 --device m3-max-36 --json"))
    headline = json.loads(capsys.readouterr().out)["headline"]
    expect(answer.locator(".told")).to_have_text(headline)  # the badge has its first words
    known = page.get_by_role("region", name="Notes")
    assert main(shlex.split(read(page).command)[1:]) == 0
    basis = re.search(r"^Basis +(.*?)\n\n", capsys.readouterr().out, re.DOTALL | re.MULTILINE)
    assert basis is not None
    expect(known).to_contain_text("; ".join(row.strip() for row in basis[1].splitlines()))
    expect(known).not_to_contain_text("read from the file")
    plot = page.get_by_role("region", name="Memory vs context")
    expect(plot).to_contain_text("The curves end at 40,960 tokens")
    mac = page.locator(changes, has_text="smallest current Mac")
    name, _, _ = mac.inner_text().partition(":")
    mac.get_by_role("button").press("Enter")
    expect(answer).to_contain_text(name)
    expect(page.locator(".changes-panel h2:focus, .headline:focus")).to_have_count(1)


def test_numbers_that_are_not_taken(visitor: Visitor) -> None:
    page = ready(visitor(size=(1280, 560)).open(f"/model?ref={FILE}&{MACHINE}&job=6000%2B800"))
    expect(page.locator("#context-hint")).to_contain_text("prompt 6,000 + 800 new tokens")
    assert "-c 6864" in read(page).command
    field = page.get_by_label("Parallel requests")
    set_to(page, "Parallel requests", "4")
    before = read(page, "-c 27456 -np 4")  # a context for each of the four
    for odd in ("0", "2.5", "99999999999"):
        field.fill(odd)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_accessible_description(re.compile("from 1 to 2,147,483,647"))
        field.press("Tab")
        expect(field).to_have_value("4")
    context = page.get_by_label("Context (tokens)")
    context.fill("many")
    context.press("Enter")
    expect(context).to_have_accessible_description(re.compile("is not a number of tokens"))
    context.press("Tab")
    expect(context).to_have_value("27,456")
    assert read(page) == before
    side = page.locator(".side")
    expect(side).to_have_class(re.compile("more"))
    page.get_by_label("Micro-batch size").focus()  # nothing is left under the buttons
    bottom, top = (
        page.evaluate(
            "([one, edge]) => document.querySelector(one).getBoundingClientRect()[edge]", pair
        )
        for pair in (["#set-ubatch", "bottom"], [".side-buttons", "top"])
    )
    assert bottom <= top
    side.evaluate("one => one.scrollTo(0, one.scrollHeight)")
    expect(side).not_to_have_class(re.compile("more"))


def test_two_tabs_do_not_disturb_each_other(visitor: Visitor) -> None:
    visit = visitor()
    tabs = [
        ready(visit.open(f"/model?ref={FILE}&{MACHINE}&context={size}")) for size in (4096, 8192)
    ]
    for sizes in ((5120, 9216), (6144, 10240), (7168, 11264)):
        for tab, size in zip(tabs, sizes, strict=True):
            tab.get_by_label("Context (tokens)").fill(str(size))
            tab.get_by_label("Context (tokens)").press("Enter")
    first, second = read(tabs[0], "-c 7168"), read(tabs[1], "-c 11264")
    per_token = 32 * 8 * (128 + 128) * 2  # layers, heads, key and value, 16 bits
    assert first.sizes["KV cache"] == 7168 * per_token
    assert second.sizes["KV cache"] == 11264 * per_token


def test_what_is_pointed_at_in_the_plot_follows_the_lines(visitor: Visitor) -> None:
    """Numbers of other settings do not stay beside new lines, nor one of a line that was hidden."""
    page = ready(visitor().open(f"/model?ref={FILE}&{MACHINE}&context=4096"))
    lines = page.get_by_label("KV cache types shown")
    expect(lines.get_by_role("button").first).to_be_visible()
    tip = page.locator(".plot-tip")
    page.get_by_role("slider", name=re.compile("^Context: use the arrow keys")).press("End")
    expect(tip).to_contain_text("131,072 tokens")
    page.mouse.move(0, 0)
    page.locator(".plot-stage").hover()
    before = tip.inner_text()
    page.locator("#set-parallel").evaluate(
        "one => { one.value = '8'; one.dispatchEvent(new Event('input')); }"
    )
    read(page, "-np 8")
    expect(page.locator("html")).to_have_attribute("data-curves", "ready")
    expect(tip).not_to_have_text(before)
    page.locator(".entry", has_text="q4_0").evaluate("one => one.click()")
    expect(tip.locator("li")).to_have_count(2)


def test_only_what_an_engine_can_do_is_promised(visitor: Visitor) -> None:
    """Layers of MLX and vLLM do not move to the CPU, and its heading does not look like a link."""
    page = ready(visitor(size=(1280, 560)).open(f"/model?ref=qwen3-8b&{MACHINE}&context=4096"))
    placed = page.get_by_text("with more layers on the CPU")
    expect(placed).to_be_visible()
    expect(page.locator(".side")).to_have_class(re.compile("more"))
    heading, ink = (
        page.locator(item).evaluate("one => getComputedStyle(one).color")
        for item in (".side h2", "body")
    )
    assert heading == ink
    page.get_by_label("Engine", exact=True).select_option("vllm")
    read(page, "--engine vllm")
    expect(placed).to_have_count(0)


def test_no_verdict_stands_beside_an_error(visitor: Visitor) -> None:
    """Of settings that make no sense together; then why a cache type is refused, for those who cannot point."""
    page = ready(
        visitor(expected_faults=(r"status of 4\d\d",)).open(
            "/model?ref=qwen3-8b&engine=mlx&context=8192&device=M3+Max+64GB"
        )
    )
    expect(page.get_by_text("with more layers on the CPU")).to_have_count(0)
    expect(page.locator(".way")).to_contain_text("· mlx-lm")  # and not "mlx mlx-lm"
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text("Fits")
    set_to(page, "Max new tokens", "9000")
    expect(answer.get_by_role("alert")).to_contain_text("leaves no room for a prompt")
    expect(answer).not_to_contain_text("Fits")
    page.goto(
        page.url.replace("max_tokens=9000", "max_tokens=1").replace("qwen3-8b", "minicpm3-4b")
    )
    ready(page)
    page.get_by_text("More KV cache types").click()
    refused = page.locator('.entry[data-cache="6 bit"]')
    refused.click()
    plot = page.get_by_role("region", name="Memory vs context")
    expect(plot.get_by_role("status")).to_contain_text("6 bit: ")
    expect(refused).to_be_focused()


def busy(page: Page, call: str, status: int, *, times: int | None = None) -> None:
    """The server has other things to do."""
    answer = {"error": {"type": "TooManyError", "message": f"{call}: not now"}}
    page.route(
        f"**/api/v1/{call}", lambda route: route.fulfill(status=status, json=answer), times=times
    )


def test_what_fails_in_passing_can_be_asked_again(visitor: Visitor) -> None:
    """Numbers of the settings stay meanwhile, and what only a check knows looks old."""
    page = ready(
        visitor(expected_faults=(r"status of (429|504)", r"net::ERR_FAILED")).open(
            f"/model?ref={FILE}&{MACHINE}&context=8192"
        )
    )
    html, answer = page.locator("html"), page.get_by_role("region", name="Answer")
    alert, again = answer.get_by_role("alert"), answer.get_by_role("button", name="Try again")
    expect(html).to_have_attribute("data-check", "ready")
    busy(page, "check", 429)
    set_to(page, "Parallel requests", "2")
    expect(alert).to_contain_text("check: not now")
    expect(answer.get_by_text("Max context")).to_be_visible()
    expect(html).to_have_attribute("data-check", "old")
    assert "-np 2" in read(page).command
    page.unroute("**/api/v1/check")
    busy(page, "check", 504, times=1)
    again.press("Enter")
    page.wait_for_event("requestfinished", lambda item: item.url.endswith("/check"))
    expect(again).to_be_focused()
    again.press("Enter")
    expect(alert).to_be_empty()
    expect(html).to_have_attribute("data-check", "ready")
    expect(page.locator(".headline")).to_be_focused()
    busy(page, "fit", 429, times=1)  # the check that follows finds the server again
    set_to(page, "Parallel requests", "3")
    read(page, "-np 3")
    expect(alert).to_be_empty()
    page.route("**/api/v1/check", lambda route: route.abort(), times=1)
    page.get_by_label("Engine", exact=True).select_option("vllm")
    expect(again).to_be_visible()  # nothing is known of another engine
    expect(page.locator(".headline")).to_be_empty()


def test_keys_and_values_of_one_cache_change_together(visitor: Visitor) -> None:
    """No "Cannot run" on the way; a link that says two types is led to one."""
    page = visitor(expected_faults=(r"status of 422",)).open(
        f"/model?ref=deepseek-v2-lite&engine=llama.cpp&{MACHINE}&context=4096&type_k=q8_0&type_v=f16"
    )
    expect(page.get_by_role("alert")).to_contain_text("different K (q8_0) and V (f16)")
    page.get_by_role("link", name="Use f16 for both").click()
    ready(page)
    keys, values = page.get_by_label("KV cache (K)"), page.get_by_label("KV cache (V)")
    page.locator(".headline").evaluate(
        "one => new MutationObserver(() => (window.told = (window.told ?? '') + one.textContent))"
        ".observe(one, { childList: true })"
    )
    set_to(page, "KV cache (K)", "q8_0")
    read(page, "-ctk q8_0 -ctv q8_0")
    expect(values).to_have_value("q8_0")
    expect(page.locator(".side").get_by_text("one KV cache between K and V")).to_be_visible()
    set_to(page, "KV cache (V)", "q4_0")
    read(page, "-ctk q4_0 -ctv q4_0")
    expect(keys).to_have_value("q4_0")
    assert "Cannot run" not in page.evaluate("window.told")


def test_a_page_that_was_left_says_nothing(visitor: Visitor) -> None:
    visit = visitor()
    visit.context.clock.install()
    page = ready(visit.open(f"/model?ref={FILE}&{MACHINE}&context=4096"))
    expect(page.locator("#announcer")).not_to_be_empty()  # that the model was checked
    page.clock.run_for(1200)  # a verdict is said a moment after the last change
    expect(page.locator("#announcer")).to_contain_text("Fits")
    set_to(page, "Context (tokens)", "8192")
    read(page, "-c 8192")
    page.get_by_role("link", name="API").click()
    page.locator("#announcer").evaluate("one => (one.textContent = '')")
    page.clock.run_for(1200)
    expect(page.locator("#announcer")).to_be_empty()


def test_on_a_phone_words_stay_whole(visitor: Visitor) -> None:
    page = ready(visitor(size=PHONE).open(f"/model?ref={SPARSE}&{MACHINE}&context=8192"))
    copy = page.get_by_role("button", name=f"Copy: {COMMAND}")
    line: float = copy.evaluate("one => parseFloat(getComputedStyle(one).lineHeight)")
    words: float = copy.evaluate(
        "one => { const all = document.createRange(); all.selectNodeContents(one);"
        " return all.getBoundingClientRect().height; }"
    )
    assert words <= line
    row = page.locator("table.bill tbody tr", has_text="modelled, within").last
    memory, basis = (
        row.locator("td")
        .nth(at)
        .evaluate(
            "one => { const all = document.createRange(); all.selectNodeContents(one);"
            " const { left, right } = all.getBoundingClientRect(); return [left, right]; }"
        )
        for at in (0, 2)
    )
    assert memory[1] + 8 <= basis[0]
