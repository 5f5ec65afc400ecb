"""Where we run -> the name of its processor and how many cores of it a program gets."""

from __future__ import annotations

import os
import platform
import re

from edgekit.machine.apple import chip_name
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.tree import printable, text_of
from edgekit.machine.types import System

# Intel's and AMD's name, then how ARM boards and POWER machines say it.
_NAMES = ("model name", "Model", "Hardware", "cpu")


def processor_name(here: Surroundings) -> str:
    if here.system is System.MACOS:
        return chip_name(here)
    if here.system is System.LINUX:
        written = text_of(here.root / "proc/cpuinfo") or ""
        found = (re.search(rf"^{name}\s*:\s*(.+)$", written, re.MULTILINE) for name in _NAMES)
        name = next((printable(name[1], 96) for name in found if name), "")
        if name:
            return name
    return printable(platform.processor() or platform.machine(), 96)


def core_count(here: Surroundings) -> int | None:
    """Real cores, no more than this process may run on."""
    cores = here.psutil().cpu_count(logical=False) or os.cpu_count()
    if here.system is System.LINUX and hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
        return allowed if cores is None else min(cores, allowed)
    return cores
