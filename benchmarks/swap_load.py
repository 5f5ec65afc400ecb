"""Three models in a budget for two: requests in turn, the time of each swap, and the memory of all engines together.

    python benchmarks/swap_load.py A.gguf B.gguf C.gguf [--requests 200] [-c 2048]

With one client every request is a swap: the model that is asked for next is the one that was stopped last.
The memory is that of all engine processes, sampled 20 times a second, less what one has before it loads anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import psutil

from edgekit.units import MIB

EVERY_S = 0.05


def serve(words: list[str]) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    command = [sys.executable, "-m", "edgekit", "serve", *words, "--json", "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit(f"edgekit serve ended with {process.wait()}")
    return process, json.loads(line)


def resident_of(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


class Sampler(threading.Thread):
    """Samples the memory of the engines until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.server, self.ended = psutil.Process(pid), threading.Event()
        self.samples: list[tuple[int, int]] = []  # bytes, engines
        self.processes: set[int] = set()  # of every engine that was started

    def run(self) -> None:
        while not self.ended.wait(EVERY_S):
            engines = self.server.children()
            self.processes.update(engine.pid for engine in engines)
            sizes = [resident_of(engine) for engine in engines]
            self.samples.append((sum(sizes), sum(size > 0 for size in sizes)))


async def ask(client: httpx2.AsyncClient, address: str, name: str) -> float:
    """The seconds of one request. Raises for an answer that is not 200."""
    begun_s = time.perf_counter()
    body = {"model": name, "prompt": f"Hello {name}", "max_tokens": 4}
    reply = await client.post(f"{address}/v1/completions", json=body, timeout=600)
    reply.raise_for_status()
    assert reply.json()["model"] == name
    return time.perf_counter() - begun_s


async def ask_in_turn(address: str, names: list[str], count: int, clients: int) -> list[float]:
    """Requests for one model after the other, from several clients at once."""
    line = iter([names[number % len(names)] for number in range(count)])

    async def work(client: httpx2.AsyncClient) -> list[float]:
        return [await ask(client, address, name) for name in line]

    async with httpx2.AsyncClient() as client:
        results = await asyncio.gather(*(work(client) for _ in range(clients)))
    return [seconds for result in results for seconds in result]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs=3, type=Path)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("-c", "--context", default="2048")
    arguments = parser.parse_args()
    words = [*map(str, arguments.models), "-c", arguments.context, "-np", "1", "-cram", "0"]
    process, ready = serve(words)
    sizes = [model["bytes"][0] for model in ready["models"]]
    process.terminate()
    process.wait()
    budget = sum(sorted(sizes)[-2:]) + min(sizes) // 2
    for clients in (1, 8):
        process, ready = serve([*words, "--budget", str(budget)])
        names = [model["name"] for model in ready["models"]]
        promised = ready["memories"][0]["available_bytes"]
        sampler = Sampler(process.pid)
        sampler.start()
        begun_s = time.perf_counter()
        seconds = asyncio.run(ask_in_turn(ready["address"], names, arguments.requests, clients))
        spent_s = time.perf_counter() - begun_s
        sampler.ended.set()
        sampler.join()
        process.terminate()
        process.wait()
        idle = idle_bytes(arguments.models[0], arguments.context)
        peak = max(size - engines * idle for size, engines in sampler.samples)
        seconds.sort()
        report = {
            "clients": clients,
            "requests": len(seconds),
            "failed": arguments.requests - len(seconds),
            "seconds": round(spent_s, 1),
            "promised_mib": round(promised / MIB),
            "peak_mib": round(peak / MIB),
            "loads": len(sampler.processes),
            "most_engines": max(engines for _, engines in sampler.samples),
            "samples": len(sampler.samples),
            "median_s": round(statistics.median(seconds), 2),
            "most_s": round(seconds[-1], 2),
        }
        print(json.dumps(report), flush=True)


def idle_bytes(model: Path, context: str) -> int:
    """The memory of an engine's process with its libraries, before it loads a model."""
    process, ready = serve([str(model), "-c", context, "-np", "1"])
    process.terminate()
    process.wait()
    size: int = ready["idle_bytes"]
    return size


if __name__ == "__main__":
    main()
