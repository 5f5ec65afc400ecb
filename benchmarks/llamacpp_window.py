"""Windows of a long session on real llama.cpp -> memory and speed of each: both must stay as they are (W6).

python benchmarks/llamacpp_window.py MODEL.gguf [--cache q8_0] [--window 512] [--windows 8] [--sinks 4] [--rounds 3]

CPU time is the engine's own, with one thread. A busy neighbour slows that down too, so the session is run several
times, and of each window the fastest counts. In each window the engine drops the older half of its cache twice.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from edgekit.engine.llamacpp.types import LlamaCppSetup, Mode
from edgekit.memory.cache_types import cache_type
from edgekit.memory.types import Load
from edgekit.runtime.llamacpp.running import Running
from edgekit.runtime.llamacpp.starting import start
from edgekit.runtime.llamacpp.types import Launch
from edgekit.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """When a window was full."""

    wall_s: float
    cpu_s: float
    resident_bytes: int


def tokens(running: Running, count: int) -> Iterator[None]:
    """One for each that comes. A random model ends when it likes to, so its end is ignored."""
    connection = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=3600)
    asked = {
        "prompt": "the quick brown fox",
        "n_predict": count,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/completion", json.dumps(asked), headers)
    for line in connection.getresponse():
        if line.startswith(b"data: "):
            yield
    connection.close()


def look(running: Running, process: psutil.Process) -> Seen:
    held, spent = running.resident(), process.cpu_times()
    if held is None:
        raise SystemExit(f"the engine is gone: {running.last_words}")
    return Seen(
        wall_s=time.perf_counter(),
        cpu_s=spent.user + spent.system,
        resident_bytes=held.resident_bytes,
    )


def windows(running: Running, window: int, count: int) -> list[Seen]:
    process = psutil.Process(running.pid)
    seen = [look(running, process)]
    for number, _ in enumerate(tokens(running, window * count), 1):
        if number % window == 0:
            seen.append(look(running, process))
    return seen


def table(rounds: list[list[Seen]], window: int) -> Iterator[str]:
    yield "| window | RSS MiB | tokens per CPU s | tokens per s |"
    yield "|---|---|---|---|"
    spent, sizes = [], []
    for number, steps in enumerate(zip(*map(pairwise, rounds), strict=True), 1):
        spent.append(min(after.cpu_s - before.cpu_s for before, after in steps))
        sizes.append(max(after.resident_bytes for _, after in steps))
        wall_s = min(after.wall_s - before.wall_s for before, after in steps)
        yield (
            f"| {number} | {sizes[-1] / MIB:.1f} | {window / spent[-1]:,.0f} | {window / wall_s:,.0f} |"
        )
    yield (
        f"\nlast against second: RSS x {sizes[-1] / sizes[1]:.3f}, "
        f"tokens per CPU s x {spent[1] / spent[-1]:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cache", default="f16")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    kind = cache_type(asked.cache)
    launch = Launch(
        path=asked.model,
        load=Load(context_tokens=asked.window, sequences=1, cache_k=kind, cache_v=kind),
        setup=LlamaCppSetup(mode=Mode.SERVER, cache_ram_mib=0),
        sinks=asked.sinks,
        rolling=True,
        threads=1,
    )
    with start(launch) as running:
        print(
            f"{asked.windows} windows of {asked.window} tokens, {asked.sinks} sinks, {kind.name} cache"
        )
        found = [windows(running, asked.window, asked.windows) for _ in range(asked.rounds)]
        print("\n".join(table(found, asked.window)))


if __name__ == "__main__":
    main()
