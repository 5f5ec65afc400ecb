"""How fast pages appear in Chromium: home on a fresh server and again, a model, the API page; CPU full and a quarter.

    python benchmarks/page_load.py [--filmstrip FOLDER]

Interactive: heading and search box are there. Settled: no visible placeholder is left. Chromium slows down its own CPU,
the server's stays as it is. With --filmstrip, pictures of the first three seconds of a first visit are saved.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, BrowserContext, Page
from tests.web.browser import FULL_BROWSERS, chromium
from tests.web.serving import start_process

MACHINE = "device=RTX+4090&ram=64G"
SLOWDOWNS = (1, 4)
SETTLED_S = 120
POLL_MS = 20
FILM_S = 3.0
SHIFT_S = 4.0  # layout shifts are counted for this long after the page has settled
VISIBLE_PLACEHOLDERS = """() => [...document.querySelectorAll('.skeleton, [aria-busy=true]')].filter(node => {
  const box = node.getBoundingClientRect();
  return node.matches('.skeleton') && node.checkVisibility() && box.bottom > 0 && box.top < innerHeight;
}).length"""
WATCH = """
window.shift = 0;
new PerformanceObserver(list => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
}).observe({ type: 'layout-shift', buffered: true });
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One visit of a page."""

    paint_ms: float
    interactive_ms: float
    settled_ms: float
    shift: float
    files_bytes: int  # HTML, CSS, JavaScript and pictures on the wire
    data_bytes: int  # answers of the API until the page had settled, on the wire

    def row(self) -> str:
        return (
            f"{self.paint_ms:.0f} | {self.interactive_ms:.0f} | {self.settled_ms:.0f} | {self.shift:.3f} | "
            f"{self.files_bytes / 1000:.1f} | {self.data_bytes / 1000:.1f}"
        )


class Wire:
    """Counts the bytes that arrive."""

    def __init__(self, page: Page) -> None:
        self._client = page.context.new_cdp_session(page)
        self._paths: dict[str, str] = {}
        self.files_bytes = self.data_bytes = 0
        self._client.send("Network.enable")
        self._client.on("Network.requestWillBeSent", self._on_request)
        self._client.on("Network.dataReceived", self._on_data)

    def _on_request(self, event: dict[str, Any]) -> None:
        self._paths[event["requestId"]] = event["request"]["url"]

    def _on_data(self, event: dict[str, Any]) -> None:
        if "/api/" in self._paths.get(event["requestId"], ""):
            self.data_bytes += event["encodedDataLength"]
        else:
            self.files_bytes += event["encodedDataLength"]

    def slow_down(self, factor: int) -> None:
        self._client.send("Emulation.setCPUThrottlingRate", {"rate": factor})

    def film(self, folder: Path, start_s: float) -> None:
        """Saves every picture that the browser draws, named by its time."""
        self._client.on(
            "Page.screencastFrame", lambda event: self._on_frame(event, folder, start_s)
        )
        self._client.send("Page.startScreencast", {"format": "png", "everyNthFrame": 1})

    def _on_frame(self, event: dict[str, Any], folder: Path, start_s: float) -> None:
        name = f"{(time.perf_counter() - start_s) * 1000:05.0f}.png"
        (folder / name).write_bytes(base64.b64decode(event["data"]))
        self._client.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filmstrip", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    print(
        "| page | CPU | first paint ms | interactive ms | settled ms | layout shift | files KB | data KB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for slowdown in SLOWDOWNS:
        with tempfile.TemporaryDirectory() as cache, chromium(FULL_BROWSERS) as browser:
            environment = {**os.environ, "EDGEKIT_CACHE": cache}
            with start_process("--offline", env=environment) as server:
                film = arguments.filmstrip if slowdown == 1 else None
                _print(
                    "home, first visit",
                    slowdown,
                    _visit(browser, server.address, f"/?{MACHINE}", slowdown, film),
                )
                _print(
                    "home, again",
                    slowdown,
                    _visit(browser, server.address, f"/?{MACHINE}", slowdown),
                )
                _print(
                    "home, this computer", slowdown, _visit(browser, server.address, "/", slowdown)
                )
                model = f"/model?ref=gemma-3-27b&{MACHINE}"
                _print("model", slowdown, _visit(browser, server.address, model, slowdown))
            with start_process("--offline", env=environment) as server:
                _print(
                    "API page, fresh server",
                    slowdown,
                    _visit(browser, server.address, "/api/docs", slowdown),
                )
                _print(
                    "home, restarted server",
                    slowdown,
                    _visit(browser, server.address, f"/?{MACHINE}", slowdown),
                )


def _print(name: str, slowdown: int, load: Load) -> None:
    print(
        f"| {name} | {slowdown}x slower | {load.row()} |"
        if slowdown > 1
        else f"| {name} | full | {load.row()} |"
    )


def _visit(
    browser: Browser, origin: str, path: str, slowdown: int, film: Path | None = None
) -> Load:
    """Opens the page with an empty browser profile."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        return _load(context, origin + path, slowdown, film)
    finally:
        context.close()


def _load(context: BrowserContext, url: str, slowdown: int, film: Path | None) -> Load:
    page = context.new_page()
    page.add_init_script(WATCH)
    wire = Wire(page)
    wire.slow_down(slowdown)
    start_s = time.perf_counter()
    if film is not None:
        film.mkdir(parents=True, exist_ok=True)
        wire.film(film, start_s)
    page.goto(url, wait_until="commit")
    box = page.locator("input[type=search]:visible").first
    box.wait_for()
    page.locator("main h1").wait_for()
    interactive_s = time.perf_counter() - start_s
    while page.evaluate(
        VISIBLE_PLACEHOLDERS
    ):  # not wait_for_function: the page's policy forbids eval
        if time.perf_counter() - start_s > SETTLED_S:
            raise TimeoutError(f"{url}: not settled after {SETTLED_S} s")
        page.wait_for_timeout(POLL_MS)
    settled_s = time.perf_counter() - start_s
    data_bytes = wire.data_bytes
    if film is not None:
        page.wait_for_timeout(max(0.0, FILM_S - (time.perf_counter() - start_s)) * 1000)
    page.wait_for_timeout(SHIFT_S * 1000)
    paint_ms: float = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
    )
    shift: float = page.evaluate("window.shift")
    return Load(
        paint_ms=paint_ms,
        interactive_ms=interactive_s * 1e3,
        settled_ms=settled_s * 1e3,
        shift=shift,
        files_bytes=wire.files_bytes,
        data_bytes=data_bytes,
    )


if __name__ == "__main__":
    main()
