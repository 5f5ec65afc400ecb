"""How long a new user needs from the home page to a shared answer, if nobody thinks: clicks and seconds.

python benchmarks/first_visit.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.web.browser import FULL_BROWSERS, chromium, new_visit
from tests.web.first_visit import FirstVisit
from tests.web.serving import start_process

RUNS = 3


def main() -> None:
    """Print the table."""
    with start_process("--offline", "--no-cache") as server, chromium(FULL_BROWSERS) as browser:
        print("| run | clicks | seconds |\n|---|---|---|")
        for number in range(RUNS):
            visit = new_visit(browser, server.address)
            with tempfile.TemporaryDirectory() as folder:
                start_s = time.perf_counter()
                walk = FirstVisit(visit.open("/"))
                walk.walk(Path(folder))
                print(f"| {number + 1} | {walk.clicks} | {time.perf_counter() - start_s:.1f} |")
            visit.close()


if __name__ == "__main__":
    main()
