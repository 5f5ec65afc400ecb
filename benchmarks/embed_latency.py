"""What an event loop feels while a large model embeds, and how soon a call that is called off has ended.

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
LONG = "word " * 4000  # cut to the tokens that are asked for


def begin(embedder: Embedder, text: str) -> tuple[asyncio.Task[Floats], asyncio.Event]:
    """A call, and what is set at its first tile."""
    begun = asyncio.Event()

    def tell(_: float) -> None:
        begun.set()

    return asyncio.create_task(embedder.aembed([text], progress=tell)), begun


async def gaps_while_embedding(embedder: Embedder) -> list[float]:
    """How much later than asked the loop came back, sorted."""
    task, _ = begin(embedder, LONG)
    gaps = []
    while not task.done():
        request = time.perf_counter()
        await asyncio.sleep(TICK_S)
        gaps.append(time.perf_counter() - request - TICK_S)
    await task
    return sorted(gaps)


async def times_to_stop(embedder: Embedder) -> list[float]:
    """From the cancellation until the next call has been through its first tile."""
    results = []
    for _ in range(ROUNDS):
        task, begun = begin(embedder, LONG)
        await begun.wait()
        await asyncio.sleep(0.2)
        cancelled = time.perf_counter()
        task.cancel()
        following, begun = begin(embedder, "a")
        await begun.wait()
        results.append(time.perf_counter() - cancelled)
        following.cancel()
        await asyncio.gather(task, following, return_exceptions=True)
    return sorted(results)


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
            answer = [f"{1000 * seconds:.1f} ms" for seconds in (p50, p99, gaps[-1], stops[-1])]
            print(f"| {tokens} | {' | '.join(answer)} |")


if __name__ == "__main__":
    main()
