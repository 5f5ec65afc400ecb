"""Reads the model page, and runs the command that it shows to compare the two."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Locator, Page, Route, expect
from tests.web.browser import WAIT_MS, script
from tests.web.conftest import Site

from edgekit.cli import main

COMMAND = "This estimate on the command line"
# Reads numbers and command at once, so that they belong to the same answer.
_READ = """(command) => {
  const sizes = {};
  for (const row of document.querySelectorAll("table.bill tbody:not(.later) tr")) {
    const [what, , size] = row.cells;
    const bytes = Number(size.querySelector("[title]").title.replace(/\\D/g, ""));
    const name = what.textContent.trim();
    if (!row.classList.contains("sum") || name === "Total") sizes[name] = (sizes[name] ?? 0) + bytes;
  }
  return [document.querySelector(`pre[aria-label="${command}"]`).textContent, sizes];
}"""


@dataclass(frozen=True, slots=True)
class ShownEstimate:
    """The command and the memory breakdown that the page shows."""

    command: str
    sizes: dict[str, int]  # component or "Total" -> bytes in all memories


def wait_for_answer(page: Page) -> Page:
    """Waits until the model is open and the numbers match the settings. Returns the page."""
    expect(page.locator("html")).to_have_attribute("data-fit", "ready")
    expect(page.locator(".model-grid")).to_be_visible()
    return page


def open_all(page: Page) -> Page:
    """Opens everything that is folded, as a click on each heading does. Returns the page."""
    page.evaluate(
        "document.querySelectorAll('details.fold, .more-settings').forEach(node => (node.open = true))"
    )
    return page


def wait_until_ready(page: Page) -> Page:
    """The same, with everything that is folded opened."""
    open_all(wait_for_answer(page))
    expect(page.get_by_label(COMMAND, exact=True)).to_be_visible()
    return page


def read(page: Page, pattern: str = "^edgekit estimate ") -> ShownEstimate:
    """Waits until the shown command matches the pattern, then reads the page."""
    open_all(wait_for_answer(page))
    expect(page.get_by_label(COMMAND, exact=True)).to_have_text(re.compile(pattern))
    wait_until_ready(page)
    return ShownEstimate(*page.evaluate(_READ, COMMAND))


def finder(page: Page) -> Locator:
    """The search box of the page: in its header, or the large one of a page without a model."""
    return page.get_by_role("combobox", name=re.compile("Find a model|Model to check")).filter(
        visible=True
    )


def enter_model(page: Page, reference: str) -> None:
    finder(page).fill(reference)
    finder(page).press("Enter")


def choose_machine(page: Page, *, device: list[str], ram: str = "") -> None:
    """Sets the machine, as the device picker does."""
    page.evaluate(
        f"async (choice) => {script('machine.js')}.machine.set(choice)",
        {"device": device, "ram": ram},
    )


def read_after_change(page: Page, before: ShownEstimate) -> ShownEstimate:
    """Waits until the shown command has changed, then reads the page."""
    expect(page.get_by_label(COMMAND, exact=True)).not_to_have_text(before.command)
    return read(page)


def run_shown_command(
    command: str, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """The command line's answer to the command that the page shows, with the same hub."""
    program, *words = shlex.split(command)
    assert (program, words[0]) == ("edgekit", "estimate")
    for name in ("HF_ENDPOINT", "EDGEKIT_CACHE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.setenv(name, site.environment[name])
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def assert_same_bytes(shown: ShownEstimate, answer: dict[str, Any]) -> None:
    sizes = shown.sizes

    def shown_bytes(name: str) -> int:
        """With the rows of companion files: "Weights (projector)"."""
        return sum(size for row, size in sizes.items() if row.partition(" (")[0] == name)

    assert sizes["Total"] == answer["total_bytes"]
    assert shown_bytes("Weights") == answer["model_bytes"]
    assert shown_bytes("KV cache") == answer["kv_bytes"]
    assert shown_bytes("Sliding-window KV cache") == answer["kv_swa_bytes"]
    assert shown_bytes("Compute buffer") == answer["compute_bytes"]


def wait_for_request(page: Page, requests: Sequence[object]) -> None:
    """Waits until there is a request in the list, while the page runs on."""
    for _ in range(WAIT_MS // 20):
        if requests:
            return
        page.wait_for_timeout(20)
    pytest.fail("the page sent no request")


def hold(page: Page, call: str) -> list[Route]:
    """Holds requests of a call back until `release`. Returns the list to which they will be added."""
    requests: list[Route] = []
    # A lambda: Playwright sets an attribute on the function.
    page.route(f"**/api/v1/{call}", lambda route: requests.append(route))  # noqa: PLW0108 - see above
    return requests


def release(page: Page, call: str, requests: list[Route]) -> None:
    page.unroute(f"**/api/v1/{call}")
    for route in requests:
        with suppress(PlaywrightError):  # the page has cancelled it
            route.continue_()
