"""The model page in a real browser. Its numbers equal those of the command that it shows, to the byte."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Page, expect
from tests.web.browser import PHONE
from tests.web.conftest import DENSE, EXPERTS, MACHINE, MakeVisit, Site
from tests.web.model_pages import (
    COMMAND,
    assert_same_bytes,
    choose_machine,
    hold,
    read,
    read_after_change,
    release,
    run_shown_command,
    wait_for_request,
    wait_until_ready,
)

from edgekit.cli import main

FILE, SPARSE = ".".join((*DENSE, "gguf")), ".".join((*EXPERTS, "gguf"))

# Label of a control, the value to set, and a pattern of the command that the page then shows.
STEPS = (
    ("Context (tokens)", "16,384", "-c 16384"),
    # V follows K: on a GPU, only equal types have kernels.
    ("KV cache (K)", "q8_0", "-ctk q8_0 -ctv q8_0"),
    ("KV cache (V)", "q4_0", "-ctv q4_0"),
    ("Parallel requests", "3", "-np 3"),
    ("Layers on the GPU", "12", "-ngl 12"),
    ("Micro-batch size", "256", "-ub 256"),
    ("KV cache (V)", "", "-ctv q8_0"),
    ("Flash attention", "off", "^(?!.*-ctv).*-fa off"),  # a quantised V cache needs flash attention
    ("Context (tokens)", "40k", "-c 40960"),
)


def set_to(page: Page, label: str, value: str) -> None:
    """Sets a control as a user would: a menu, a text field or a slider."""
    control = page.get_by_label(label, exact=True)
    if control.evaluate("node => node.tagName") == "SELECT":
        control.select_option(value)
        return
    control.fill(value)
    if control.get_attribute("type") != "range":
        control.press("Tab")


def test_every_setting_gives_the_numbers_of_the_command(
    make_visit: MakeVisit,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = wait_until_ready(make_visit().open(f"/model?ref={FILE}&{MACHINE}"))
    totals = set()
    for label, value, pattern in STEPS:
        set_to(page, label, value)
        shown = read(page, pattern)
        assert_same_bytes(shown, run_shown_command(shown.command, site, monkeypatch, capsys))
        total = page.get_by_role("region", name="Answer").get_by_title(
            f"{shown.sizes['Total']:,} bytes"
        )
        expect(total).to_have_text(f"{shown.sizes['Total'] / (1 << 30):.1f} GiB")
        totals.add(shown.sizes["Total"])
    assert len(totals) == len(STEPS)
    # benchmarks/web_page.py measures the steps by the entries of this name.
    assert page.evaluate("performance.getEntriesByName('fit').length") >= len(STEPS)


def test_experts_on_the_cpu_give_the_numbers_of_the_command(
    make_visit: MakeVisit,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = wait_until_ready(make_visit().open(f"/model?ref={SPARSE}&{MACHINE}&context=8192"))
    before = read(page)
    page.get_by_label("All experts on the CPU").check()
    after = read(page, "-cmoe")
    assert_same_bytes(after, run_shown_command(after.command, site, monkeypatch, capsys))
    assert after.command != before.command


@pytest.mark.parametrize("engine", ["vllm", "mlx"])
def test_other_engines_give_the_numbers_of_the_command(
    engine: str,
    make_visit: MakeVisit,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = MACHINE if engine == "vllm" else "device=M3+Max+64GB"
    page = wait_until_ready(make_visit().open(f"/model?ref=qwen3-8b&context=8192&{machine}"))
    page.get_by_label("Engine", exact=True).select_option(engine)
    shown = read(page, f"--engine {engine}")
    assert_same_bytes(shown, run_shown_command(shown.command, site, monkeypatch, capsys))


def test_model_from_the_hub_opens_by_id_and_by_url(
    make_visit: MakeVisit,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each is typed into the model field; the page then has the model in its own URL."""
    page = make_visit().open(f"/model?{MACHINE}")
    page.get_by_role("main").get_by_label("Model ID, URL or file").fill("acme/tiny-GGUF:Q8_0")
    page.get_by_role("button", name="Check", exact=True).click()
    page.wait_for_url(re.compile("ref=acme"))
    shown = read(wait_until_ready(page))
    assert_same_bytes(shown, run_shown_command(shown.command, site, monkeypatch, capsys))
    expect(page.get_by_role("heading", level=1)).to_have_text("acme/tiny-GGUF:Q8_0")
    assert any("tiny-Q8_0.gguf" in line for line in site.hub.log("cdn"))
    address = f"{site.hub.cdn}/acme/tiny-GGUF/tiny-Q8_0.gguf"
    page.get_by_role("main").get_by_label("Model ID, URL or file").fill(address)
    page.get_by_role("button", name="Check", exact=True).click()
    assert address in read(page, re.escape(address)).command


