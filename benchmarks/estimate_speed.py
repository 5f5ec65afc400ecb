"""How long an estimate takes: the first of a model, further ones, and rows of a batch.

    python benchmarks/estimate_speed.py

Machines are noisy: every figure stands beside a fixed piece of Python work of the same run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.recorded import engine_models, header_bytes, models, options_of, padded, rows

from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.setups import read_row
from edgekit.model.types import Model

PACE_STEPS = 1_000_000
CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072)
SEQUENCES = (1, 2, 3, 4, 6, 8)
PLACEMENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("cpu", {}),
    ("cuda", {"n_gpu_layers": 999}),
    ("cuda", {"n_gpu_layers": 12}),
)
MODELS = (
    ("llama-3.1-8b", "Q4_K_M"),
    ("llama-3.1-70b", "Q4_K_M"),
    ("gemma-3-27b", "Q4_K_M"),
    ("qwen3-30b-a3b", "Q4_K_M"),
    ("deepseek-v3", "Q4_K_M"),
    ("qwen3.5-27b", "Q4_K_M"),
)


def main() -> None:
    """Print the tables."""
    pace = timed(_work)
    print(f"pace: {PACE_STEPS:,} additions in {pace * 1e3:.0f} ms\n")
    print("| llama.cpp | placement | first ms | further ms |\n|---|---|---|---|")
    for name, quant in MODELS:
        for backend, options in PLACEMENTS:
            first, further = _estimates(engine_models()[name, quant], backend, options)
            answer = backend if not options else f"{backend} -ngl {options['n_gpu_layers']}"
            print(f"| {name} | {answer} | {first * 1e3:.1f} | {further * 1e3:.2f} |")
    print("\n| batch file | rows | rows per second |\n|---|---|---|")
    for name, lines in batches():
        seconds = batch(lines)
        print(f"| {name} | {len(lines):,} | {len(lines) / seconds:.0f} |")


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _work() -> int:
    total = 0
    for step in range(PACE_STEPS):
        total += step
    return total


def _estimates(model: Model, backend: str, options: dict[str, Any]) -> tuple[float, float]:
    """The first on a model that was only read; then loads that were not asked for before."""
    fresh = Model(header=model.header, geometry=model.geometry)

    def asked(context: int, sequences: int) -> Callable[[], object]:
        row = {"n_ctx": context, "n_seq_max": sequences, "kv_unified": True, **options}
        return partial(llamacpp.estimate, fresh, *read_row(row, backend))

    first = timed(asked(CONTEXTS[0], 1))
    for sequences in SEQUENCES:
        asked(CONTEXTS[0], sequences)()
    further = [timed(asked(n + 256 * s, s)) for n in CONTEXTS for s in SEQUENCES]
    return first, statistics.median(further)


def batches() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for engine, backend, file in (
        ("llama.cpp", "cpu", "llama_cpp_cpu.jsonl.gz"),
        ("llama.cpp", "cuda", "llama_cpp_cuda.jsonl.gz"),
        ("vllm", None, "vllm.jsonl.gz"),
        ("mlx", None, "mlx.jsonl.gz"),
    ):
        results = [
            {"engine": engine, "backend": backend, "options": options_of(row), **_model(row)}
            for row in rows(file)
            if "options" in row
        ]
        yield f"{engine} {backend or ''}".strip(), results


def _model(row: dict[str, Any]) -> dict[str, Any]:
    return (
        {"config": row["config"]}
        if "config" in row
        else {"model": f"{row['model']}.{row['quant']}.gguf"}
    )


def batch(lines: list[dict[str, Any]]) -> float:
    """Seconds of the command, start-up included, with sparse files for the models. No row may be refused."""
    with tempfile.TemporaryDirectory() as folder:
        for model in models():
            header = header_bytes(model["header_without_vocabulary"])
            path = Path(folder, f"{model['model']}.{model['quant']}.gguf")
            with path.open("wb") as file:
                file.write(header)
                file.truncate(padded(len(header)) + model["data_section_bytes"])
        file_of_rows = Path(folder, "rows.jsonl")
        file_of_rows.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        command = [sys.executable, "-m", "edgekit", "estimate", "--batch", str(file_of_rows)]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True)
        seconds = time.perf_counter() - start
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        refused = [answer["error"] for answer in answers if "error" in answer]
        assert len(answers) == len(lines), done.stderr
        assert not refused, refused[0]
        return seconds


if __name__ == "__main__":
    main()
