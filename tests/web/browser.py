"""A real Chromium, and tabs that record console errors, exceptions and requests to other servers."""

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

FULL_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The headless shell is the same engine without a user interface, and takes three fifths of the time.
NAMES = ("chromium-headless-shell", *FULL_BROWSERS)
# No sandbox: the tests may run as root. No software emulation of a GPU: painting is faster without.
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-software-rasterizer")
WIDE, PHONE = (1280, 900), (360, 740)
WAIT_MS = int(
    PATIENCE_S * 1000
)  # the timeout of every condition; a working page needs a fraction of it
# Console errors of a page whose server has stopped.
UNREACHABLE = r"Failed to load resource: net::ERR_|net::ERR_INCOMPLETE_CHUNKED_ENCODING"


def script(name: str) -> str:
    """JavaScript for an async function: the instance of a script that the page itself uses, like `router.js`."""
    return f"(await import(new URL({name!r}, document.querySelector('script[type=module]').src)))"


def chromium_path(names: tuple[str, ...] = NAMES) -> str:
    """Skips the test if none is installed."""
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"no Chromium is installed (Debian: apt install {names[0]})")
    return path


@contextmanager
def chromium(names: tuple[str, ...] = NAMES) -> Iterator[Browser]:
    path = chromium_path(names)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A browser context: tabs that share storage, and their faults."""

    context: BrowserContext = field(repr=False)
    origin: str
    expected_faults: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)

    def open(self, path: str = "/") -> Page:
        page = self.context.new_page()
        # Lambdas: Playwright sets an attribute on a method's object, which has slots.
        page.on("console", lambda message: self._check_message(message))  # noqa: PLW0108 - see above
        page.on("pageerror", lambda error: self.faults.append(f"thrown: {error}"))
        page.on("request", lambda request: self._check_request(request))  # noqa: PLW0108 - see above
        page.goto(self.origin + path)
        return page

    def _check_message(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            url = message.location["url"]
            self.faults.append(f"{message.type}: {message.text} {url}")

    def _check_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:", f"blob:{self.origin}")):
            self.faults.append(f"request to another server: {request.url}")

    def close(self) -> list[str]:
        """Closes the tabs. Returns their faults, except expected ones."""
        self.context.close()
        return [
            fault
            for fault in self.faults
            if not any(re.search(pattern, fault) for pattern in self.expected_faults)
        ]


def new_visit(
    browser: Browser,
    origin: str,
    *,
    size: tuple[int, int] = WIDE,
    dark: bool = False,
    expected_faults: tuple[str, ...] = (),
) -> Visit:
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(WAIT_MS)
    return Visit(context=context, origin=origin, expected_faults=expected_faults)
