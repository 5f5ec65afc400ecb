"""New tokens per second of the built-in engine and of llama.cpp on the same file, in one run: needs xllamacpp.

    python benchmarks/stream_speed.py [MODEL.gguf] [--threads 2] [--tokens 4] [--rounds 3]

The default model, 4.2 GB of random weights in the shape of Qwen2-7B, is written if it does not exist; the page cache
should hold the file. The built-in engine is measured twice: reading every weight again for each token, and (if the file
is smaller than half of the memory) with all weights in memory. All take turns, each in a new process, and the best
token counts, because a busy machine only makes tokens longer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PROMPT = [7, 8, 9, 10]
CONTEXT_TOKENS = 256


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        side, path, threads, tokens = sys.argv[2:]
        print("\n" + json.dumps(SIDES[side](path, int(threads), int(tokens))))
        sys.stdout.flush()
        os._exit(0)
    arguments = _parser().parse_args()
    if not arguments.model.exists():
        from tests.embed_models import seven_b

        seven_b(arguments.model, sparse=False, vocabulary=False)
    sides = [side for side in SIDES if side != CACHED or _fits(arguments.model)]
    result: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(arguments.rounds):
        for side in sides:
            result[side].append(_measure(side, arguments))
    _print(result)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Path(tempfile.gettempdir()) / "seven_b.gguf"
    parser.add_argument("model", type=Path, nargs="?", default=default)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    return parser


def _fits(path: Path) -> bool:
    return path.stat().st_size < psutil.virtual_memory().available // 2


def _measure(side: str, arguments: argparse.Namespace) -> dict[str, float]:
    numbers = [str(arguments.threads), str(arguments.tokens)]
    done = subprocess.run(
        [sys.executable, __file__, "--run", side, str(arguments.model), *numbers],
        capture_output=True,
        text=True,
        errors="replace",
        check=True,
    )
    output: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return output


def _print(results: dict[str, list[dict[str, float]]]) -> None:
    print(
        "| engine | best token | tokens per s | CPU for a token | peak memory | times llama.cpp |"
    )
    print("|---|---|---|---|---|---|")
    best = {side: min(run["token_s"] for run in runs) for side, runs in results.items()}
    for side, runs in results.items():
        cpu_s = min(run["cpu_s"] for run in runs)
        peak = max(run["peak_mib"] for run in runs)
        print(
            f"| {side} | {1000 * best[side]:,.1f} ms | {1 / best[side]:.2f} | {1000 * cpu_s:,.1f} ms |"
            f" {peak:,.0f} MiB | {best[LLAMA] / best[side]:.2f} |"
        )


# --- the sides


def _streamed(path: str, threads: int, tokens: int) -> dict[str, float]:
    return _ours(path, threads, tokens, keep_bytes=0)


def _cached(path: str, threads: int, tokens: int) -> dict[str, float]:
    return _ours(path, threads, tokens, keep_bytes=None)


def _ours(path: str, threads: int, tokens: int, keep_bytes: int | None) -> dict[str, float]:
    from edgekit.bill.types import Load
    from edgekit.engines.native.generator import open_stream
    from edgekit.engines.native.stream_plan import StreamSetup

    setup = StreamSetup(threads=threads, keep_bytes=keep_bytes)
    with open_stream(Path(path), load=Load(context_tokens=CONTEXT_TOKENS), setup=setup) as engine:
        logits = engine.feed(PROMPT)

        def step() -> None:
            engine.feed((int(logits.argmax()),))

        return _timed(step, tokens)


def _llama(path: str, threads: int, tokens: int) -> dict[str, float]:
    """One request for all tokens; the prompt is in the cache."""
    import xllamacpp
    from tests.embed_oracle import post, server_params

    params = server_params({"model": path, "threads": threads}, longest=CONTEXT_TOKENS)
    server = xllamacpp.Server(params)
    arguments: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": True}
    address = f"{server.listening_address}/completion"
    post(address, {**arguments, "prompt": PROMPT, "n_predict": 2})
    reply: dict[str, Any] = {}

    def step() -> None:
        nonlocal reply
        reply = post(address, {**arguments, "prompt": PROMPT, "n_predict": tokens + 1})

    result = _timed(step, 1)
    result["token_s"] = reply["timings"]["predicted_per_token_ms"] / 1000
    result["cpu_s"] /= tokens + 1
    return result


def _timed(step: Callable[[], None], tokens: int) -> dict[str, float]:
    times, cpu_times = [], []
    for _ in range(tokens):
        begin, before = time.perf_counter(), time.process_time()
        step()
        times.append(time.perf_counter() - begin)
        cpu_times.append(time.process_time() - before)
    status = Path("/proc/self/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    return {
        "token_s": min(times),
        "cpu_s": min(cpu_times),
        "peak_mib": int(peak[1]) / 1024 if peak else 0.0,
    }


STREAMED, CACHED, LLAMA = "edgekit, streamed", "edgekit, weights in memory", "xllamacpp"
SIDES: dict[str, Callable[[str, int, int], dict[str, float]]] = {
    STREAMED: _streamed,
    CACHED: _cached,
    LLAMA: _llama,
}

if __name__ == "__main__":
    main()
