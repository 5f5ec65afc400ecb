"""Reads hostile files, each in a child process with a memory limit, and prints the cost.

Run by test_bombs.py, which writes lines `[KIND, PATH, MEMORY_BYTES, CPU_S]` and reads a line for each. The children are
forked, so that the imports are done once.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from edgekit.errors import EdgekitError
from edgekit.formats.bounded_json import read_config
from edgekit.formats.gguf import read_gguf
from edgekit.formats.safetensors import read_safetensors, walk_index
from edgekit.model.inspect import inspect_model
from edgekit.sources.types import ByteSource


class FileSource:
    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.size_bytes = path.stat().st_size
        self._file = path.open("rb", buffering=0)

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
        self._file.seek(offset)
        return self._file.read(length) or b""

    def close(self) -> None:
        self._file.close()


def read_index(source: ByteSource) -> None:
    walk_index(source, lambda tensor, file: None)


READERS: dict[str, Callable[[ByteSource], object]] = {
    "gguf": read_gguf,
    "safetensors": read_safetensors,
    "index": read_index,
    "config": read_config,
}


def memory_bytes(field: str) -> int:
    """VmSize or VmHWM of this process. (ru_maxrss would start with the parent's peak.)"""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise LookupError(field)


def set_limit(more_bytes: int) -> None:
    limit = memory_bytes("VmSize") + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


PACE_S = 0.09  # of the machine for which the limits were chosen


def at_usual_pace_s(cpu_s: float, limit_s: float) -> float:
    """`cpu_s` scaled to a machine whose `pace_s` is PACE_S, if it exceeds the limit."""
    return cpu_s if cpu_s < limit_s else cpu_s * min(1.0, PACE_S / pace_s())


def pace_s() -> float:
    """CPU seconds of a fixed piece of work now; the speed of shared machines varies by a factor of two."""
    start = time.process_time()
    for number in range(200_000):  # without keeping anything, because memory is measured too
        str(number).translate({})
    return time.process_time() - start


def measure(kind: str, path: str, more_bytes: int, limit_s: float) -> dict[str, object]:
    source = FileSource(Path(path))
    if kind == "whole":  # imports everything, which is not a cost of the file
        inspect_model("sample:gemma-3-27b")
    before = memory_bytes("VmHWM")
    set_limit(more_bytes)
    start = time.process_time()
    error, message = "", ""
    try:
        inspect_model(path) if kind == "whole" else READERS[kind](source)
    except EdgekitError as caught:
        error, message = type(caught).__name__, str(caught)
    cpu_s = time.process_time() - start
    grown_bytes = memory_bytes("VmHWM") - before
    cpu_s = at_usual_pace_s(cpu_s, limit_s)
    return {"error": error, "message": message, "cpu_s": cpu_s, "grown_bytes": grown_bytes}


def run_in_child(line: str) -> int:
    """Handles a line in a forked child; returns its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        print(json.dumps(measure(*json.loads(line))), flush=True)
    except BaseException:  # noqa: BLE001 - the child must not continue with the loop below
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        if code := run_in_child(line):
            print(json.dumps({"died": code}), flush=True)


if __name__ == "__main__":
    main()
