"""Windows of a long session on real llama.cpp -> memory and speed of each: both must stay as they are (W6).

python benchmarks/llamacpp_window.py MODEL.gguf [--cache q8_0] [--window 512] [--windows 8] [--sinks 4] [--rounds 3]

Times are the engine's own account, with one thread. A busy neighbour slows it down, so the session is run several
times, and of each window the fastest counts. In each window the engine drops the older half of its cache twice.
"""

from __future__ import annotations

import argparse
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from edgekit.bill.types import Load, cache_type
from edgekit.engines.llamacpp.run.engine import EngineProcess, start
from edgekit.engines.llamacpp.run.launch import Launch
from edgekit.engines.llamacpp.types import LlamaCppSetup, LlamaMode
from edgekit.engines.program import LocalWeights
from edgekit.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """When a window was full."""

    decoded_ms: float
    resident_bytes: int


def written(running: EngineProcess, count: int) -> Iterator[tuple[int, float]]:
    """With each event: how many tokens there are, and the milliseconds they took.

    A random model ends when it likes to, so its end is ignored.
    """
    connection = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=3600)
    request = {
        "prompt": "the quick brown fox",
        "n_predict": count,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "timings_per_token": True,
    }
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/completion", json.dumps(request), headers)
    for line in connection.getresponse():
        if line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            yield event["tokens_predicted"], event["timings"]["predicted_ms"]
    connection.close()


def windows(running: EngineProcess, window: int, count: int) -> list[Seen]:
    seen = [Seen(decoded_ms=0.0, resident_bytes=0)]
    for tokens, decoded_ms in written(running, window * count):
        if tokens >= len(seen) * window:  # half a character is no event: one may tell of two tokens
            held = running.resident()
            resident_bytes = 0 if held is None else held.resident_bytes
            seen.append(Seen(decoded_ms=decoded_ms, resident_bytes=resident_bytes))
    return seen


def table(rounds: list[list[Seen]], window: int) -> Iterator[str]:
    yield "| window | RSS MiB | tokens per s |"
    yield "|---|---|---|"
    spent, sizes = [], []
    for number, steps in enumerate(zip(*map(pairwise, rounds), strict=True), 1):
        spent.append(min(after.decoded_ms - before.decoded_ms for before, after in steps))
        sizes.append(max(after.resident_bytes for _, after in steps))
        yield f"| {number} | {sizes[-1] / MIB:.1f} | {window / spent[-1] * 1000:,.0f} |"
    yield (
        f"\nlast against second: RSS x {sizes[-1] / sizes[1]:.3f}, "
        f"tokens per s x {spent[1] / spent[-1]:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cache", default="f16")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    request = parser.parse_args()
    kind = cache_type(request.cache)
    launch = Launch(
        weights=LocalWeights(model=request.model),
        load=Load(context_tokens=request.window, sequences=1, cache_k=kind, cache_v=kind),
        setup=LlamaCppSetup(mode=LlamaMode.SERVER, cache_ram_mib=0),
        sinks=request.sinks,
        rolling=True,
        threads=1,
    )
    with start(launch) as running:
        print(
            f"{request.windows} windows of {request.window} tokens, {request.sinks} sinks, {kind.name} cache"
        )
        results = [windows(running, request.window, request.windows) for _ in range(request.rounds)]
        print("\n".join(table(results, request.window)))


if __name__ == "__main__":
    main()
