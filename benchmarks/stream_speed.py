"""Tokens per second of the built-in engine in several budgets, and of llama.cpp on the same file: needs xllamacpp.

    python benchmarks/stream_speed.py [MODEL.gguf] [--budgets 128M,512M,2G,none] [--threads 2] [--tokens 3] [--rounds 8]

The default model is written if it does not exist: 4 GB of random weights in the shape of Qwen2-7B with 32,768 tokens.
Each side is a process of its own that stays open, and they take turns of a few tokens; a figure is the median of the
turns, because other work on the machine slows some of them. The page cache should hold the file, and memory all sides
together: 18 GB. With --cold the cache is emptied before each token of the built-in engine, and the same bytes are also
read in order without computing, which shows what the disk can do.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PROMPT = [7, 8, 9, 10]
CONTEXT_TOKENS = 128
VOCABULARY = 32_768
LLAMA, REPACKED = "llama.cpp, weights as in the file", "llama.cpp, repacked (its default)"
ANSWER = "figures: "
Figures = dict[str, float]


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        side, path, threads, tokens, cold = sys.argv[2:]
        run = _llamacpp if side in {LLAMA, REPACKED} else _ours
        run(side, path, int(threads), int(tokens), cold == "True")
        os._exit(0)
    arguments = _parser().parse_args()
    if not arguments.model.exists():
        from tests.embed_models import seven_b

        part = arguments.model.with_suffix(".part")
        seven_b(part, sparse=False, pooling=None, tokens=VOCABULARY)
        part.replace(arguments.model)
    sides = arguments.budgets.split(",")
    if not arguments.cold:
        sides += [LLAMA, REPACKED]
    with ExitStack() as stack:
        children = {side: stack.enter_context(_child(side, arguments)) for side in sides}
        rounds = [
            {side: _ask(child) for side, child in children.items()} for _ in range(arguments.rounds)
        ]
    _print(rounds, cold=arguments.cold)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = Path(tempfile.gettempdir()) / "stream_7b.gguf"
    parser.add_argument("model", type=Path, nargs="?", default=default)
    parser.add_argument("--budgets", default="128M,512M,2G,none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cold", action="store_true")
    return parser


@contextmanager
def _child(side: str, arguments: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """A process that has opened the model and had one turn, which is not counted."""
    numbers = [str(arguments.threads), str(arguments.tokens), str(arguments.cold)]
    with subprocess.Popen(
        [sys.executable, __file__, "--run", side, str(arguments.model), *numbers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    ) as child:
        _ask(child)
        yield child
        assert child.stdin is not None
        child.stdin.close()


def _ask(child: subprocess.Popen[str]) -> Figures:
    """The figures of one turn; llama.cpp prints other lines."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("turn\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.startswith(ANSWER):
            figures: Figures = json.loads(line.removeprefix(ANSWER))
            return figures
    sys.exit(f"a side ended: {child.args!r}")


def _serve(turn: Callable[[], Figures]) -> None:
    for _ in sys.stdin:
        print(f"\n{ANSWER}{json.dumps(turn())}", flush=True)


def _print(rounds: list[dict[str, Figures]], *, cold: bool) -> None:
    """A row per side; the last two columns are speeds, divided by another one of the same round."""
    label = "reading alone" if cold else "llama.cpp"
    print(
        "| budget | weights kept | tokens/s | CPU s per token | peak memory"
        f" | times {label} | by CPU time |"
    )
    print("|---|---|---|---|---|---|---|")
    for side in rounds[0]:
        runs = [one[side] for one in rounds]
        if cold:
            by_clock, by_cpu = median(run["read_s"] / run["token_s"] for run in runs), None
        else:
            by_clock, by_cpu = (
                median(one[LLAMA][key] / one[side][key] for one in rounds)
                for key in ("token_s", "cpu_s")
            )
        kept = runs[0].get("kept_mib")
        print(
            f"| {side} | {'' if kept is None else f'{kept:,.0f} MiB'}"
            f" | {1 / median(run['token_s'] for run in runs):.2f}"
            f" | {median(run['cpu_s'] for run in runs):.2f}"
            f" | {max(run['peak_mib'] for run in runs):,.0f} MiB | {by_clock:.2f}"
            f" | {'' if by_cpu is None else f'{by_cpu:.2f}'} |"
        )


