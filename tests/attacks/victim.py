"""Reads hostile files, each in a process of its own under a limit, and says what it cost.

Run by test_bombs.py, which writes lines `[KIND, PATH, MEMORY_BYTES, CPU_S]` and reads one line for each. The processes
are copies of the first, so that it all is imported once.
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
    """VmSize or VmHWM of this process. (ru_maxrss would begin with what the parent had.)"""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise LookupError(field)


def set_limit(more_bytes: int) -> None:
    limit = memory_bytes("VmSize") + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


PACE_S = 0.09  # of the machine, and at the moment, that the limits are made for


def at_usual_pace_s(cpu_s: float, limit_s: float) -> float:
    """What it would have taken where `pace_s` is PACE_S. Less than the limit is less at every pace."""
    return cpu_s if cpu_s < limit_s else cpu_s * min(1.0, PACE_S / pace_s())


def pace_s() -> float:
    """How long a fixed piece of work takes now: shared machines are twice as fast at one moment as at the next."""
    start = time.process_time()
    for number in range(200_000):  # nothing is held: memory is measured too
        str(number).translate({})
    return time.process_time() - start


def attacked(kind: str, path: str, more_bytes: int, limit_s: float) -> dict[str, object]:
    source = FileSource(Path(path))
    if kind == "whole":  # everything is imported now: that is not what a file costs
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
    grown = memory_bytes("VmHWM") - before
    cpu_s = at_usual_pace_s(cpu_s, limit_s)
    return {"error": error, "message": message, "cpu_s": cpu_s, "grown_bytes": grown}


def answer(line: str) -> int:
    """In a copy of this process; its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        print(json.dumps(attacked(*json.loads(line))), flush=True)
    except BaseException:  # noqa: BLE001 - the copy must not go on with the loop below
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        if code := answer(line):
            print(json.dumps({"died": code}), flush=True)


if __name__ == "__main__":
    main()
