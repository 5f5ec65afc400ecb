"""The model page as a person reads it, and the command line's answer to the command that it shows."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.web.browser import WAIT_MS
from tests.web.conftest import Site

from edgekit.cli import main

COMMAND = "This estimate on the command line"
# Numbers and command in one look: they are of one answer.
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
class Shown:
    """What the bill and the commands of a page say."""

    command: str
    sizes: dict[str, int]  # component -> bytes, all memories together; "Total"


def ready(page: Page) -> Page:
    """Once the model is open and the numbers are those of the settings."""
    expect(page.locator("html")).to_have_attribute("data-fit", "ready")
    expect(page.get_by_label(COMMAND, exact=True)).to_be_visible()
    return page


def read(page: Page, pattern: str = "^edgekit estimate ") -> Shown:
    """When the shown command is of that pattern."""
    expect(page.get_by_label(COMMAND, exact=True)).to_have_text(re.compile(pattern))
    ready(page)
    return Shown(*page.evaluate(_READ, COMMAND))


def choose_machine(page: Page, *, device: list[str], ram: str = "") -> None:
    """As the picker does when it is told so."""
    page.evaluate(
        "async (one) => (await import('/static/machine.js')).machine.set(one)",
        {"device": device, "ram": ram},
    )


def another(page: Page, before: Shown) -> Shown:
    """When the shown command is another one."""
    expect(page.get_by_label(COMMAND, exact=True)).not_to_have_text(before.command)
    return read(page)


def estimated(
    command: str, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """What the command line answers to the command, with the same hub."""
    program, *words = shlex.split(command)
    assert (program, words[0]) == ("edgekit", "estimate")
    for name in ("HF_ENDPOINT", "EDGEKIT_CACHE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.setenv(name, site.environment[name])
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def assert_same(shown: Shown, answer: dict[str, Any]) -> None:
    """To the byte."""
    sizes = shown.sizes
    assert sizes["Total"] == answer["total_bytes"]
    assert sizes.get("Weights", 0) == answer["model_bytes"]
    assert sizes.get("KV cache", 0) == answer["kv_bytes"]
    assert sizes.get("Sliding-window KV cache", 0) == answer["kv_swa_bytes"]
    assert sizes.get("Compute buffer", 0) == answer["compute_bytes"]


def until(page: Page, waiting: Sequence[object]) -> None:
    """Something waits; the page goes on meanwhile."""
    for _ in range(WAIT_MS // 20):
        if waiting:
            return
        page.wait_for_timeout(20)
    pytest.fail("nothing was asked")