def test_arrow_keys_change_the_context(make_visit: MakeVisit) -> None:
    """Also at short contexts, where a step of the log scale is less than 256 tokens, to which KV caches are rounded."""
    page = wait_until_ready(make_visit().open(f"/model?ref={FILE}&{MACHINE}&context=1024"))
    slider = page.get_by_label("Context, log scale")
    slider.focus()
    for key, compare in (("ArrowRight", int.__gt__), ("ArrowLeft", int.__lt__)):
        before = read(page)
        slider.press(key)
        slider.press(key)
        assert compare(read_after_change(page, before).sizes["KV cache"], before.sizes["KV cache"])


def test_copied_link_restores_all_settings(make_visit: MakeVisit) -> None:
    visit = make_visit()
    page = wait_until_ready(visit.open(f"/model?ref={FILE}&{MACHINE}"))
    for label, value, pattern in STEPS[:5]:
        set_to(page, label, value)
        shown = read(page, pattern)
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link: str = page.evaluate("navigator.clipboard.readText()")
    other = wait_until_ready(visit.open(link.removeprefix(visit.origin)))
    assert read(other, "-ngl 12") == shown
    expect(other.get_by_label("Parallel requests")).to_have_value("3")
    expect(other.get_by_label("KV cache (K)")).to_have_value("q8_0")


