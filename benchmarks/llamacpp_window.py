"""Memory and speed of each window of a long session on llama.cpp; both must stay constant (W6).

python benchmarks/llamacpp_window.py MODEL.gguf [--cache q8_0] [--window 512] [--windows 8] [--sinks 4] [--rounds 3]

Times are those that the engine reports, with one thread. Other work slows it down, so the session is run several times,
and the fastest of each window counts. In each window the engine drops the older half of its cache twice.
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
class Sample:
    """The state when a window was full."""

    decoded_ms: float
    resident_bytes: int


def generated(running: EngineProcess, count: int) -> Iterator[tuple[int, float]]:
    """(tokens so far, milliseconds so far) of each event. Ignores the random ends of the model."""
    connection = http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=3600)
    fields = {
        "prompt": "the quick brown fox",
        "n_predict": count,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "timings_per_token": True,
    }
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/completion", json.dumps(fields), headers)
    for line in connection.getresponse():
        if line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            yield event["tokens_predicted"], event["timings"]["predicted_ms"]
    connection.close()


def windows(running: EngineProcess, window: int, count: int) -> list[Sample]:
    samples = [Sample(decoded_ms=0.0, resident_bytes=0)]
    for tokens, decoded_ms in generated(running, window * count):
        # An incomplete character gives no event: the next one has two tokens.
        if tokens >= len(samples) * window:
            memory = running.resident()
            resident_bytes = 0 if memory is None else memory.resident_bytes
            samples.append(Sample(decoded_ms=decoded_ms, resident_bytes=resident_bytes))
    return samples


def table(rounds: list[list[Sample]], window: int) -> Iterator[str]:
    yield "| window | RSS MiB | tokens per s |"
    yield "|---|---|---|"
    times_ms, sizes = [], []
    for number, steps in enumerate(zip(*map(pairwise, rounds), strict=True), 1):
        times_ms.append(min(after.decoded_ms - before.decoded_ms for before, after in steps))
        sizes.append(max(after.resident_bytes for _, after in steps))
        yield f"| {number} | {sizes[-1] / MIB:.1f} | {window / times_ms[-1] * 1000:,.0f} |"
    yield (
        f"\nlast against second: RSS x {sizes[-1] / sizes[1]:.3f}, "
        f"tokens per s x {times_ms[1] / times_ms[-1]:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cache", default="f16")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    kind = cache_type(arguments.cache)
    launch = Launch(
        weights=LocalWeights(model=arguments.model),
        load=Load(context_tokens=arguments.window, sequences=1, cache_k=kind, cache_v=kind),
        setup=LlamaCppSetup(mode=LlamaMode.SERVER, cache_ram_mib=0),
        sinks=arguments.sinks,
        rolling=True,
        threads=1,
    )
    with start(launch) as running:
        print(
            f"{arguments.windows} windows of {arguments.window} tokens, {arguments.sinks} sinks, {kind.name} cache"
        )
        results = [
            windows(running, arguments.window, arguments.windows) for _ in range(arguments.rounds)
        ]
        print("\n".join(table(results, arguments.window)))


if __name__ == "__main__":
    main()
