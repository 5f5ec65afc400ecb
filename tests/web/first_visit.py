"""What a new user does: finds a model for an RTX 3060, copies the command that runs it, and shares the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

CARD = "RTX 3060 12 GB"


@dataclass(slots=True)
class FirstVisit:
    """What the user has at the end, and the clicks that it took."""

    page: Page
    clicks: int = 0
    model: str = ""
    command: str = ""
    link: str = ""
    picture: Path = Path()

    def walk(self, folder: Path) -> None:
        """From the home page, which is open."""
        main = self.page.get_by_role("main")
        self._click(main.get_by_role("button", name=CARD))
        pick = main.locator("ul.picks > li").first.get_by_role("heading").get_by_role("link")
        expect(pick).to_be_visible()
        self.model = pick.inner_text()
        self._click(pick)
        expect(main.get_by_role("heading", level=1)).to_have_text(self.model)
        self._click(main.get_by_role("button", name="Copy: llama-server"))
        self.command = self._clipboard()
        self._click(main.get_by_role("button", name="Share", exact=True))
        dialog = self.page.get_by_role("dialog")
        self._click(dialog.get_by_role("button", name="Copy link"))
        expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
        self.link = self._clipboard()
        with self.page.expect_download() as download:
            self._click(dialog.get_by_role("button", name="Download PNG"))
        self.picture = folder / download.value.suggested_filename
        download.value.save_as(self.picture)

    def _click(self, button: Locator) -> None:
        button.click()
        self.clicks += 1

    def _clipboard(self) -> str:
        text: str = self.page.evaluate("navigator.clipboard.readText()")
        return text
