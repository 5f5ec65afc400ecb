"""Windows of a long session on the built-in engine -> memory and speed of each: both must stay as they are (W6).

python benchmarks/rolling_window.py [MODEL.gguf] [--cache q8_0] [--window 512] [--windows 8] [--sinks 4] [--rounds 3]

Without a model: a random one of 20 million weights. Tokens are per second of CPU time, with one thread. A busy
neighbour slows that down too, so the session is run several times, and of each window the fastest counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil
from llamacpp_window import Seen, table

from edgekit.bill.types import Load, cache_type
from edgekit.engines.native.generator import StreamEngine, open_stream
from edgekit.engines.native.stream_plan import StreamSetup

PROMPT_TOKENS = 4


def look() -> Seen:
    process = psutil.Process()
    return Seen(decoded_ms=time.process_time() * 1000, resident_bytes=process.memory_info().rss)


def windows(engine: StreamEngine, window: int, count: int) -> list[Seen]:
    """The best token each time, fed again."""
    engine.reset()
    logits = engine.feed(range(10, 10 + PROMPT_TOKENS))
    seen = [look()]
    for _ in range(count):
        for _ in range(window):
            logits = engine.feed((int(logits.argmax()),))
        seen.append(look())
    return seen


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
    request = parser.parse_args()
    kind = cache_type(request.cache)
    load = Load(context_tokens=request.window, cache_k=kind, cache_v=kind)
    setup = StreamSetup(threads=1, keep_bytes=None, sinks=request.sinks, rolling=True)
    with tempfile.TemporaryDirectory() as folder:
        path = request.model or random_model(Path(folder))
        with open_stream(path, load=load, setup=setup) as engine:
            print(
                f"{request.windows} windows of {request.window} tokens, {request.sinks} sinks, {kind.name} cache,"
                f" {engine.plan.total_bytes:,} bytes planned"
            )
            results = [
                windows(engine, request.window, request.windows) for _ in range(request.rounds)
            ]
            print("\n".join(table(results, request.window)))


if __name__ == "__main__":
    main()
