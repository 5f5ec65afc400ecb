"""The model page in a real browser. Its numbers equal those of the command that it shows, to the byte."""

from __future__ import annotations

import json
import re
import shlex
import struct
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.web.browser import PHONE, new_visit
from tests.web.conftest import DENSE, EXPERTS, MACHINE, MakeVisit, Site
from tests.web.model_pages import (
    COMMAND,
    assert_same_bytes,
    choose_machine,
    enter_model,
    hold,
    read,
    read_after_change,
    release,
    run_shown_command,
    wait_for_answer,
    wait_for_request,
    wait_until_ready,
)
from tests.web.serving import start_process

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


def memory_bytes(page: Page) -> int:
    """What the answer's figure says of the memory that decides."""
    title = page.locator("[data-figure=memory] dd").get_attribute("title") or ""
    return int(re.sub(r"\D", "", title))


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
        answer = run_shown_command(shown.command, site, monkeypatch, capsys)
        assert_same_bytes(shown, answer)
        assert memory_bytes(page) in {sum(pool.values()) for pool in answer["pools"].values()}
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
    """Each is typed into the search box; the page then has the model in its own URL."""
    page = make_visit().open(f"/model?{MACHINE}")
    enter_model(page, "acme/tiny-GGUF:Q8_0")
    page.wait_for_url(re.compile("ref=acme"))
    shown = read(wait_until_ready(page))
    assert_same_bytes(shown, run_shown_command(shown.command, site, monkeypatch, capsys))
    expect(page.get_by_role("heading", level=1)).to_have_text("acme/tiny-GGUF:Q8_0")
    assert any("tiny-Q8_0.gguf" in line for line in site.hub.log("cdn"))
    address = f"{site.hub.cdn}/acme/tiny-GGUF/tiny-Q8_0.gguf"
    enter_model(page, address)
    expect(page.get_by_role("heading", level=1)).to_have_text(address)
    assert address in read(wait_until_ready(page), re.escape(address)).command


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
    page.get_by_role("button", name="Share", exact=True).click()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link: str = page.evaluate("navigator.clipboard.readText()")
    other = wait_until_ready(visit.open(link.removeprefix(visit.origin)))
    assert read(other, "-ngl 12") == shown
    expect(other.get_by_label("Parallel requests")).to_have_value("3")
    expect(other.get_by_label("KV cache (K)")).to_have_value("q8_0")


def test_command_can_be_copied(make_visit: MakeVisit) -> None:
    page = wait_until_ready(make_visit().open(f"/model?ref={FILE}&{MACHINE}&context=4096"))
    page.get_by_role("button", name="Copy: llama-server").click()
    copied: str = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.get_by_label("llama-server", exact=True).inner_text()
    assert copied.startswith("llama-server")
    assert "-c 4096" in copied


def open_share(page: Page) -> Locator:
    page.get_by_role("button", name="Share", exact=True).click()
    dialog = page.get_by_role("dialog", name="Share this answer")
    expect(dialog).to_be_visible()
    return dialog


