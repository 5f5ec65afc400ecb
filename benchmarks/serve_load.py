"""Many clients at once on `edgekit serve`: is one lost, does memory stay flat, how long does one wait?

    python benchmarks/serve_load.py MODEL.gguf [--clients 32] [--seconds 60]

The clients are the `openai` package's own. Memory is the engine's, as the system counts it.
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
class Seen:
    answered: int = 0
    tokens: int = 0
    lost: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)


async def _client(base_url: str, end_s: float, number: int, seen: Seen) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=300) as client:
        turn = 0
        while time.monotonic() < end_s:
            begun_s = time.monotonic()
            try:
                reply = await client.chat.completions.create(
                    model="any",
                    messages=[{"role": "user", "content": f"client {number}, turn {turn}"}],
                    max_tokens=24,
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, a request was lost
                seen.lost.append(repr(error)[:200])
                return
            seen.answered += 1
            seen.tokens += reply.usage.completion_tokens if reply.usage else 0
            seen.waits_s.append(time.monotonic() - begun_s)
            turn += 1


async def _watch(pid: int, end_s: float, seen: Seen) -> None:
    engine = psutil.Process(pid)
    while time.monotonic() < end_s:
        seen.resident_bytes.append(engine.memory_info().rss)
        await asyncio.sleep(0.5)


async def load(base_url: str, pid: int, *, clients: int, seconds: float) -> Seen:
    seen = Seen()
    end_s = time.monotonic() + seconds
    work = [_client(base_url, end_s, number, seen) for number in range(clients)]
    await asyncio.gather(*work, _watch(pid, end_s, seen))
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    request, more = parser.parse_known_args()
    command = [
        sys.executable,
        "-m",
        "edgekit",
        "serve",
        request.model,
        "--port",
        "0",
        "--json",
        *more,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None  # it is a pipe
        ready: dict[str, Any] = json.loads(server.stdout.readline())
        seen = asyncio.run(
            load(
                ready["openai_base_url"],
                ready["pid"],
                clients=request.clients,
                seconds=request.seconds,
            )
        )
        server.terminate()
    half = seen.resident_bytes[len(seen.resident_bytes) // 4 :]
    print(
        f"{request.clients} clients, {request.seconds:g} s: {seen.answered} answers, {seen.tokens} tokens"
    )
    print(f"lost: {len(seen.lost)} {seen.lost[:3]}")
    print(f"wait: median {statistics.median(seen.waits_s):.2f} s, worst {max(seen.waits_s):.2f} s")
    print(
        f"resident after a quarter: {min(half):,} to {max(half):,} B ({max(half) / min(half):.3f})"
    )


if __name__ == "__main__":
    main()
