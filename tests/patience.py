"""How long tests wait for something that must happen: only a fault makes a test wait this long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

# A machine with many times more work than cores still gets there. Less finds a fault sooner.
PATIENCE_S = float(os.environ.get("EDGEKIT_PATIENCE_S", "600"))


def wait_until(happened: Callable[[], bool], what: str = "what the test waits for") -> None:
    """Returns once it has happened. Where there is an event or a thread to wait for, wait for that."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < give_up_s, f"{what} did not happen within {PATIENCE_S:.0f} s"
        time.sleep(0.01)
