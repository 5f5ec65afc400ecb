"""What the gateway of `edgekit serve` adds to each streamed chunk.

    python benchmarks/gateway_speed.py [--seconds 10] [--rounds 3]

An upstream writes events of 200 bytes with the time in them, 100 a second or as fast as it can; 1 and 32 clients read
them, directly and through the gateway in turn. Upstream, gateway and clients are three processes. Paced streams: the
age of an event when its client has it (all streams begin together, as those of a batch do). Fast streams: events a
second.
On a machine with other work, `chrt -f 10` in front measures the gateway and not the wait for a core.
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
from multiprocessing.connection import Connection
from typing import Any

import psutil
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from edgekit.engines.request_rules import COMPLETIONS, RequestLimits, RequestRules
from edgekit.gateway.models import OneModel
from edgekit.gateway.server import GatewayServer
from edgekit.gateway.types import GatewaySettings, Upstream
from edgekit.server.connections import listen

PATH = COMPLETIONS[0].path
TOKENS_PER_S = 100
CLIENTS = (1, 32)
MOST_ADDED_MS = 2  # at the 95th percentile
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
    limits = RequestLimits(rules=rules, window_tokens=4096)
    upstream = Upstream(address=address, model="m")
    model = OneModel(name="m", request_limits=limits, upstream=upstream)
    with GatewayServer(GatewaySettings(port=0), model) as server:
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


async def _read(address: str, per_s: float, seconds: float, ages_s: list[float]) -> None:
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"per_s": per_s, "seconds": seconds, "messages": []}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await reader.readuntil(b"\r\n\r\n")
    rest = b""
    while size := int(await reader.readline(), 16):
        *events, rest = (rest + (await reader.readexactly(size + 2))[:-2]).split(b"\n\n")
        now_s = time.perf_counter()
        ages_s += [now_s - json.loads(event[6:])["sent_ns"] / 1e9 for event in events]
    writer.close()


async def _round(address: str, clients: int, per_s: float, seconds: float) -> list[float]:
    """The ages of all events when they arrived."""
    ages_s: list[float] = []
    await asyncio.gather(*(_read(address, per_s, seconds, ages_s) for _ in range(clients)))
    return ages_s


def _percentiles_ms(values_s: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values_s, n=100)
    return cuts[49] * 1e3, cuts[94] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    round_s = arguments.seconds / arguments.rounds
    slow = []
    print("| stream | clients | direct | gateway | added | gateway's CPU an event |")
    print("|---|---|---|---|---|---|")
    with _process(_run_upstream) as (direct, _), _process(_run_gateway, direct) as (front, process):
        for per_s in (TOKENS_PER_S, 0):
            for clients in CLIENTS:
                ages_s: dict[str, list[float]] = {direct: [], front: []}
                cpu_s = 0.0
                for address in (direct, front) * arguments.rounds:
                    before_s = sum(process.cpu_times()[:2])
                    ages_s[address] += asyncio.run(_round(address, clients, per_s, round_s))
                    cpu_s += sum(process.cpu_times()[:2]) - before_s
                if per_s:
                    name = f"{per_s} events a second; age p50 / p95"
                    (p50, p95), through = (_percentiles_ms(ages_s[key]) for key in (direct, front))
                    cells = [f"{p50:.2f} / {p95:.2f} ms", f"{through[0]:.2f} / {through[1]:.2f} ms"]
                    cells.append(f"{through[0] - p50:.2f} / {through[1] - p95:.2f} ms")
                    if through[1] - p95 > MOST_ADDED_MS:
                        slow.append(clients)
                else:
                    name = "as fast as it can; events a second"
                    plain, passed = (
                        len(ages_s[key]) / arguments.seconds for key in (direct, front)
                    )
                    cells = [f"{plain:,.0f}", f"{passed:,.0f}", f"{passed / plain:.2f} times"]
                cpu = f"{cpu_s / len(ages_s[front]) * 1e6:.0f} us"
                print(f"| {name} | {clients} | {' | '.join(cells)} | {cpu} |", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if slow:
        raise SystemExit(f"more than {MOST_ADDED_MS} ms added at p95, with clients: {slow}")


if __name__ == "__main__":
    main()
