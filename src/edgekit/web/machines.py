"""What was said of a machine -> the machine, looked at again only when something may have changed."""

from __future__ import annotations

import threading
import time
from functools import lru_cache

from edgekit.machine.types import Machine
from edgekit.request import Request
from edgekit.web.failures import about

SEEN_S = 2.0  # what is free here changes; a slider that is dragged does not wait for it

_lock = threading.Lock()
_seen: list[tuple[float, Machine]] = []


def machine_now(request: Request) -> Machine:
    """The one at hand where none is named. Raises UsageError for a name or a size that means nothing."""
    if request.devices or request.ram is not None or request.vram is not None:
        with about("machine"):
            return _wished(request.devices, request.ram, request.vram)
    with _lock:
        if not _seen or time.monotonic() - _seen[0][0] > SEEN_S:
            _seen[:] = [(time.monotonic(), Request().find_machine())]
        return _seen[0][1]


@lru_cache(maxsize=64)
def _wished(devices: tuple[str, ...], ram: str | None, vram: str | None) -> Machine:
    return Request(devices=devices, ram=ram, vram=vram).find_machine()