def test_command_can_be_copied_and_answer_saved(make_visit: MakeVisit, tmp_path: Path) -> None:
    """The command goes to the clipboard; picture and answer are saved as PNG, SVG and JSON."""
    page = wait_until_ready(make_visit().open(f"/model?ref={FILE}&{MACHINE}&context=4096"))
    name = "llama.cpp command"
    page.get_by_role("button", name=f"Copy: {name}").click()
    copied: str = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.get_by_label(name, exact=True).inner_text()
    assert copied.startswith("llama-server")
    assert "-c 4096" in copied
    expect(page.get_by_label("KV cache types shown").get_by_role("button").first).to_be_visible()
    shown = read(page)
    paths = {}
    for kind in ("PNG", "SVG", "JSON"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save as {kind}").click()
        paths[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(paths[kind])
        assert paths[kind].suffix == f".{kind.lower()}"
    assert paths["PNG"].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert paths["PNG"].stat().st_size > 10_000
    picture = paths["SVG"].read_text(encoding="utf-8")
    assert ET.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert "RTX 4090" in picture
    answer = json.loads(paths["JSON"].read_text(encoding="utf-8"))
    assert answer["fit"]["estimate"]["total_bytes"] == shown.sizes["Total"]
    assert answer["link"] == page.url
    text = "".join(ET.fromstring(picture).itertext())
    assert all(f"usable, {bar['share']}" in text for bar in answer["fit"]["bars"])


def test_suggested_change_can_be_applied(make_visit: MakeVisit) -> None:
    page = wait_until_ready(
        make_visit().open(
            "/model?ref=qwen3-32b&engine=llama.cpp&context=32768&device=RTX+3060+12GB&ram=8G"
        )
    )
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text("Does not fit")
    before = read(page)
    page.get_by_role("button", name=re.compile("^Apply")).first.click()
    assert read_after_change(page, before).sizes["Total"] != before.sizes["Total"]


def test_late_answers_are_dropped(make_visit: MakeVisit) -> None:
    """A late answer of another machine is not shown. Numbers of other settings are marked as stale."""
    page = wait_until_ready(
        make_visit(expected_faults=(r"status of 422",)).open(
            "/model?ref=qwen3-8b&engine=vllm&context=8192&device=H100"
        )
    )
    answer = page.get_by_role("region", name="Answer")
    grid = page.locator(".model-grid")
    requests = hold(page, "fit")
    page.get_by_label("GPU memory utilization").fill("0.7")
    wait_for_request(page, requests)
    expect(page.locator("output[for=set-gpu_memory_utilization]")).to_have_text("70 %")
    release(page, "fit", requests)
    read(page, "--gpu-memory-utilization 0.7")
    field = page.get_by_label("Context (tokens)")
    requests = hold(page, "fit")
    field.fill("16k")
    field.press("Enter")
    expect(field).to_have_value("16,384")
    wait_for_request(page, requests)
    expect(grid).to_have_class(re.compile("stale"))
    choose_machine(page, device=["M3 Max 64GB"])
    expect(answer).to_contain_text("Cannot run")
    release(page, "fit", requests)
    page.wait_for_timeout(300)
    expect(answer).to_contain_text("Cannot run")
    expect(page.get_by_label(COMMAND, exact=True)).to_be_hidden()
    choose_machine(page, device=["H100"])
    read(page, "-c 16384")
    expect(grid).not_to_have_class(re.compile("stale"))


def test_tensor_split_is_dropped_for_a_single_gpu(make_visit: MakeVisit) -> None:
    """The tensor split of two GPUs is dropped for a single GPU; the other settings stay."""
    query = "device=2x+RTX+3090&ram=64G&engine=llama.cpp&context=8192&mix=Q8_0&tensor_split=1%2C3"
    page = wait_until_ready(make_visit().open(f"/model?ref=catalog:qwen3-8b&{query}"))
    read(page, "-ts 1,3")
    choose_machine(page, device=["RTX 4090"], ram="64G")
    assert "-c 8192" in read(page, r"^(?!.*-ts).*--mix Q8_0.*$").command
    expect(page.get_by_role("region", name="Answer")).to_contain_text("RTX 4090")


def test_commands_for_other_programs_are_hidden_when_outdated(make_visit: MakeVisit) -> None:
    page = wait_until_ready(make_visit().open(f"/model?ref={FILE}&{MACHINE}&context=4096"))
    button = page.get_by_role("button", name="Show commands for other programs")
    decisions = page.locator(".decisions")
    button.click()
    expect(decisions).to_be_visible()
    set_to(page, "Parallel requests", "2")  # not a field of a plan
    read(page, "-np 2")
    expect(decisions).to_be_visible()
    set_to(page, "Context (tokens)", "8192")
    expect(decisions).to_be_hidden()
    requests = hold(page, "plan")
    button.click()
    wait_for_request(page, requests)
    set_to(page, "Context (tokens)", "16384")
    expect(button).to_be_enabled()
    release(page, "plan", requests)
    read(page, "-c 16384")
    expect(decisions).to_be_hidden()


def save(page: Page, kind: str) -> str:
    """The content of the file that the page saves."""
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save as {kind}").click()
    return download.value.path().read_text(encoding="utf-8")


def test_saved_file_is_complete_and_of_the_current_settings(make_visit: MakeVisit) -> None:
    """Saving waits for the numbers and the curves of the current settings."""
    page = make_visit(expected_faults=(r"status of 503",)).open(
        f"/model?ref={FILE}&{MACHINE}&context=4096"
    )
    requests = hold(page, "curves")
    wait_until_ready(page)
    wait_for_request(page, requests)
    expect(page.get_by_text("Loading the curves")).to_be_visible()
    button = page.get_by_role("button", name="Save as SVG")
    with page.expect_download() as download:
        button.click()
        expect(button).to_have_attribute("aria-busy", "true")
        release(page, "curves", requests)
    picture = download.value.path().read_text(encoding="utf-8")
    assert "usable 22.5 GiB" in picture
    assert "stroke-dasharray" in picture
    set_to(page, "Batch size", "1024")
    answer = json.loads(save(page, "JSON"))
    assert "batch=1024" in answer["link"]
    assert answer["fit"]["flags"]["batch"] == answer["check"]["flags"]["batch"] == "1024"
    assert answer["curves"]
    page.route(
        "**/api/v1/curves",
        lambda route: route.fulfill(status=503, json={"error": {"type": "E", "message": "no"}}),
    )
    set_to(page, "Batch size", "512")
    picture = save(page, "SVG")
    assert "context (tokens)" not in picture
    expect(page.get_by_text("Can't draw the curves: no")).to_be_visible()
    assert "curves" not in json.loads(save(page, "JSON"))
    page.unroute("**/api/v1/curves")
    page.get_by_role("button", name="Try again").press("Enter")
    expect(page.get_by_label("KV cache types shown").get_by_role("button").first).to_be_visible()
    expect(page.locator(".plot-stage")).to_be_focused()  # the button is gone


def test_model_that_does_not_fit_has_reason_and_suggestions(
    make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page shows the reason, how well the numbers are known, and suggestions; those it can apply have a button."""
    visit, changes = make_visit(), ".changes li"
    address = "/model?ref=catalog:qwen3-32b&type_k=f16&type_v=f16&device=m3-max-36"
    page = wait_until_ready(visit.open(f"{address}&context=40960&n_gpu_layers=all"))
    limit = page.locator(changes, has_text="iogpu.wired_limit_mb")
    expect(limit).to_be_visible()
    expect(limit.get_by_role("button")).to_have_count(0)
    page.goto(f"{visit.origin}{address}&context=81920")
    wait_until_ready(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("qwen3-32b")
    answer = page.get_by_role("region", name="Answer")
    expect(answer.get_by_role("heading", name="Why")).to_be_visible()
    expect(answer).to_contain_text("the longest context that fits is 40,960 tokens")
    main(shlex.split("check qwen3-32b -c 81920 -ctk f16 -ctv f16 --device m3-max-36 --json"))
    headline = json.loads(capsys.readouterr().out)["headline"]
    expect(answer.locator(".told")).to_have_text(headline)
    notes = page.get_by_role("region", name="Notes")
    assert main(shlex.split(read(page).command)[1:]) == 0
    basis = re.search(r"^Basis +(.*?)\n\n", capsys.readouterr().out, re.DOTALL | re.MULTILINE)
    assert basis is not None
    expect(notes).to_contain_text("; ".join(row.strip() for row in basis[1].splitlines()))
    expect(notes).not_to_contain_text("read from the file")
    plot = page.get_by_role("region", name="Memory vs context")
    expect(plot).to_contain_text("The curves end at 40,960 tokens")
    mac = page.locator(changes, has_text="smallest current Mac")
    name, _, _ = mac.inner_text().partition(":")
    mac.get_by_role("button").press("Enter")
    expect(answer).to_contain_text(name)
    expect(page.locator(".changes-panel h2:focus, .headline:focus")).to_have_count(1)


def test_invalid_number_is_explained_and_reset(make_visit: MakeVisit) -> None:
    page = wait_until_ready(
        make_visit(size=(1280, 560)).open(f"/model?ref={FILE}&{MACHINE}&job=6000%2B800")
    )
    expect(page.locator("#context-hint")).to_contain_text("prompt 6,000 + 800 new tokens")
    assert "-c 6864" in read(page).command
    field = page.get_by_label("Parallel requests")
    set_to(page, "Parallel requests", "4")
    before = read(page, "-c 27456 -np 4")  # 6,864 tokens for each of the four requests
    for invalid in ("0", "2.5", "99999999999"):
        field.fill(invalid)
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
    page.get_by_label("Micro-batch size").focus()  # must scroll out from under the buttons
    bottom, top = (
        page.evaluate(
            "([name, edge]) => document.querySelector(name).getBoundingClientRect()[edge]", pair
        )
        for pair in (["#set-ubatch", "bottom"], [".side-buttons", "top"])
    )
    assert bottom <= top
    side.evaluate("node => node.scrollTo(0, node.scrollHeight)")
    expect(side).not_to_have_class(re.compile("more"))


def test_two_tabs_keep_their_own_settings(make_visit: MakeVisit) -> None:
    visit = make_visit()
    tabs = [
        wait_until_ready(visit.open(f"/model?ref={FILE}&{MACHINE}&context={size}"))
        for size in (4096, 8192)
    ]
    for sizes in ((5120, 9216), (6144, 10240), (7168, 11264)):
        for tab, size in zip(tabs, sizes, strict=True):
            tab.get_by_label("Context (tokens)").fill(str(size))
            tab.get_by_label("Context (tokens)").press("Enter")
    first, second = read(tabs[0], "-c 7168"), read(tabs[1], "-c 11264")
    per_token = 32 * 8 * (128 + 128) * 2  # layers, KV heads, dimensions of K and V, bytes of f16
    assert first.sizes["KV cache"] == 7168 * per_token
    assert second.sizes["KV cache"] == 11264 * per_token


def test_tip_of_the_plot_follows_the_curves(make_visit: MakeVisit) -> None:
    """It shows the numbers of the new curves, and only of visible ones."""
    page = wait_until_ready(make_visit().open(f"/model?ref={FILE}&{MACHINE}&context=4096"))
    lines = page.get_by_label("KV cache types shown")
    expect(lines.get_by_role("button").first).to_be_visible()
    tip = page.locator(".plot-tip")
    page.get_by_role("slider", name=re.compile("^Context: use the arrow keys")).press("End")
    expect(tip).to_contain_text("131,072 tokens")
    page.mouse.move(0, 0)
    page.locator(".plot-stage").hover()
    before = tip.inner_text()
    page.locator("#set-parallel").evaluate(
        "node => { node.value = '8'; node.dispatchEvent(new Event('input')); }"
    )
    read(page, "-np 8")
    expect(page.locator("html")).to_have_attribute("data-curves", "ready")
    expect(tip).not_to_have_text(before)
    page.locator(".entry", has_text="q4_0").evaluate("node => node.click()")
    expect(tip.locator("li")).to_have_count(2)


def test_hint_on_cpu_layers_is_shown_only_for_llamacpp(make_visit: MakeVisit) -> None:
    """vLLM cannot move layers to the CPU. The headings of the settings do not look like links."""
    page = wait_until_ready(
        make_visit(size=(1280, 560)).open(f"/model?ref=qwen3-8b&{MACHINE}&context=4096")
    )
    hint = page.get_by_text("with more layers on the CPU")
    expect(hint).to_be_visible()
    expect(page.locator(".side")).to_have_class(re.compile("more"))
    heading_colour, text_colour = (
        page.locator(selector).evaluate("node => getComputedStyle(node).color")
        for selector in (".side h2", "body")
    )
    assert heading_colour == text_colour
    page.get_by_label("Engine", exact=True).select_option("vllm")
    read(page, "--engine vllm")
    expect(hint).to_have_count(0)


def test_error_replaces_the_verdict(make_visit: MakeVisit) -> None:
    """Settings that contradict each other are an alert without a verdict; a refused cache type gives its reason."""
    page = wait_until_ready(
        make_visit(expected_faults=(r"status of 4\d\d",)).open(
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
    wait_until_ready(page)
    page.get_by_text("More KV cache types").click()
    refused = page.locator('.entry[data-cache="6 bit"]')
    refused.click()
    plot = page.get_by_role("region", name="Memory vs context")
    expect(plot.get_by_role("status")).to_contain_text("6 bit: ")
    expect(refused).to_be_focused()


def fail_call(page: Page, call: str, status: int, *, times: int | None = None) -> None:
    """Requests of a call get an error, as from a fail_call server."""
    answer = {"error": {"type": "TooManyError", "message": f"{call}: not now"}}
    page.route(
        f"**/api/v1/{call}", lambda route: route.fulfill(status=status, json=answer), times=times
    )


def test_failed_request_can_be_tried_again(make_visit: MakeVisit) -> None:
    """Meanwhile the numbers of `fit` are still updated, and those of `check` are marked as old."""
    page = wait_until_ready(
        make_visit(expected_faults=(r"status of (429|504)", r"net::ERR_FAILED")).open(
            f"/model?ref={FILE}&{MACHINE}&context=8192"
        )
    )
    html, answer = page.locator("html"), page.get_by_role("region", name="Answer")
    alert = answer.get_by_role("alert")
    try_again = answer.get_by_role("button", name="Try again")
    expect(html).to_have_attribute("data-check", "ready")
    fail_call(page, "check", 429)
    set_to(page, "Parallel requests", "2")
    expect(alert).to_contain_text("check: not now")
    expect(answer.get_by_text("Max context")).to_be_visible()
    expect(html).to_have_attribute("data-check", "old")
    assert "-np 2" in read(page).command
    page.unroute("**/api/v1/check")
    fail_call(page, "check", 504, times=1)
    try_again.press("Enter")
    page.wait_for_event("requestfinished", lambda request: request.url.endswith("/check"))
    expect(try_again).to_be_focused()
    try_again.press("Enter")
    expect(alert).to_be_empty()
    expect(html).to_have_attribute("data-check", "ready")
    expect(page.locator(".headline")).to_be_focused()
    fail_call(page, "fit", 429, times=1)  # the check that follows succeeds
    set_to(page, "Parallel requests", "3")
    read(page, "-np 3")
    expect(alert).to_be_empty()
    page.route("**/api/v1/check", lambda route: route.abort(), times=1)
    page.get_by_label("Engine", exact=True).select_option("vllm")
    expect(try_again).to_be_visible()  # there is no earlier answer of this engine
    expect(page.locator(".headline")).to_be_empty()


def test_k_and_v_types_of_an_mla_model_change_together(make_visit: MakeVisit) -> None:
    """An MLA model has one cache: no "Cannot run" in between; a link with two types offers a fix."""
    page = make_visit(expected_faults=(r"status of 422",)).open(
        f"/model?ref=deepseek-v2-lite&engine=llama.cpp&{MACHINE}&context=4096&type_k=q8_0&type_v=f16"
    )
    expect(page.get_by_role("alert")).to_contain_text("different K (q8_0) and V (f16)")
    page.get_by_role("link", name="Use f16 for both").click()
    wait_until_ready(page)
    keys, values = page.get_by_label("KV cache (K)"), page.get_by_label("KV cache (V)")
    page.locator(".headline").evaluate(
        "node => new MutationObserver(() => (window.headlines = (window.headlines ?? '') + node.textContent))"
        ".observe(node, { childList: true })"
    )
    set_to(page, "KV cache (K)", "q8_0")
    read(page, "-ctk q8_0 -ctv q8_0")
    expect(values).to_have_value("q8_0")
    expect(page.locator(".side").get_by_text("one KV cache between K and V")).to_be_visible()
    set_to(page, "KV cache (V)", "q4_0")
    read(page, "-ctk q4_0 -ctv q4_0")
    expect(keys).to_have_value("q4_0")
    assert "Cannot run" not in page.evaluate("window.headlines")


def test_page_that_was_left_announces_nothing(make_visit: MakeVisit) -> None:
    visit = make_visit()
    visit.context.clock.install()
    page = wait_until_ready(visit.open(f"/model?ref={FILE}&{MACHINE}&context=4096"))
    expect(page.locator("#announcer")).not_to_be_empty()  # the model was checked
    page.clock.run_for(1200)  # a verdict is announced a moment after the last change
    expect(page.locator("#announcer")).to_contain_text("Fits")
    set_to(page, "Context (tokens)", "8192")
    read(page, "-c 8192")
    page.get_by_role("link", name="API").click()
    page.locator("#announcer").evaluate("node => (node.textContent = '')")
    page.clock.run_for(1200)
    expect(page.locator("#announcer")).to_be_empty()


# The bounding box of an element's text.
TEXT_BOX = """node => {
  const range = document.createRange();
  range.selectNodeContents(node);
  return range.getBoundingClientRect().toJSON();
}"""


def test_labels_on_a_phone_neither_wrap_nor_overlap(make_visit: MakeVisit) -> None:
    page = wait_until_ready(
        make_visit(size=PHONE).open(f"/model?ref={SPARSE}&{MACHINE}&context=8192")
    )
    copy = page.get_by_role("button", name=f"Copy: {COMMAND}")
    line_height: float = copy.evaluate("node => parseFloat(getComputedStyle(node).lineHeight)")
    assert copy.evaluate(TEXT_BOX)["height"] <= line_height
    row = page.locator("table.bill tbody tr", has_text="modelled, within").last
    memory, basis = (row.locator("td").nth(column).evaluate(TEXT_BOX) for column in (0, 2))
    assert memory["right"] + 8 <= basis["left"]