# --- the sides


def _ours(side: str, path: str, threads: int, tokens: int, cold: bool) -> None:  # noqa: FBT001 - of a table
    """As `edgekit run --engine stream --budget` plans and starts it."""
    from edgekit.bill.types import Load, Start, Task
    from edgekit.engines.native.generator import open_stream
    from edgekit.engines.native.stream_plan import StreamSetup
    from edgekit.engines.native.text import open_text
    from edgekit.machine.monitor import Monitor
    from edgekit.machine.probes import detect
    from edgekit.machine.types import MemoryLimit
    from edgekit.model import open_model
    from edgekit.plan.choice import judge
    from edgekit.units import MIB, parse_size

    machine, budget_bytes = detect(), None if side == "none" else parse_size(side)
    if budget_bytes is not None and machine.host is not None:
        limit = MemoryLimit(name="--budget", limit_bytes=budget_bytes, used_bytes=0)
        machine = replace(machine, host=replace(machine.host, limits=(limit,)))
    task = Task(
        model=open_model(Path(path)).model,
        engine="stream",
        machine=machine,
        load=Load(context_tokens=CONTEXT_TOKENS),
        start=Start(setup=StreamSetup(threads=threads)),
    )
    verdict = judge(task)
    if verdict.failed:
        sys.exit(f"{side}: {verdict.reasons}")
    monitor = Monitor(budget_bytes=budget_bytes, own_process=budget_bytes is not None)
    with (
        open_text(Path(path)),
        open_stream(
            path, load=verdict.load, setup=StreamSetup.of(verdict.way.setup), monitor=monitor
        ) as engine,
    ):
        logits = engine.feed(PROMPT)
        facts: dict[str, Any] = dict(verdict.estimate.facts)
        kept_mib = facts["kept_bytes"] / MIB

        def turn() -> Figures:
            engine.reset()
            engine.feed(PROMPT)
            figures = _timed(
                lambda: engine.feed((int(logits.argmax()),)), tokens, Path(path) if cold else None
            )
            return {**figures, "kept_mib": kept_mib}

        _serve(turn)


def _llamacpp(side: str, path: str, threads: int, tokens: int, _cold: bool) -> None:  # noqa: FBT001 - of a table
    """One request for all tokens; the prompt is in the cache."""
    import xllamacpp
    from tests.embed_oracle import post, server_params

    params = server_params({"model": path, "threads": threads}, longest=CONTEXT_TOKENS)
    params.no_extra_bufts = side == LLAMA
    server = xllamacpp.Server(params)
    arguments: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "cache_prompt": True}
    address = f"{server.listening_address}/completion"
    post(address, {**arguments, "prompt": PROMPT, "n_predict": 2})

    def turn() -> Figures:
        reply: dict[str, Any] = {}

        def step() -> None:
            reply.update(post(address, {**arguments, "prompt": PROMPT, "n_predict": tokens + 1}))

        result = _timed(step, 1, None)
        result["token_s"] = reply["timings"]["predicted_per_token_ms"] / 1000
        result["cpu_s"] /= tokens + 1
        return result

    _serve(turn)


def _timed(step: Callable[[], object], count: int, cold: Path | None) -> Figures:
    """The mean of the steps; of a cold file also how long it takes to read it."""
    times, cpu_times, reading_times = [], [], []
    for _ in range(count):
        if cold is not None:
            reading_times.append(_read_in_order(cold))
            _forget(cold)
        begin, before = time.perf_counter(), time.process_time()
        step()
        times.append(time.perf_counter() - begin)
        cpu_times.append(time.process_time() - before)
    status = Path("/proc/self/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    return {
        "token_s": fmean(times),
        "cpu_s": fmean(cpu_times),
        "peak_mib": int(peak[1]) / 1024 if peak else 0.0,
        "read_s": fmean(reading_times) if reading_times else 0.0,
    }


def _forget(path: Path) -> None:
    """Removes the file from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_in_order(path: Path) -> float:
    """Seconds to read the whole file from the disk."""
    _forget(path)
    buffer = bytearray(2**20)
    begin = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(buffer):
            pass
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
