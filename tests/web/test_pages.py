"""The pages hardware, API and compare in a real browser: machines, links."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.web.conftest import MACHINE, MakeVisit, Site

from edgekit.cli import main
from edgekit.units import format_bytes

VERDICTS = {"passed": "Fits", "warning": "Tight", "failed": "Does not fit", "refused": "Cannot run"}
VLLM_VERDICTS = VERDICTS | {"passed": "Starts", "failed": "Does not start"}
MACHINE_FLAGS = ("--device", "RTX 4090", "--ram", "64G", "--json")


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main([*words])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def test_invalid_machine_is_an_alert(make_visit: MakeVisit) -> None:
    page = make_visit(expected_faults=(r"status of 400",)).open("/hardware")
    page.locator("summary", has_text="Machine").click()
    page.get_by_label("System RAM", exact=True).fill("much")
    page.get_by_role("button", name="Use this machine", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="much")).to_be_visible()


def test_machine_picker_reads_the_url_and_typed_names(make_visit: MakeVisit) -> None:
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


def cell(column: Locator, label: str) -> Locator:
    """The value under a label in a column."""
    return (
        column.locator("dl > div")
        .filter(has=column.page.get_by_text(label, exact=True))
        .locator("dd")
    )


def test_compare_shows_the_numbers_of_check_for_each_engine(
    make_visit: MakeVisit, capsys: pytest.CaptureFixture[str]
) -> None:
    page = make_visit().open(
        "/compare?ref=qwen3-8b&ref=qwen3-8b&ref=qwen3-8b&engine=llama.cpp,vllm,mlx&context=8192"
        "&device=H100+PCIe&ram=64G"
    )
    columns = page.get_by_role("main").locator("section")
    expect(columns).to_have_count(3)
    for index, engine in enumerate(("llama.cpp", "vllm")):
        flags = ("--engine", engine, "-c", "8192", "--device", "H100 PCIe", "--ram", "64G")
        check = run_command(capsys, "check", "qwen3-8b", *flags, "--json")
        estimate, column = check["estimate"], columns.nth(index)
        verdicts = VLLM_VERDICTS if engine == "vllm" else VERDICTS
        expect(cell(column, "Verdict")).to_contain_text(verdicts[check["status"]])
        expect(cell(column, "Weights")).to_contain_text(format_bytes(estimate["model_bytes"]))
        expect(cell(column, "KV cache")).to_contain_text(format_bytes(estimate["kv_bytes"]))
        expect(cell(column, "Total memory")).to_contain_text(format_bytes(estimate["total_bytes"]))
        expect(cell(column, "Max context")).to_contain_text(f"{check['max_context']:,}")
        expect(cell(column, "Command").locator("code")).to_have_text(check["command"])
        expect(column.get_by_role("img").first).to_be_visible()
    refused = cell(columns.nth(2), "Verdict")
    expect(refused).to_contain_text("Cannot run")
    expect(refused).to_contain_text("Apple silicon")
    expect(cell(columns.nth(0), "Weights")).to_contain_text("lowest")
    expect(cell(columns.nth(1), "Weights")).not_to_contain_text("lowest")


def test_compare_draws_all_bars_to_one_scale(make_visit: MakeVisit) -> None:
    """A memory is as wide as its size, in every column and however much of it is used."""
    page = make_visit().open(f"/compare?ref=qwen3-8b&ref=qwen3-14b&context=4096&{MACHINE}")
    tracks = page.get_by_role("img", name=re.compile("^RTX 4090"))
    expect(tracks).to_have_count(2)
    expect(page.get_by_role("img", name=re.compile("^RAM"))).to_have_count(2)
    gpu_widths, ram_widths = (
        page.locator(f"[role=img][aria-label^='{name}'] .room").evaluate_all(
            "bars => bars.map(bar => bar.getBoundingClientRect().width)"
        )
        for name in ("RTX 4090", "RAM")
    )
    assert gpu_widths[0] == pytest.approx(gpu_widths[1], abs=1)
    assert gpu_widths[0] == pytest.approx(ram_widths[0] * 25216155648 / (64 << 30), rel=0.02)


def test_compare_column_with_an_error_can_be_corrected(make_visit: MakeVisit, site: Site) -> None:
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


def test_hardware_shows_the_usable_memory(make_visit: MakeVisit) -> None:
    page = make_visit().open(f"/hardware?{MACHINE}")
    expect(page.get_by_role("main")).to_contain_text("RTX 4090")
    usable_bytes = 25216155648 - (1 << 30)  # 1 GiB is reserved
    expect(page.get_by_role("main")).to_contain_text(
        f"{usable_bytes / (1 << 30):.1f} of 23.5 GiB usable"
    )


def test_api_page_lists_the_calls(make_visit: MakeVisit) -> None:
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
