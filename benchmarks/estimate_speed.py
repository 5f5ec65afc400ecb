"""The duration of an estimate: the first of a model, further ones, and rows of a batch.

    python benchmarks/estimate_speed.py

The speed of a machine varies, so the run also measures a fixed piece of Python work.
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

FIXED_STEPS = 1_000_000
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
    fixed_s = timed(_fixed_work)
    print(f"fixed work: {FIXED_STEPS:,} additions in {fixed_s * 1e3:.0f} ms\n")
    print("| llama.cpp | placement | first ms | further ms |\n|---|---|---|---|")
    for name, quant in MODELS:
        for backend, options in PLACEMENTS:
            first, further = _estimates(engine_models()[name, quant], backend, options)
            placement = backend if not options else f"{backend} -ngl {options['n_gpu_layers']}"
            print(f"| {name} | {placement} | {first * 1e3:.1f} | {further * 1e3:.2f} |")
    print("\n| batch file | rows | rows per second |\n|---|---|---|")
    for name, lines in batches():
        seconds = batch(lines)
        print(f"| {name} | {len(lines):,} | {len(lines) / seconds:.0f} |")


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _fixed_work() -> int:
    total = 0
    for step in range(FIXED_STEPS):
        total += step
    return total


def _estimates(model: Model, backend: str, options: dict[str, Any]) -> tuple[float, float]:
    """Seconds of the first estimate of a model, and the median of further ones with new loads."""
    fresh = Model(header=model.header, geometry=model.geometry)

    def estimate_work(context: int, sequences: int) -> Callable[[], object]:
        row = {"n_ctx": context, "n_seq_max": sequences, "kv_unified": True, **options}
        return partial(llamacpp.estimate, fresh, *read_row(row, backend))

    first = timed(estimate_work(CONTEXTS[0], 1))
    for sequences in SEQUENCES:
        estimate_work(CONTEXTS[0], sequences)()
    further = [timed(estimate_work(n + 256 * s, s)) for n in CONTEXTS for s in SEQUENCES]
    return first, statistics.median(further)


def batches() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for engine, backend, file in (
        ("llama.cpp", "cpu", "llama_cpp_cpu.jsonl.gz"),
        ("llama.cpp", "cuda", "llama_cpp_cuda.jsonl.gz"),
        ("vllm", None, "vllm.jsonl.gz"),
        ("mlx", None, "mlx.jsonl.gz"),
    ):
        lines = [
            {"engine": engine, "backend": backend, "options": options_of(row), **_model(row)}
            for row in rows(file)
            if "options" in row
        ]
        yield f"{engine} {backend or ''}".strip(), lines


def _model(row: dict[str, Any]) -> dict[str, Any]:
    return (
        {"config": row["config"]}
        if "config" in row
        else {"model": f"{row['model']}.{row['quant']}.gguf"}
    )


def batch(lines: list[dict[str, Any]]) -> float:
    """Seconds of the command with its start-up, on sparse model files. Asserts that no row is refused."""
    with tempfile.TemporaryDirectory() as folder:
        for model in models():
            header = header_bytes(model["header_without_vocabulary"])
            path = Path(folder, f"{model['model']}.{model['quant']}.gguf")
            with path.open("wb") as file:
                file.write(header)
                file.truncate(padded(len(header)) + model["data_section_bytes"])
        batch_path = Path(folder, "rows.jsonl")
        batch_path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        command = [sys.executable, "-m", "edgekit", "estimate", "--batch", str(batch_path)]
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
