"""What the first page asks for is read while the browser comes up: the catalog, the machine, the table of devices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edgekit.catalog import read_catalog
from edgekit.report.hardware import devices_json, hardware_json
from edgekit.request import Request
from edgekit.web.machines import machine_now

_log = logging.getLogger("edgekit.web")
_STEPS: tuple[Callable[[], object], ...] = (
    read_catalog,
    lambda: hardware_json(machine_now(Request())),
    devices_json,
)


def warm() -> threading.Thread:
    """In a thread. What goes wrong is told to whoever asks for it."""
    thread = threading.Thread(target=_warm, name="edgekit warming", daemon=True)
    thread.start()
    return thread


def _warm() -> None:
    for step in _STEPS:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - nobody has asked yet
            _log.debug("not read beforehand: %s", error)
