"""The limit on waits in tests, which only a fault reaches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

# Enough for a machine with many times more work than cores; a smaller value finds a fault sooner.
PATIENCE_S = float(os.environ.get("EDGEKIT_PATIENCE_S", "600"))


def wait_until(condition: Callable[[], bool], description: str = "what the test waits for") -> None:
    """Returns once `condition()` holds. Prefer waiting for an event or a thread where there is one."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, (
            f"{description} did not happen within {PATIENCE_S:.0f} s"
        )
        time.sleep(0.01)
