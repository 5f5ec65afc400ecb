"""How many estimates a second the page's server answers on one core, and how long a step of a slider waits.

    python benchmarks/web_speed.py [--seconds 5] [--connections 4]

Over real HTTP with connections that stay open, the server on one core and the client on another where the system can
pin them. Context, batch and sequences differ from request to request: nothing is answered from an earlier answer. The
last column is what the server's own clock says (Linux): on a machine that has other work, seconds are shared and it is
what a core to itself would give.
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
WARM = 24  # requests before it counts: graphs are built once for each model
STEPS = 200
_PORT = re.compile(r"http://127\.0\.0\.1:(\d+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=4)
    request = parser.parse_args()
    with _server() as (port, pid):
        print("| model | estimate, requests/s | of a core to itself | fit, p50 ms | fit, p95 ms |")
        print("|---|---|---|---|---|")
        for model in MODELS:
            rate, alone = _rate(port, pid, model, request.seconds, request.connections)
            steps = _steps(port, model)
            answer = f"{rate:,.0f}" if rate >= GOAL_PER_S else f"{rate:,.0f} (goal {GOAL_PER_S})"
            p95 = statistics.quantiles(steps, n=20)[-1]
            print(f"| {model} | {answer} | {alone} | {statistics.median(steps):.1f} | {p95:.1f} |")


@contextmanager
def _server() -> Iterator[tuple[int, int]]:
    words = [sys.executable, "-m", "edgekit", "web", "--port", "0", "--no-browser", "--offline"]
    pinned = _pin(0)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if pinned:
        _pin(1)
    try:
        yield _port(process), process.pid
    finally:
        process.terminate()
        process.wait(10)


def _pin(place: int) -> bool:
    """Run on one core of those it may use, with all that is started from now on. False where that is not known."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    cores = sorted(_CORES)
    os.sched_setaffinity(0, {cores[place % len(cores)]})
    return True


_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if result := _PORT.search(line):
            return int(result[1])
    sys.exit("the server did not come up")


def _loads(start: int) -> Iterator[dict[str, Any]]:
    """Loads that differ from each other, as a person who looks around asks for them."""
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
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, call: str, fields: dict[str, Any]) -> None:
        body = json.dumps(fields)
        head = {"Content-Type": "application/json"}
        self._connection.request("POST", f"/api/v1/{call}", body, head)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            sys.exit(f"{call} answered {answer.status}: {text[:200]!r}")


def _cpu_s(pid: int) -> float | None:
    """What a process has computed so far; None where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rate(port: int, pid: int, model: str, seconds: float, connections: int) -> tuple[float, str]:
    """Requests a second, and what they would be if the server had a core to itself."""
    counts = [0] * connections
    warm = _Client(port)
    for fields in itertools.islice(_loads(0), WARM):
        warm.ask("estimate", {"model": model, **fields})
    before = _cpu_s(pid)
    end = time.perf_counter() + seconds

    def ask(place: int) -> None:
        client = _Client(port)
        for fields in _loads(place * 1009):
            if time.perf_counter() > end:
                return
            client.ask("estimate", {"model": model, **fields})
            counts[place] += 1

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = _cpu_s(pid)
    alone = "" if before is None or after is None else f"{sum(counts) / (after - before):,.0f}"
    return sum(counts) / seconds, alone


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
