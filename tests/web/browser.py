"""A real Chromium, and tabs that remember what went wrong in them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    sync_playwright,
)
from tests.patience import PATIENCE_S

WHOLE = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The same engine without what surrounds a window: a page costs three fifths of the time.
NAMES = ("chromium-headless-shell", *WHOLE)
# No sandbox: the tests may run as root. Nor a graphics card that is only made up, in software: painting costs less so.
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-software-rasterizer")
WIDE, PHONE = (1280, 900), (360, 740)
WAIT_MS = int(PATIENCE_S * 1000)  # of a condition: a page that is well fulfils it in a fraction
# Complaints that a test may have provoked.
REFUSED = r"Failed to load resource: the server responded with a status of [45]\d\d"
UNREACHABLE = r"Failed to load resource: net::ERR_|net::ERR_INCOMPLETE_CHUNKED_ENCODING"


def chromium_path(names: tuple[str, ...] = NAMES) -> str:
    """Skips the test where there is none."""
    result = next(filter(None, map(shutil.which, names)), None)
    if result is None:
        pytest.skip(f"no Chromium is installed (Debian: apt install {names[0]})")
    return result


@contextmanager
def chromium(names: tuple[str, ...] = NAMES) -> Iterator[Browser]:
    path = chromium_path(names)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One person's browser: tabs that share what is kept, and everything they complained about."""

    context: BrowserContext = field(repr=False)
    origin: str
    forgiven: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)

    def open(self, path: str = "/") -> Page:
        page = self.context.new_page()
        # Playwright writes into the owner of a method: it is given functions.
        page.on("console", lambda message: self._hear(message))  # noqa: PLW0108 - see above
        page.on("pageerror", lambda error: self.faults.append(f"thrown: {error}"))
        page.on("request", lambda request: self._watch(request))  # noqa: PLW0108 - see above
        page.goto(self.origin + path)
        return page

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            place = message.location["url"]
            self.faults.append(f"{message.type}: {message.text} {place}")

    def _watch(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:", f"blob:{self.origin}")):
            self.faults.append(f"left the server: {request.url}")

    def close(self) -> list[str]:
        """What the tabs complained about, without what was to be expected."""
        self.context.close()
        return [
            fault
            for fault in self.faults
            if not any(re.search(item, fault) for item in self.forgiven)
        ]


def new_visit(
    browser: Browser,
    origin: str,
    *,
    size: tuple[int, int] = WIDE,
    dark: bool = False,
    forgiven: tuple[str, ...] = (),
) -> Visit:
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(WAIT_MS)
    return Visit(context=context, origin=origin, forgiven=forgiven)
