"""What the gateway of `edgekit serve` adds to each streamed chunk.

    python benchmarks/gateway_speed.py [--seconds 10] [--rounds 3]

An upstream writes events of 200 bytes with the time of day in them, as fast as it can or 100 a second; 1 and 32 clients
read them, directly and through the gateway in turn. Upstream, gateway and clients are three processes. Paced streams:
the age of a chunk when it arrives. Fast streams: the time between two chunks of one client, which is what the slowest
of the three processes needs for all clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from edgekit.engines.request_rules import COMPLETIONS, RequestRules
from edgekit.gateway.models import OneModel
from edgekit.gateway.server import GatewayServer
from edgekit.gateway.types import GatewaySettings, Upstream
from edgekit.server.connections import listen

PATH = COMPLETIONS[0].path
TOKENS_PER_S = 100
CLIENTS = (1, 32)
MOST_OVERHEAD_S = 0.002  # at the 95th percentile of a paced stream
_FILLER = "x" * 150


async def _events(per_s: float, seconds: float) -> AsyncIterator[bytes]:
    start_s = time.perf_counter()
    number = 0
    while (now_s := time.perf_counter()) < start_s + seconds:
        if per_s:
            number += 1
            await asyncio.sleep(max(start_s + number / per_s - now_s, 0))
        else:
            await asyncio.sleep(0)
        event = {"sent_ns": time.perf_counter_ns(), "content": _FILLER}
        yield b"data: " + json.dumps(event).encode() + b"\n\n"


async def _answer(request: Request) -> StreamingResponse:
    body = await request.json()
    return StreamingResponse(
        _events(body["per_s"], body["seconds"]), media_type="text/event-stream"
    )


def _run_upstream(ready: Connection) -> None:
    app = Starlette(routes=[Route(PATH, _answer, methods=["POST"])])
    with listen("127.0.0.1", 0) as listening:
        ready.send(f"http://127.0.0.1:{listening.getsockname()[1]}")
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        uvicorn.Server(config).run(sockets=[listening])


def _run_gateway(ready: Connection, address: str) -> None:
    rules = RequestRules(endpoints=COMPLETIONS)
    upstream = Upstream(address=address, model="m", window_tokens=4096, rules=rules)
    with GatewayServer(GatewaySettings(port=0), OneModel(name="m", upstream=upstream)) as server:
        ready.send(server.address)
        multiprocessing.Event().wait()


@contextmanager
def _process(function: Any, *arguments: str) -> Iterator[tuple[str, psutil.Process]]:
    """A process that runs the function; yields the address that it sends."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=function, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        yield ours.recv(), psutil.Process(process.pid)
    finally:
        process.kill()
        process.join()


@dataclass(frozen=True, slots=True)
class Streams:
    """The chunks of all clients in one round."""

    ages_s: list[float]
    gaps_s: list[float]


async def _read(address: str, per_s: float, seconds: float, streams: Streams) -> None:
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"per_s": per_s, "seconds": seconds, "messages": []}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readuntil(b"\r\n\r\n")
    last_s, rest = 0.0, b""
    while size := int(await reader.readline(), 16):
        *events, rest = (rest + (await reader.readexactly(size + 2))[:-2]).split(b"\n\n")
        for event in events:
            now_s = time.perf_counter()
            streams.ages_s.append(now_s - json.loads(event[6:])["sent_ns"] / 1e9)
            if last_s:
                streams.gaps_s.append(now_s - last_s)
            last_s = now_s
    writer.close()


async def _round(address: str, clients: int, per_s: float, seconds: float) -> Streams:
    streams = Streams([], [])
    await asyncio.gather(*(_read(address, per_s, seconds, streams) for _ in range(clients)))
    return streams


def _percentiles_ms(values_s: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values_s, n=100)
    return cuts[49] * 1e3, cuts[94] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(
        "| stream | clients | chunks | direct p50 / p95 | gateway p50 / p95 | added p50 / p95 | gateway's CPU a chunk |"
    )
    print("|---|---|---|---|---|---|---|")
    is_slow = False
    with _process(_run_upstream) as (direct, _), _process(_run_gateway, direct) as (front, process):
        for per_s in (TOKENS_PER_S, 0):
            for clients in CLIENTS:
                results: dict[str, Streams] = {name: Streams([], []) for name in (direct, front)}
                cpu_s = 0.0
                for number in range(2 * arguments.rounds):
                    address = (direct, front)[number % 2]
                    before = sum(process.cpu_times()[:2])
                    part = asyncio.run(
                        _round(address, clients, per_s, arguments.seconds / arguments.rounds)
                    )
                    cpu_s += sum(process.cpu_times()[:2]) - before
                    results[address].ages_s.extend(part.ages_s)
                    results[address].gaps_s.extend(part.gaps_s)
                figures = [
                    _percentiles_ms(streams.ages_s if per_s else streams.gaps_s)
                    for streams in results.values()
                ]
                added = [through - plain for plain, through in zip(*figures, strict=True)]
                is_slow = is_slow or bool(per_s and added[1] > MOST_OVERHEAD_S * 1e3)
                cells = " | ".join(f"{a:.2f} / {b:.2f} ms" for a, b in (*figures, added))
                chunks = len(results[front].ages_s)
                name = f"{per_s} a second" if per_s else "as fast as it can"
                print(
                    f"| {name} | {clients} | {chunks:,} | {cells} | {cpu_s / chunks * 1e6:.0f} us |",
                    flush=True,
                )
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if is_slow:
        raise SystemExit("the gateway adds more than 2 ms at the 95th percentile")


if __name__ == "__main__":
    main()
