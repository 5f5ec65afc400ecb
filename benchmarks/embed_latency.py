"""Pauses of an event loop while a large model embeds, and the time until a cancelled call has stopped.

python benchmarks/embed_latency.py MODEL.gguf: a file whose pass takes seconds (benchmarks/encoder_speed.py makes one).
"""

from __future__ import annotations

import argparse
import asyncio
import time

from edgekit.embed import Embedder, Limits, open_embedder
from edgekit.engines.native.kernels.types import Floats

TICK_S = 0.001
ROUNDS = 5
LONG = "word " * 4000  # truncated to the limit


def begin(embedder: Embedder, text: str) -> tuple[asyncio.Task[Floats], asyncio.Event]:
    """A call, and an event that is set at its first tile."""
    started = asyncio.Event()

    def on_progress(_: float) -> None:
        started.set()

    return asyncio.create_task(embedder.aembed([text], progress=on_progress)), started


async def gaps_while_embedding(embedder: Embedder) -> list[float]:
    """Delays of the loop's timer in seconds, sorted."""
    task, _ = begin(embedder, LONG)
    gaps = []
    while not task.done():
        before = time.perf_counter()
        await asyncio.sleep(TICK_S)
        gaps.append(time.perf_counter() - before - TICK_S)
    await task
    return sorted(gaps)


async def times_to_stop(embedder: Embedder) -> list[float]:
    """Seconds from a cancellation to the first tile of the next call, sorted."""
    delays = []
    for _ in range(ROUNDS):
        task, started = begin(embedder, LONG)
        await started.wait()
        await asyncio.sleep(0.2)
        cancelled = time.perf_counter()
        task.cancel()
        following, started = begin(embedder, "a")
        await started.wait()
        delays.append(time.perf_counter() - cancelled)
        following.cancel()
        await asyncio.gather(task, following, return_exceptions=True)
    return sorted(delays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--budget", default="200M")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 256])
    arguments = parser.parse_args()
    print(
        "| tokens | pauses of the loop: p50 | p99 | worst | a cancelled pass has stopped after (worst of 5) |"
    )
    print("|---|---|---|---|---|")
    for tokens in arguments.tokens:
        with open_embedder(
            arguments.model,
            memory_budget=arguments.budget,
            limits=Limits(tokens=tokens),
            truncate=True,
        ) as embedder:
            gaps = asyncio.run(gaps_while_embedding(embedder))
            stops = asyncio.run(times_to_stop(embedder))
            p50, p99 = gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100]
            cells = [f"{1000 * seconds:.1f} ms" for seconds in (p50, p99, gaps[-1], stops[-1])]
            print(f"| {tokens} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
