"""Many clients at once on `edgekit serve`: lost requests, growth of memory, waiting times.

    python benchmarks/serve_load.py MODEL.gguf [--clients 32] [--seconds 60]

The clients are those of the `openai` package. Memory is the engine's RSS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import psutil


@dataclass
class Statistics:
    answered: int = 0
    tokens: int = 0
    lost: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)


async def _client(base_url: str, end_s: float, number: int, totals: Statistics) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=300) as client:
        turn = 0
        while time.monotonic() < end_s:
            start_s = time.monotonic()
            try:
                reply = await client.chat.completions.create(
                    model="any",
                    messages=[{"role": "user", "content": f"client {number}, turn {turn}"}],
                    max_tokens=24,
                )
            except Exception as error:  # noqa: BLE001 - any error is a lost request
                totals.lost.append(repr(error)[:200])
                return
            totals.answered += 1
            totals.tokens += reply.usage.completion_tokens if reply.usage else 0
            totals.waits_s.append(time.monotonic() - start_s)
            turn += 1


async def _watch(pid: int, end_s: float, totals: Statistics) -> None:
    engine = psutil.Process(pid)
    while time.monotonic() < end_s:
        totals.resident_bytes.append(engine.memory_info().rss)
        await asyncio.sleep(0.5)


async def load(base_url: str, pid: int, *, clients: int, seconds: float) -> Statistics:
    totals = Statistics()
    end_s = time.monotonic() + seconds
    tasks = [_client(base_url, end_s, number, totals) for number in range(clients)]
    await asyncio.gather(*tasks, _watch(pid, end_s, totals))
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    arguments, serve_flags = parser.parse_known_args()
    command = [
        sys.executable,
        "-m",
        "edgekit",
        "serve",
        arguments.model,
        "--port",
        "0",
        "--json",
        *serve_flags,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None  # it is a pipe
        ready: dict[str, Any] = json.loads(server.stdout.readline())
        totals = asyncio.run(
            load(
                ready["openai_base_url"],
                ready["pid"],
                clients=arguments.clients,
                seconds=arguments.seconds,
            )
        )
        server.terminate()
    later = totals.resident_bytes[len(totals.resident_bytes) // 4 :]
    print(
        f"{arguments.clients} clients, {arguments.seconds:g} s: {totals.answered} answers, {totals.tokens} tokens"
    )
    print(f"lost: {len(totals.lost)} {totals.lost[:3]}")
    print(
        f"wait: median {statistics.median(totals.waits_s):.2f} s, worst {max(totals.waits_s):.2f} s"
    )
    print(
        f"resident after a quarter: {min(later):,} to {max(later):,} B ({max(later) / min(later):.3f})"
    )


if __name__ == "__main__":
    main()
