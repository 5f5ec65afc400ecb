"""Memory and speed of each window of a long session on the built-in engine; both must stay constant (W6).

python benchmarks/rolling_window.py [MODEL.gguf] [--cache q8_0] [--window 512] [--windows 8] [--sinks 4] [--rounds 3]

The default model is random, with 20 million weights. Speeds are per second of CPU time, with one thread. Other work
slows that down too, so the session is run several times, and the fastest of each window counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil
from llamacpp_window import Sample, table

from edgekit.bill.types import Load, cache_type
from edgekit.engines.native.generator import StreamEngine, open_stream
from edgekit.engines.native.stream_plan import StreamSetup

PROMPT_TOKENS = 4


def sample() -> Sample:
    process = psutil.Process()
    return Sample(decoded_ms=time.process_time() * 1000, resident_bytes=process.memory_info().rss)


def windows(engine: StreamEngine, window: int, count: int) -> list[Sample]:
    """Generates greedily, and samples after each window."""
    engine.reset()
    logits = engine.feed(range(10, 10 + PROMPT_TOKENS))
    samples = [sample()]
    for _ in range(count):
        for _ in range(window):
            logits = engine.feed((int(logits.argmax()),))
        samples.append(sample())
    return samples


def random_model(folder: Path) -> Path:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.embed_models import write_model

    path = folder / "random.gguf"
    return write_model(path, "llama", kind="Q8_0", width=512, inner=1536, heads=8, layers=6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--cache", default="f16")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    kind = cache_type(arguments.cache)
    load = Load(context_tokens=arguments.window, cache_k=kind, cache_v=kind)
    setup = StreamSetup(threads=1, keep_bytes=None, sinks=arguments.sinks, rolling=True)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model or random_model(Path(folder))
        with open_stream(path, load=load, setup=setup) as engine:
            print(
                f"{arguments.windows} windows of {arguments.window} tokens, {arguments.sinks} sinks, {kind.name} cache,"
                f" {engine.plan.total_bytes:,} bytes planned"
            )
            results = [
                windows(engine, arguments.window, arguments.windows)
                for _ in range(arguments.rounds)
            ]
            print("\n".join(table(results, arguments.window)))


if __name__ == "__main__":
    main()
