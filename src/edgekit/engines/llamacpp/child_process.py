"""Starts llama.cpp's child script, and tells how much memory a process holds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgekit.engines.llamacpp.child import read_status
from edgekit.engines.process import ChildProcess, Message
from edgekit.engines.program import Resident

SCRIPT = Path(__file__).with_name("child.py")
PASSIVE = {"OMP_WAIT_POLICY": "passive"}  # threads that wait do not spin
# A GPU takes part even when no layer is offloaded: hidden where only the CPU is meant.
NO_DEVICES = dict.fromkeys(
    ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"), ""
)
_ENVIRONMENT = {
    "GGML_NO_BACKTRACE": "1",  # an abort would start a debugger on itself
    "MALLOC_ARENA_MAX": "2",  # each arena reserves 64 MiB of the address space
}
_FOREIGN = ("AIP_MODE",)  # llama.cpp would listen where Google's platform wants it to


def start_child(
    job: str,
    request: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    on_message: Callable[[Message], None] | None = None,
    title: str = "",
) -> ChildProcess:
    """`job` is one of the script's; `title`, by default the name of the model's file, shows in the list of processes.

    EngineError where it cannot be started.
    """
    ours = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    child = ChildProcess(
        [sys.executable, "-P", str(SCRIPT), title or Path(request.get("model", job)).name],
        environment={**ours, **_ENVIRONMENT, **environment},
        on_line=on_line,
        on_message=on_message,
    )
    child.send({**request, "job": job})
    return child


def resident_at(when: str, memory: Mapping[str, int]) -> Resident | None:
    """From what `read_status` found; None where it found nothing."""
    if "VmRSS" not in memory:
        return None
    return Resident(
        when=when,
        resident_bytes=memory["VmRSS"],
        anonymous_bytes=memory.get("RssAnon"),
        file_bytes=memory.get("RssFile"),
        model_bytes=memory.get("Model"),
        swapped_bytes=memory.get("VmSwap", 0),
    )


def resident_of(pid: int, when: str) -> Resident | None:
    """Of any process; None where it is gone, or the system does not tell."""
    if (found := resident_at(when, read_status(pid))) is not None:
        return found
    import psutil

    with suppress(psutil.Error):
        return Resident(when=when, resident_bytes=int(psutil.Process(pid).memory_info().rss))
    return None
