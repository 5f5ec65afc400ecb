"""The compare page in a real browser: one table whose columns equal `edgekit check`."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Request, expect
from tests.web.accessibility import assert_no_severe_fault
from tests.web.browser import PHONE
from tests.web.conftest import MACHINE, MakeVisit, Site
from tests.web.layout import assert_no_sideways_scroll, layout_shift, reload_observed
from tests.web.model_pages import hold, wait_for_request
from tests.web.serving import stuck_hub

from edgekit.cli import main
from edgekit.units import GIB

VERDICTS = {"passed": "Fits", "warning": "Tight", "failed": "Does not fit"}
VLLM_VERDICTS = VERDICTS | {"passed": "Starts", "failed": "Does not start"}
QUANTS = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M"]
SIX = "&".join(
    f"ref={name}"
    for name in ("qwen3-8b", "qwen3-14b", "qwen3-4b", "gemma-3-4b", "gemma-3-12b", "phi-4")
)


def check_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main(["check", *words, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def heads(page: Page) -> Locator:
    return page.locator(".compare-head")


def cell(page: Page, label: str, column: int) -> Locator:
    """The cell of a row in a column, from 0."""
    row = page.get_by_role("row").filter(
        has=page.get_by_role("rowheader", name=re.compile(f"^{label}"))
    )
    return row.get_by_role("cell").nth(column)


def wait_for_answers(page: Page) -> None:
    """Waits until no column is asked about any more."""
    expect(heads(page).first).to_be_visible()
    expect(page.locator(".compare-table .skeleton")).to_have_count(0)


def context_words(tokens: int) -> str:
    return f"{tokens // 1024}K"


def assert_equals_check(
    page: Page, column: int, check: dict[str, Any], verdicts: dict[str, str]
) -> None:
    estimate = check["estimate"]
    cache_bytes = estimate["kv_bytes"] + estimate["kv_swa_bytes"] + estimate["recurrent_bytes"]
    expect(cell(page, "Verdict", column)).to_contain_text(verdicts[check["status"]])
    expect(cell(page, "Verdict", column)).to_contain_text(check["headline"])
    expect(cell(page, "Context", column)).to_contain_text(context_words(check["context_tokens"]))
    expect(cell(page, "Max context", column)).to_contain_text(context_words(check["max_context"]))
    expect(cell(page, "Download", column)).to_contain_text(
        f"{check['download_bytes'] / 1e9:.1f} GB"
    )
    expect(cell(page, "Weights", column)).to_contain_text(
        f"{estimate['model_bytes'] / GIB:.1f} GiB"
    )
    expect(cell(page, "KV cache", column)).to_contain_text(f"{cache_bytes / GIB:.1f} GiB")
    expect(cell(page, "Total memory", column)).to_contain_text(
        f"{estimate['total_bytes'] / GIB:.1f} GiB"
    )
    expect(cell(page, "Quantisation", column)).to_contain_text(check["quantization"])
    expect(cell(page, "Command", column).locator("code")).to_have_text(check["command"])
    expect(cell(page, "Memory", column).get_by_role("img")).to_have_count(len(check["budgets"]))


def test_columns_equal_check_without_a_context(
    make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    """Models, quantisations and machines; and one question for each column."""
    asked: list[str] = []
    visit = make_visit()
    visit.context.on("request", lambda request: asked.append(call_of(request)))
    page = visit.open(
        f"/compare?ref=gemma-3-27b&ref=gemma-3-27b&ref=qwen3-8b&quant=,Q5_K_M,&on=&on=&on=RTX+3060%3Bram%3D32G&{MACHINE}"
    )
    wait_for_answers(page)
    machine = ("--device", "RTX 4090", "--ram", "64G")
    small = ("--device", "RTX 3060", "--ram", "32G")
    rows = (
        ("gemma-3-27b", *machine),
        ("gemma-3-27b", "--quant", "Q5_K_M", *machine),
        ("qwen3-8b", *small),
    )
    for column, words in enumerate(rows):
        assert_equals_check(page, column, check_of(capsys, *words), VERDICTS)
    assert asked.count("check") == 3
    assert not set(asked) & {"fit", "plan", "estimate", "inspect", "catalog"}


def call_of(request: Request) -> str:
    """'check' of /api/v1/jobs/check, 'hardware' of /api/v1/hardware."""
    path = urlsplit(request.url).path
    return path.removeprefix("/api/v1/").removeprefix("jobs/").partition("/")[0]


def test_addresses_of_earlier_versions_still_work(
    make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    page = make_visit().open(
        "/compare?ref=qwen3-8b&ref=catalog:qwen3-8b&ref=qwen3-8b&ref=&engine=llama.cpp,vllm,mlx&context=8192"
        "&device=H100+PCIe&ram=64G"
    )
    wait_for_answers(page)
    expect(heads(page)).to_have_count(3)
    for column, engine in enumerate(("llama.cpp", "vllm")):
        flags = ("--engine", engine, "-c", "8192", "--device", "H100 PCIe", "--ram", "64G")
        verdicts = VLLM_VERDICTS if engine == "vllm" else VERDICTS
        assert_equals_check(page, column, check_of(capsys, "qwen3-8b", *flags), verdicts)
    expect(cell(page, "Verdict", 2)).to_contain_text("Cannot run")
    expect(cell(page, "Verdict", 2)).to_contain_text("Apple silicon")
    expect(page.get_by_label("Context", exact=True)).to_have_value("8192")


def test_best_value_of_a_row_is_bold_and_said(make_visit: MakeVisit) -> None:
    page = make_visit().open(
        f"/compare?ref=qwen3-8b&ref=qwen3-14b&ref=deepseek-v3&context=8192&{MACHINE}"
    )
    wait_for_answers(page)
    best = {
        label: [column for column in range(3) if "best" in cell(page, label, column).inner_text()]
        for label in ("Speed", "Weights", "Total memory", "Parameters", "Trained context")
    }
    assert best == {
        "Speed": [0],
        "Weights": [0],  # of those that load
        "Total memory": [0],
        "Parameters": [],  # neither more nor fewer is better
        "Trained context": [2],
    }
    weights = cell(page, "Weights", 0)
    assert int(weights.evaluate("node => getComputedStyle(node).fontWeight")) >= 700
    assert int(cell(page, "Weights", 1).evaluate("node => getComputedStyle(node).fontWeight")) < 600


def test_one_memory_has_one_scale_in_every_column(make_visit: MakeVisit) -> None:
    """The GPU is as wide as the RAM, which is larger: each has its own scale. What does not fit is cut off."""
    page = make_visit().open(f"/compare?ref=qwen3-8b&ref=qwen3-14b&ref=deepseek-v3&{MACHINE}")
    wait_for_answers(page)
    gpu, ram = (
        page.locator(f"[role=img][aria-label^='{name}']").evaluate_all(
            "bars => bars.map(bar => bar.querySelector('.room').getBoundingClientRect().width / bar.clientWidth)"
        )
        for name in ("RTX 4090", "RAM")
    )
    assert gpu == pytest.approx(
        [1 / 1.6] * 3, abs=0.01
    )  # the longest bar needs far more than 1.6 times the memory
    assert ram == pytest.approx([1] * 3, abs=0.01)
    expect(page.get_by_text(re.compile("Bars that are cut off"))).to_be_visible()


def test_six_columns_are_the_most(make_visit: MakeVisit) -> None:
    visit = make_visit()
    page = visit.open(f"/compare?{SIX}&ref=qwen3-32b&{MACHINE}")
    wait_for_answers(page)
    expect(heads(page)).to_have_count(6)
    assert len(query_of(page)["ref"]) == 6
    expect(page.get_by_role("combobox", name="Add a model")).to_be_disabled()
    assert_no_sideways_scroll(page)
    page.get_by_role("button", name="Remove Phi-4").click()
    expect(heads(page)).to_have_count(5)
    expect(page.get_by_role("button", name="Change Gemma 3 12B")).to_be_focused()
    box = page.get_by_role("combobox", name="Add a model")
    box.fill("mistral-7b")
    box.press("Enter")
    expect(heads(page)).to_have_count(6)
    assert query_of(page)["ref"][-1] == "mistral-7b"
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert_no_sideways_scroll(page)
    region = page.get_by_role("region", name="Comparison")
    assert region.evaluate(
        "node => node.scrollWidth > node.clientWidth"
    )  # the columns move, not the page


def test_without_columns_two_boxes_and_examples(make_visit: MakeVisit) -> None:
    page = make_visit().open(f"/compare?{MACHINE}")
    expect(page.get_by_role("heading", name="Which two?")).to_be_visible()
    expect(page.get_by_role("table")).to_have_count(0)
    first, second = (
        page.get_by_role("combobox", name=name) for name in ("First model", "Second model")
    )
    first.fill("qwen3-8b")
    first.press("Enter")
    expect(second).to_be_focused()
    second.fill("qwen3-14b")
    second.press("Enter")
    wait_for_answers(page)
    assert query_of(page)["ref"] == ["qwen3-8b", "qwen3-14b"]
    assert "context" not in query_of(page)
    expect(cell(page, "Verdict", 1)).to_contain_text("Fits")
    page.goto(page.url.partition("?")[0])
    page.get_by_role("link", name=re.compile("^RTX 3060 vs RTX 4090")).click()
    wait_for_answers(page)
    expect(heads(page).nth(0)).to_contain_text("RTX 3060 · 64 GB RAM")
    expect(heads(page).nth(1)).to_contain_text("RTX 4090 · 64 GB RAM")


def test_error_stays_in_its_column_and_can_be_corrected(make_visit: MakeVisit, site: Site) -> None:
    assert site.folder.is_dir()
    page = make_visit().open(f"/compare?ref=qwen3-8b&ref=acme/no-such-model&context=2048&{MACHINE}")
    failed = cell(page, "Verdict", 1)
    expect(failed.get_by_role("alert")).to_contain_text("acme/no-such-model")
    expect(failed).to_contain_text("Check the spelling")
    expect(cell(page, "Verdict", 0)).to_contain_text("Fits")
    page.get_by_role("button", name="Change acme/no-such-model").press("Enter")
    dialog = page.get_by_role("dialog", name="Change this column")
    model = dialog.get_by_role("combobox", name="Model")
    model.fill("acme/tiny-GGUF:Q8_0")
    model.press("Enter")
    expect(dialog).to_have_count(0)
    expect(cell(page, "Verdict", 1)).to_contain_text("Fits")
    expect(page.get_by_role("alert")).to_have_count(0)
    assert query_of(page)["ref"] == ["qwen3-8b", "acme/tiny-GGUF:Q8_0"]
    page.get_by_label("Context", exact=True).fill("4096")
    page.get_by_label("Context", exact=True).press("Enter")
    page.wait_for_url(re.compile("context=4096"))
    wait_for_answers(page)
    expect(cell(page, "Command", 1)).to_contain_text("-c 4096")
    page.get_by_role("button", name="Copy link").click()
    link: str = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url


def test_dialog_changes_engine_quantisation_and_machine(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 400",)).open(
        f"/compare?ref=qwen3-8b&ref=qwen3-14b&{MACHINE}"
    )
    wait_for_answers(page)
    change = page.get_by_role("button", name="Change Qwen3 14B")
    change.press("Enter")
    dialog = page.get_by_role("dialog")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(change).to_be_focused()
    change.press("Enter")
    dialog.get_by_label("Engine").select_option("llama.cpp")
    dialog.get_by_label("Quantisation").select_option("Q8_0")
    dialog.get_by_label("Another machine").check()
    dialog.get_by_label("System RAM").fill("much")
    dialog.get_by_role("button", name="Apply").click()
    expect(dialog.get_by_role("alert")).to_contain_text("much")
    dialog.get_by_label("System RAM").fill("32G")
    dialog.get_by_label("Add a device").fill("rtx 5090")
    dialog.get_by_role("button", name="Apply").click()
    wait_for_answers(page)
    expect(heads(page).nth(1)).to_contain_text("RTX 5090 · 32 GB RAM")
    expect(heads(page).nth(1)).to_contain_text("Q8_0 · llama.cpp")
    query = query_of(page)
    assert query["on"] == ["RTX 5090;ram=32G"] or "RTX 5090;ram=32G" in page.url.replace("+", " ")
    link = page.get_by_role("link", name="Open the page of Qwen3 14B")
    target = parse_qs(urlsplit(str(link.get_attribute("href"))).query)
    assert target["device"] == ["RTX 5090"]
    assert target["mix"] == ["Q8_0"]


def test_address_keeps_everything(make_visit: MakeVisit) -> None:
    page = make_visit().open(f"/compare?ref=qwen3-14b&{MACHINE}")
    wait_for_answers(page)
    for kind, key, values in (
        ("Quantisations", "quant", [",".join(QUANTS)]),
        ("Engines", "engine", ["llama.cpp,vllm,mlx"]),
    ):
        page.get_by_role("button", name=kind, exact=True).click()
        wait_for_answers(page)
        expect(page.get_by_role("button", name=kind, exact=True)).to_have_attribute(
            "aria-pressed", "true"
        )
        assert query_of(page)[key] == values
    page.get_by_role("button", name="Machines", exact=True).click()
    wait_for_answers(page)
    before = [head.inner_text() for head in heads(page).all()]
    assert [name for name in ("RTX 4090", "RTX 3060", "RTX 5090", "M4 Max 64GB") if any(name in text for text in before)] == [
        "RTX 4090", "RTX 3060", "RTX 5090", "M4 Max 64GB",
    ]  # fmt: skip
    address = page.url
    page.reload()
    wait_for_answers(page)
    assert page.url == address
    assert [head.inner_text() for head in heads(page).all()] == before


def test_quantisations_equal_check_and_show_the_loss(
    make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    page = make_visit().open(f"/compare?ref=qwen3-14b&{MACHINE}")
    wait_for_answers(page)
    page.get_by_role("button", name="Quantisations", exact=True).click()
    wait_for_answers(page)
    for column, quant in enumerate(QUANTS):
        check = check_of(
            capsys, "qwen3-14b", "--quant", quant, "--device", "RTX 4090", "--ram", "64G"
        )
        assert_equals_check(page, column, check, VERDICTS)
        expect(cell(page, "Quality loss", column)).to_contain_text(f"{check['loss']['value']:.1f}")


def test_machine_picker_reads_the_url_and_typed_names(make_visit: MakeVisit) -> None:
    page = make_visit().open(
        "/compare?ref=qwen3-8b&device=RTX+3090&device=2xRTX+3090&device=12x+RTX+4060&ram=64G"
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
    page.get_by_role("button", name="Use this machine", exact=True).click()
    page.wait_for_url(re.compile("device=3x"))
    assert query_of(page)["device"] == ["3x RTX 3090", "2x RTX 4090"]
    machine.click()
    box.fill("RTX 30")
    page.get_by_role("button", name="Use this machine", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="Pick one from the list")).to_be_visible()
    expect(box).to_be_focused()
    assert query_of(page)["device"] == ["3x RTX 3090", "2x RTX 4090"]
    box.fill("2x 5090")
    page.get_by_role("button", name=re.compile("^Add RTX 5090,")).click()
    expect(page.get_by_label("How many RTX 5090")).to_have_value("2")
    expect(box).to_have_value("")


def test_invalid_machine_is_an_alert(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 400",)).open("/compare?ref=qwen3-8b")
    page.locator("summary", has_text="Machine").click()
    page.get_by_label("System RAM", exact=True).fill("much")
    page.get_by_role("button", name="Use this machine", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="much")).to_be_visible()


def test_pending_values_are_neither_unknown_nor_best(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 503",)).open("/compare")
    held = hold(page, "jobs/check")
    page.goto(f"{page.url}?ref=qwen3-8b&ref=qwen3-14b&{MACHINE}")
    wait_for_request(page, held)
    expect(page.get_by_role("status").filter(has_text="Reading the model")).to_have_count(2)
    held.pop(0).continue_()
    expect(cell(page, "Verdict", 0)).to_contain_text("Fits")
    expect(cell(page, "Speed", 1).locator(".skeleton")).to_have_count(1)
    expect(page.locator("td.compare-best")).to_have_count(0)  # there is nothing to compare it with
    busy = {"error": {"type": "TooManyError", "message": "too busy"}}
    wait_for_request(page, held)
    held.pop().fulfill(status=503, json=busy)
    expect(cell(page, "Verdict", 1).get_by_role("alert")).to_have_text("too busy")
    expect(cell(page, "Verdict", 1)).to_contain_text("Wait a moment")
    page.unroute("**/api/v1/jobs/check")
    cell(page, "Verdict", 1).get_by_role("button", name="Try again").press("Enter")
    expect(cell(page, "Verdict", 1)).to_contain_text("Fits")


def test_column_can_be_cancelled_and_tried_again(make_visit: MakeVisit) -> None:
    with stuck_hub() as (server, _):
        slow = quote(f"{server.address}/slow.gguf", safe="")
        page = make_visit().open(f"/compare?ref=qwen3-8b&ref={slow}&{MACHINE}")
        expect(cell(page, "Verdict", 0)).to_contain_text("Fits")
        cell(page, "Verdict", 1).get_by_role("button", name="Cancel").press("Enter")
        expect(cell(page, "Verdict", 1).get_by_role("alert")).to_have_text("Cancelled.")
        again = cell(page, "Verdict", 1).get_by_role("button", name="Try again")
        expect(again).to_be_focused()
        again.press("Enter")
        expect(cell(page, "Verdict", 1).get_by_role("button", name="Cancel")).to_be_focused()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_severe_accessibility_fault(make_visit: MakeVisit, theme: str) -> None:
    page = make_visit(dark=theme == "dark").open(
        f"/compare?ref=qwen3-8b&ref=qwen3-32b&ref=missing.gguf&engine=,mlx&{MACHINE}"
    )
    wait_for_answers(page)
    assert_no_severe_fault(page)
    page.goto(page.url.partition("?")[0])
    expect(page.get_by_role("heading", name="Which two?")).to_be_visible()
    assert_no_severe_fault(page)


@pytest.mark.parametrize("size", [(1440, 900), PHONE], ids=["wide", "phone"])
def test_nothing_moves_when_answers_come(make_visit: MakeVisit, size: tuple[int, int]) -> None:
    page = make_visit(size=size).open(f"/compare?{SIX}&{MACHINE}")
    reload_observed(page)
    wait_for_answers(page)
    assert layout_shift(page) < 0.02
    assert_no_sideways_scroll(page)
