"""What was said of a machine -> the machine, looked at again only when something may have changed."""

from __future__ import annotations

import threading
import time
from functools import lru_cache

from edgekit.asking.words import Words, machine_of
from edgekit.machine.types import Machine
from edgekit.web.failures import about

SEEN_S = 2.0  # what is free here changes; a slider that is dragged does not wait for it

_lock = threading.Lock()
_seen: list[tuple[float, Machine]] = []


def machine_now(words: Words) -> Machine:
    """The one at hand where none is named. Raises UsageError for a name or a size that means nothing."""
    if words.devices or words.ram is not None or words.vram is not None:
        with about("machine"):
            return _wished(words.devices, words.ram, words.vram)
    with _lock:
        if not _seen or time.monotonic() - _seen[0][0] > SEEN_S:
            _seen[:] = [(time.monotonic(), machine_of(Words()))]
        return _seen[0][1]


@lru_cache(maxsize=64)
def _wished(devices: tuple[str, ...], ram: str | None, vram: str | None) -> Machine:
    return machine_of(Words(devices=devices, ram=ram, vram=vram))
