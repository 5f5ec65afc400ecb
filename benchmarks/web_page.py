"""The speed of the page in Chromium: home with the whole catalog, and a slider of the model page.

    python benchmarks/web_page.py

Home is interactive when the search box filters its table, and settled when the best models have their figures;
verdicts of other models still arrive after that. A step of a slider ends when the numbers of the new load are on the
page. The first visit has an empty cache of answers.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, Page
from tests.web.browser import FULL_BROWSERS, chromium, new_visit
from tests.web.serving import start_process

MACHINE = "device=RTX+4090&ram=64G"
STEPS = 60
RUNS = 5
WITHIN_MS = 300_000
MODELS = ("sample:qwen3-30b-a3b", "catalog:qwen3-8b", "catalog:deepseek-v3")
CONTROLS = ("Context, log scale", "Layers on the GPU")
MODEL = f"/model?ref={{}}&engine=llama.cpp&context=8192&n_gpu_layers=20&{MACHINE}"
READY = "html[data-fit=ready]"
# Adds up how far things moved, except within half a second after the user did something.
RECORD_SHIFTS = """
window.shift = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""
ROW = ".model-row[data-id]"
PICKS = ".pick:not([data-status=working])"
JUDGED = ".models[data-answers=all]"


def main() -> None:
    """Print the tables."""
    with start_process("--offline") as server, chromium(FULL_BROWSERS) as browser:
        print("| home | models | interactive ms | picks ms | every verdict ms | layout shift |")
        print("|---|---|---|---|---|---|")
        for number in range(RUNS):
            visit_name = "first visit" if not number else f"visit {number + 1}"
            print(f"| {visit_name} | {_home(browser, server.address)} |")
        print("\n| slider | model | steps | median ms | 95th percentile ms | slowest ms |")
        print("|---|---|---|---|---|---|")
        for model in MODELS:
            for control in CONTROLS:
                print(
                    f"| {control} | {model} | {_slider(browser, server.address, model, control)} |"
                )


def _home(browser: Browser, origin: str) -> str:
    """A visit with an empty browser profile."""
    visit = new_visit(browser, origin)
    page = visit.context.new_page()
    page.add_init_script(RECORD_SHIFTS)
    start_s = time.perf_counter()
    page.goto(f"{origin}/?{MACHINE}")
    page.locator(ROW).first.wait_for()
    box = page.get_by_role("combobox", name="Find a model")
    count = int(page.locator(".models").get_attribute("aria-rowcount") or 1) - 1
    box.fill("qwen3-8b")
    page.locator(f".models:not([aria-rowcount='{count + 1}'])").wait_for(state="attached")
    interactive = time.perf_counter() - start_s
    box.fill("")
    page.locator(PICKS).nth(2).wait_for(timeout=WITHIN_MS)
    settled = time.perf_counter() - start_s
    page.locator(JUDGED).wait_for(state="attached", timeout=WITHIN_MS)
    judged = time.perf_counter() - start_s
    shift: float = page.evaluate("shift")
    visit.close()
    times = " | ".join(f"{seconds * 1e3:.0f}" for seconds in (interactive, settled, judged))
    return f"{count} | {times} | {shift:.4f}"


def _slider(browser: Browser, origin: str, model: str, label: str) -> str:
    visit = new_visit(browser, origin)
    page = visit.open(MODEL.format(model))
    page.locator(READY).wait_for(state="attached")
    slider = page.get_by_label(label, exact=True)
    slider.focus()
    page.evaluate("performance.clearMeasures('fit')")
    for step in range(STEPS):
        _step(page, "ArrowLeft" if step % 20 < 10 else "ArrowRight")
    durations_ms: list[float] = page.evaluate(
        "performance.getEntriesByName('fit').map(one => one.duration)"
    )
    visit.close()
    durations_ms.sort()
    slow = durations_ms[int(0.95 * len(durations_ms))]
    return f"{len(durations_ms)} | {statistics.median(durations_ms):.0f} | {slow:.0f} | {durations_ms[-1]:.0f}"


def _step(page: Page, key: str) -> None:
    before = page.evaluate("performance.getEntriesByName('fit').length")
    page.keyboard.press(key)
    page.wait_for_function(
        "(count) => performance.getEntriesByName('fit').length > count", arg=before
    )


if __name__ == "__main__":
    main()