def test_answer_can_be_shared(
    make_visit: MakeVisit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The dialog has the picture as PNG and SVG, the JSON, and a command that writes the badge."""
    page = wait_until_ready(make_visit().open(f"/model?ref=qwen3-8b&{MACHINE}&context=4096"))
    shown = read(page)
    dialog = open_share(page)
    picture = dialog.get_by_role("img")
    expect(picture).to_have_js_property("naturalWidth", 1200)
    paths = {}
    for kind in ("PNG", "SVG", "JSON"):
        with page.expect_download() as download:
            dialog.get_by_role("button", name=f"Download {kind}").click()
        paths[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(paths[kind])
        assert paths[kind].suffix == f".{kind.lower()}"
    png = paths["PNG"].read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) == (1200, 630)
    text = "".join(ET.fromstring(paths["SVG"].read_text(encoding="utf-8")).itertext())
    assert "RTX 4090" in text
    answer = json.loads(paths["JSON"].read_text(encoding="utf-8"))
    assert answer["fit"]["estimate"]["total_bytes"] == shown.sizes["Total"]
    assert answer["link"] == page.url
    dialog.get_by_role("button", name="Copy badge").click()
    assert "](badge.svg)" in page.evaluate("navigator.clipboard.readText()")
    words = shlex.split(dialog.get_by_label("Command that writes the files").inner_text())
    monkeypatch.chdir(tmp_path)
    assert words[0] == "edgekit"
    assert main(words[1:]) == 0
    capsys.readouterr()
    assert "8B" in (tmp_path / "badge.svg").read_text(encoding="utf-8")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Share", exact=True)).to_be_focused()


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


def texts_of_tab(page: Page, label: str) -> list[str]:
    """The whole texts of a tab's commands, of every program in it."""
    page.get_by_role("tab", name=label, exact=True).click()
    panel = page.get_by_role("tabpanel", name=label)
    expect(panel.locator("pre").first).to_be_visible()
    programs = panel.get_by_role("group").get_by_role("button")
    texts = []
    for at in range(max(1, programs.count())):
        if programs.count():
            programs.nth(at).click()
        folded = panel.get_by_role("button", name=re.compile("^Show all"))
        while folded.count():
            folded.first.click()
        texts += panel.locator("pre").all_inner_texts()
    return texts


def plan_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    main(["plan", *words, "--json"])
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def test_commands_in_the_tabs_equal_those_of_plan(
    make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another engine is asked when its tab is opened, and says its verdict above its commands."""
    page = wait_for_answer(make_visit().open(f"/model?ref=qwen3-8b&{MACHINE}&context=8192"))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    machine = ("--device", "RTX 4090", "--ram", "64G")
    plan = plan_of(capsys, "qwen3-8b", *machine, "-c", "8192")
    for label, programs in (
        ("llama.cpp", {"llama-server", "llama-cli"}),
        ("Ollama", {"ollama"}),
        ("LM Studio", {"lm-studio"}),
    ):
        expected = [one["text"] for one in plan["commands"] if one["program"] in programs]
        shown = texts_of_tab(page, label)
        assert [text.rstrip() for text in shown] == [text.rstrip() for text in expected]
    assert not [url for url in asked if url.endswith("/plan")]
    other = plan_of(capsys, "qwen3-8b", *machine, "-c", "8192", "--engine", "vllm")
    assert texts_of_tab(page, "vLLM") == [one["text"] for one in other["commands"]]
    expect(page.locator(".tab-told")).to_have_text(f"vLLM: {other['headline']}")
    check = texts_of_tab(page, "EdgeKit")[0]
    capsys.readouterr()
    assert main([*shlex.split(check)[1:], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    expect(page.locator(".told .sentence")).to_have_attribute("data-told", answer["headline"])


def test_tabs_work_with_arrow_keys_and_follow_the_settings(make_visit: MakeVisit) -> None:
    page = wait_for_answer(
        make_visit(expected_faults=(r"status of 422",)).open(
            f"/model?ref=qwen3-8b&{MACHINE}&context=4096"
        )
    )
    first = page.get_by_role("tab", name="llama.cpp")
    expect(first).to_have_attribute("aria-selected", "true")
    first.press("End")
    expect(page.get_by_role("tab", name="EdgeKit")).to_be_focused()
    page.keyboard.press("Home")
    expect(first).to_be_focused()
    command = page.get_by_label("llama-server", exact=True)
    expect(command).to_contain_text("-c 4096")
    set_to(page, "Context (tokens)", "8192")
    expect(command).to_contain_text("-c 8192")
    page.get_by_role("tab", name="Ollama").click()
    expect(page.get_by_label("Ollama server", exact=True)).to_contain_text("LENGTH=8192")
    page.get_by_role("tab", name="MLX").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("Apple silicon")


def test_row_of_the_ladder_gives_the_answer_of_check(
    make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    page = wait_for_answer(make_visit().open(f"/model?ref=qwen3-8b&{MACHINE}"))
    rows = page.get_by_role("radiogroup", name="Quantisations").get_by_role("radio")
    expect(rows.first).to_be_visible()
    chosen = page.get_by_role("radio", checked=True)
    expect(chosen).to_contain_text("EdgeKit's choice")
    chosen.press("ArrowDown")
    page.keyboard.press("Enter")
    quant = page.evaluate("document.activeElement.dataset.quant")
    expect(chosen).to_have_attribute("data-quant", quant)
    expect(page.get_by_label("Quantisation", exact=True)).to_have_value(quant)
    words = f"check qwen3-8b --quant {quant} --device 'RTX 4090' --ram 64G --json"
    capsys.readouterr()
    assert main(shlex.split(words)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["quantization"] == quant
    expect(page.locator(".told .sentence")).to_have_attribute("data-told", answer["headline"])
    assert_figures(page, answer)
    row = page.locator(f"[data-quant={quant}]")
    expect(row).to_contain_text(f"{answer['download_bytes'] / 1e9:.1f} GB")
    page.get_by_label("Quantisation", exact=True).select_option("")
    expect(chosen).to_contain_text("EdgeKit's choice")


def assert_figures(page: Page, answer: dict[str, Any]) -> None:
    """The four large figures are those of a check."""
    speed, memory, context, download = (
        page.locator(f"[data-figure={name}] dd")
        for name in ("speed", "memory", "context", "download")
    )
    expect(context).to_have_attribute("title", f"{answer['max_context']:,} tokens")
    expect(context).to_contain_text(f"{answer['max_context'] // 1024}K")
    expect(download).to_have_attribute("title", f"{answer['download_bytes']:,} bytes")
    expect(download).to_contain_text(f"{answer['download_bytes'] / 1e9:.1f} GB")
    expect(memory).to_have_attribute("title", f"{answer['required_bytes']:,} bytes")
    required, available = (
        answer[f"{name}_bytes"] / (1 << 30) for name in ("required", "available")
    )
    expect(memory).to_have_text(f"{required:.1f} of {available:.1f} GiB")
    rate = re.search(r"about ([\d.,]+) tokens/s \((.*?)\)", answer["headline"])
    assert rate is not None
    expect(speed).to_have_text(f"≈ {rate[1]} tokens/s ({rate[2]})")


@pytest.mark.parametrize(
    "words",
    [
        "gemma-3-27b --device 'RTX 4090' --ram 64G",
        "qwen3-30b-a3b --device 'RTX 3060' --ram 32G",
        "qwen3-32b --device m3-max-64",
    ],
)
def test_page_without_settings_shows_what_check_says(
    words: str, make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same sentence and figures, with nothing chosen but the model and the machine."""
    model, *flags = shlex.split(words)
    query = urlencode(
        [(name[2:], value) for name, value in zip(flags[::2], flags[1::2], strict=True)]
    )
    page = wait_for_answer(make_visit().open(f"/model?ref={model}&{query}"))
    capsys.readouterr()
    assert main(["check", model, *flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    sentence = page.locator(".told .sentence")
    expect(sentence).to_have_attribute("data-told", answer["headline"])
    expect(sentence).to_contain_text(f"Runs {answer['place']} at about")
    expect(sentence).to_contain_text(f"room for {answer['max_context'] // 1024}K tokens")
    assert_figures(page, answer)
    expect(page.get_by_role("tabpanel").locator("pre").first).to_have_text(answer["command"])


def test_folded_parts_compute_nothing_until_they_are_opened(make_visit: MakeVisit) -> None:
    visit = make_visit()
    page = visit.open("/model")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.goto(f"{visit.origin}/model?ref={FILE}&{MACHINE}&context=4096")
    wait_for_answer(page)
    expect(page.get_by_role("radio").first).to_be_visible()
    assert "curves" not in asked
    assert page.locator("table.bill, .strip rect, .notes-panel li").count() == 0
    page.get_by_text("Memory vs context").click()
    expect(page.get_by_label("KV cache types shown").get_by_role("button").first).to_be_visible()
    assert asked.count("curves") == 1
    page.get_by_text("Memory breakdown", exact=True).click()
    expect(page.locator("table.bill")).to_be_visible()
    page.get_by_text("Memory vs context").click()
    set_to(page, "Context (tokens)", "8192")
    read(wait_until_ready(page), "-c 8192")


LAYOUT_SHIFT = """new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.shift = (window.shift ?? 0) + (entry.hadRecentInput ? 0 : entry.value);
}).observe({ type: "layout-shift", buffered: true })"""


@pytest.mark.parametrize("size", [(1440, 900), PHONE], ids=["wide", "phone"])
def test_layout_does_not_shift_while_the_page_loads(
    size: tuple[int, int], make_visit: MakeVisit
) -> None:
    visit = make_visit(size=size)
    visit.context.add_init_script(LAYOUT_SHIFT)
    page = wait_for_answer(visit.open(f"/model?ref=gemma-3-27b&{MACHINE}"))
    expect(page.get_by_role("radio").first).to_be_attached()
    assert page.evaluate("window.shift ?? 0") < 0.02


def test_settings_are_a_sheet_on_a_phone(make_visit: MakeVisit) -> None:
    page = wait_for_answer(
        make_visit(size=PHONE).open(f"/model?ref=qwen3-8b&{MACHINE}&context=4096")
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    sheet = page.get_by_role("dialog", name="Settings")
    expect(sheet).to_be_hidden()
    page.get_by_role("button", name=re.compile("^Settings")).click()
    expect(sheet).to_be_visible()
    set_to(page, "Context (tokens)", "8192")
    page.get_by_role("button", name="Close the settings").click()
    expect(sheet).to_be_hidden()
    expect(page.get_by_label("llama-server", exact=True)).to_contain_text("-c 8192")
    tops = page.evaluate(  # in one call: the page may be scrolling
        "selectors => selectors.map((one) => document.querySelector(one).getBoundingClientRect().top)",
        [".told", ".headline .figures", ".commands-panel", ".bars", ".ladder-panel"],
    )
    assert tops == sorted(tops)


def test_dense_model_has_no_settings_for_experts(make_visit: MakeVisit) -> None:
    visit = make_visit()
    page = wait_until_ready(visit.open(f"/model?ref={FILE}&{MACHINE}&context=4096"))
    expect(page.get_by_label("Layers on the GPU")).to_be_visible()
    expect(page.get_by_label("All experts on the CPU")).to_have_count(0)
    expect(page.locator(".model-facts")).to_contain_text("parameters")
    expect(page.locator(".model-facts")).not_to_contain_text("active")
    page = wait_until_ready(visit.open(f"/model?ref=qwen3-30b-a3b&{MACHINE}&context=4096"))
    expect(page.get_by_label("All experts on the CPU")).to_have_count(1)
    expect(page.locator(".model-facts")).to_contain_text("3.4B active")


def test_answer_from_the_index_says_that_the_hub_could_not_be_read(
    browser: Browser, site: Site
) -> None:
    with start_process("--offline", env=site.environment) as server:
        visit = new_visit(browser, server.address)
        page = wait_for_answer(visit.open(f"/model?ref=Qwen/Qwen3-8B&{MACHINE}"))
        first = page.locator(".headline > :first-child")
        expect(first).to_contain_text("Hugging Face could not be reached")
        expect(page.locator(".model-facts")).to_contain_text("8.2B parameters")
        assert not visit.close()


def test_engine_that_needs_the_ram_of_the_pc_asks_for_it(make_visit: MakeVisit) -> None:
    page = make_visit().open("/model?ref=qwen3-8b&device=RTX+4090&engine=stream")
    expect(page.get_by_role("alert")).to_contain_text("runs in the PC's RAM")
    expect(page.get_by_role("main")).not_to_contain_text("--ram")
    page.get_by_role("button", name="32 GB RAM").click()
    wait_for_answer(page)
    assert "ram=32G" in page.url


def save_json(page: Page) -> dict[str, Any]:
    """The JSON that the share dialog saves."""
    dialog = open_share(page)
    with page.expect_download() as download:
        dialog.get_by_role("button", name="Download JSON").click()
    page.keyboard.press("Escape")
    answer: dict[str, Any] = json.loads(download.value.path().read_text(encoding="utf-8"))
    return answer


def test_saved_file_is_complete_and_of_the_current_settings(make_visit: MakeVisit) -> None:
    """Saving waits for the numbers and the curves of the current settings."""
    page = make_visit(expected_faults=(r"status of 503",)).open(
        f"/model?ref={FILE}&{MACHINE}&context=4096"
    )
    requests = hold(page, "curves")
    wait_until_ready(page)
    wait_for_request(page, requests)
    expect(page.get_by_text("Loading the curves")).to_be_visible()
    dialog = open_share(page)
    button = dialog.get_by_role("button", name="Download JSON")
    with page.expect_download() as download:
        button.click()
        expect(button).to_have_attribute("aria-busy", "true")
        release(page, "curves", requests)
    assert json.loads(download.value.path().read_text(encoding="utf-8"))["curves"]
    page.keyboard.press("Escape")
    set_to(page, "Batch size", "1024")
    answer = save_json(page)
    assert "batch=1024" in answer["link"]
    assert answer["fit"]["flags"]["batch"] == answer["check"]["flags"]["batch"] == "1024"
    assert answer["curves"]
    page.route(
        "**/api/v1/curves",
        lambda route: route.fulfill(status=503, json={"error": {"type": "E", "message": "no"}}),
    )
    set_to(page, "Batch size", "512")
    expect(page.get_by_text("Can't draw the curves: no")).to_be_visible()
    assert "curves" not in save_json(page)
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
    expect(page.get_by_role("heading", level=1)).to_have_text("Qwen3 32B")
    answer = page.get_by_role("region", name="Answer")
    expect(answer.get_by_role("list", name="Why")).to_be_visible()
    expect(answer).to_contain_text("the longest context that fits is 40,960 tokens")
    main(shlex.split("check qwen3-32b -c 81920 -ctk f16 -ctv f16 --device m3-max-36 --json"))
    headline = json.loads(capsys.readouterr().out)["headline"]
    expect(answer.locator(".told")).to_have_text(headline)
    notes = page.get_by_role("group", name="Notes")
    assert main(shlex.split(read(page).command)[1:]) == 0
    basis = re.search(r"^Basis +(.*?)\n\n", capsys.readouterr().out, re.DOTALL | re.MULTILINE)
    assert basis is not None
    expect(notes).to_contain_text("; ".join(row.strip() for row in basis[1].splitlines()))
    expect(notes).not_to_contain_text("read from the file")
    plot = page.get_by_role("group", name="Memory vs context")
    expect(plot).to_contain_text("The curves end at 40,960 tokens")
    mac = page.locator(changes, has_text="smallest current Mac")
    name, _, _ = mac.inner_text().partition(":")
    mac.get_by_role("button").press("Enter")
    expect(answer).to_contain_text(name)
    expect(page.locator(".changes-panel summary:focus, .headline:focus")).to_have_count(1)


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
    side = page.locator(".side-content")
    expect(side).to_have_class(re.compile("more"))
    page.get_by_label("Micro-batch size").focus()  # must scroll out from under the buttons
    bottom, top = (
        page.evaluate(
            "([name, edge]) => document.querySelector(name).getBoundingClientRect()[edge]", pair
        )
        for pair in (["#set-ubatch", "bottom"], [".side-buttons", "top"])
    )
    assert bottom <= top
    page.locator(".side-scroll").evaluate("node => node.scrollTo(0, node.scrollHeight)")
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
    expect(page.locator(".side-content")).to_have_class(re.compile("more"))
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
    plot = page.get_by_role("group", name="Memory vs context")
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
        make_visit(expected_faults=(r"status of (429|504)",)).open(
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
    fail_call(page, "check", 429, times=1)
    page.get_by_label("Engine", exact=True).select_option("vllm")
    expect(try_again).to_be_visible()
    expect(page.locator(".model-grid")).to_have_class(re.compile("stale"))  # of the last engine
    expect(page.locator(".headline")).to_contain_text("tokens/s")


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
