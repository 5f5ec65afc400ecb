"""Estimates per second of the web server on one core, and the duration of a slider step.

    python benchmarks/web_speed.py [--seconds 5] [--connections 4]

Over HTTP with persistent connections, the server on one core and the client on another if the system can pin them.
Context, batch and sequences differ between requests, so that no answer is cached. The second rate is per CPU second of
the server (Linux): the rate of a core without other work.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GOAL_PER_S = 150
MODELS = ("qwen3-8b", "gemma-3-27b", "qwen3-30b-a3b", "deepseek-v3")
MACHINE = {"device": ["RTX 4090"], "ram": "64G"}
WARM = 24  # requests before the measurement, because graphs are built once per model
STEPS = 200
_PORT = re.compile(r"http://127\.0\.0\.1:(\d+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=4)
    arguments = parser.parse_args()
    with _server() as (port, pid):
        print("| model | estimate, requests/s | per CPU second | fit, p50 ms | fit, p95 ms |")
        print("|---|---|---|---|---|")
        for model in MODELS:
            rate, own_core_rate = _rate(port, pid, model, arguments.seconds, arguments.connections)
            steps = _steps(port, model)
            figure = f"{rate:,.0f}" if rate >= GOAL_PER_S else f"{rate:,.0f} (goal {GOAL_PER_S})"
            p95 = statistics.quantiles(steps, n=20)[-1]
            print(
                f"| {model} | {figure} | {own_core_rate} | {statistics.median(steps):.1f} | {p95:.1f} |"
            )


@contextmanager
def _server() -> Iterator[tuple[int, int]]:
    command = [sys.executable, "-m", "edgekit", "web", "--port", "0", "--no-browser", "--offline"]
    pinned = _pin(0)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if pinned:
        _pin(1)
    try:
        yield _port(process), process.pid
    finally:
        process.terminate()
        process.wait(10)


def _pin(index: int) -> bool:
    """Pins this process and later children to one of its cores; False if the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    cores = sorted(_CORES)
    os.sched_setaffinity(0, {cores[index % len(cores)]})
    return True


_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if result := _PORT.search(line):
            return int(result[1])
    sys.exit("the server did not come up")


def _loads(start: int) -> Iterator[dict[str, Any]]:
    """Different loads, as a user of the page requests them."""
    for number in itertools.count(start):
        yield {
            "context": 4096 + number % 113 * 256,
            "parallel": 1 + number % 3,
            "ubatch": (256, 512, 1024)[number % 3],
            "type_k": ("f16", "q8_0")[number % 2],
            "type_v": ("f16", "q8_0")[number % 2],
            "flash_attn": "on",
            "n_gpu_layers": "all",
        }


class _Client:
    """A persistent connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, call: str, fields: dict[str, Any]) -> None:
        body = json.dumps(fields)
        head = {"Content-Type": "application/json"}
        self._connection.request("POST", f"/api/v1/{call}", body, head)
        figure = self._connection.getresponse()
        text = figure.read()
        if figure.status != 200:
            sys.exit(f"{call} answered {figure.status}: {text[:200]!r}")


def _cpu_s(pid: int) -> float | None:
    """CPU seconds of a process so far; None where /proc is missing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rate(port: int, pid: int, model: str, seconds: float, connections: int) -> tuple[float, str]:
    """Requests per second, and per CPU second of the server."""
    counts = [0] * connections
    warm = _Client(port)
    for fields in itertools.islice(_loads(0), WARM):
        warm.ask("estimate", {"model": model, **fields})
    before = _cpu_s(pid)
    end = time.perf_counter() + seconds

    def ask(index: int) -> None:
        client = _Client(port)
        for fields in _loads(index * 1009):
            if time.perf_counter() > end:
                return
            client.ask("estimate", {"model": model, **fields})
            counts[index] += 1

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = _cpu_s(pid)
    own_core_rate = (
        "" if before is None or after is None else f"{sum(counts) / (after - before):,.0f}"
    )
    return sum(counts) / seconds, own_core_rate


def _steps(port: int, model: str) -> list[float]:
    """Milliseconds of each step of a slider over contexts, one after the other."""
    client = _Client(port)
    client.ask("fit", {"model": model, "context": 4096, **MACHINE})
    result: list[float] = []
    for step in range(STEPS):
        start = time.perf_counter()
        client.ask("fit", {"model": model, "context": 4096 + step * 128, **MACHINE})
        result.append((time.perf_counter() - start) * 1000)
    return result


if __name__ == "__main__":
    main()
