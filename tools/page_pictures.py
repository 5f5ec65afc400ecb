"""Take the screenshots of docs/web.md: docs/pictures/home.png and model.png. Needs Chromium and playwright.

python tools/page_pictures.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
PICTURES = ROOT / "docs" / "pictures"


def main() -> None:
    from playwright.sync_api import expect
    from tests.web.browser import WAIT_MS, chromium
    from tests.web.model_pages import wait_until_ready
    from tests.web.serving import start

    os.environ["EDGEKIT_LLAMA_VERSION"] = "0.6"  # whatever is installed
    with start() as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 830})
        page.goto(f"{address}/?device=RTX%204090&ram=64G")
        judged = page.locator(".models[data-answers=all]")
        judged.wait_for(state="attached", timeout=WAIT_MS)
        page.reload()  # everything is known from the start: the best first
        judged.wait_for(state="attached", timeout=WAIT_MS)
        page.screenshot(path=PICTURES / "home.png")
        page.set_viewport_size({"width": 1280, "height": 1010})
        page.goto(f"{address}/model?ref=gemma-3-27b&device=RTX%204090&ram=64G")
        wait_until_ready(page)
        expect(page.get_by_text("Loading the curves")).to_be_hidden(timeout=WAIT_MS)
        page.screenshot(path=PICTURES / "model.png")


if __name__ == "__main__":
    main()
