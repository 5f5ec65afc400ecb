"""Recorded allocations -> docs/accuracy.md: the errors of every engine's bill.

python tools/accuracy_table.py > docs/accuracy.md
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.recorded import engine_models, further_model, rows
from tests.truth import test_llamacpp_builds as builds
from tests.unread import WITHOUT_CONFIG, from_config, from_keys

from edgekit.bill.types import CACHES, Component, MemoryEstimate
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.setups import read_row
from edgekit.engines.llamacpp.types import NEWEST, Rules, version_name
from edgekit.engines.mlx import estimate as mlx
from edgekit.engines.mlx.setups import read_row as read_mlx_row
from edgekit.engines.vllm import estimate as vllm
from edgekit.engines.vllm.setups import read_row as read_vllm_row
from edgekit.machine.types import PoolKind
from edgekit.model import open_config
from edgekit.model.types import HybridLayer, LatentAttention, Model, NoCache, Recurrent, Span

PARTS = ("weights", "cache", "compute")
HOST_BUFFERS = ("CUDA_Host", "CPU", "CPU_Mapped", "CPU_REPACK")
Errors = dict[str, dict[str, list[float]]]  # class -> part -> error of each row


def main() -> None:
    """Print the page."""
    print(HEAD.strip(), end="\n\n")
    classes: dict[str, Counter[str]] = {}
    for title, errors in tables():
        for parts, figures in figure_rows(errors["all"]):
            print(f"- {title}: {parts}: {figures}")
        counts = classes.setdefault(title.split(",")[0], Counter())
        counts.update({kind: sum_rows(errors, kind) for kind in errors if kind != "all"})
    print(f"\n{NOTES.strip()}\n\n{class_text(classes)}")
    print(releases_table())
    print(OTHER_TOOLS.strip())


def tables() -> Iterator[tuple[str, Errors]]:
    """(title, errors) of each recording."""
    yield "llama.cpp 0.5, CPU", collect(_cpu_rows())
    yield "llama.cpp 0.5, CUDA, all layers", collect(_cuda_rows(full=True))
    yield "llama.cpp 0.5, CUDA, partly in RAM", collect(_cuda_rows(full=False))
    yield "llama.cpp 0.6, CPU", collect(_newer_rows("cpu", full=False))
    yield "llama.cpp 0.6, CUDA, all layers", collect(_newer_rows("cuda", full=True))
    yield "llama.cpp 0.6, CUDA, partly in RAM", collect(_newer_rows("cuda", full=False))
    for title, how in UNREAD.items():
        unread = collect((*_unread_rows(how, "cpu"), *_unread_rows(how, "cuda")))
        yield f"llama.cpp 0.5, {title}", {"all": unread["all"]}
    yield "llama.cpp 0.5, CUDA, the driver's figure", collect(_real_rows())
    yield "vLLM", collect(_vllm_rows())
    yield "MLX", collect(_mlx_rows())


def releases_table() -> str:
    """Releases of xllamacpp: the models and loads of which every part equals the engine's log."""
    lines = [
        "## llama.cpp, CPU, every release since April 2026",
        "",
        "What the wheels of xllamacpp answer in a dry run (`tools/compare_engine.py`), by the rules of each",
        "build. Equal: every part agrees to the resolution of the log.",
        "",
        "| wheels | models equal | loads equal | crashed |",
        "|---|---|---|---|",
    ]
    wheels: dict[str, list[str]] = {}
    for wheel in builds.WHEELS:
        requests = [row for row in builds.ROWS if row["wheel"] == wheel]
        answered = [row for row in requests if "parts" in row]
        wrong = [row for row in answered if any(builds.differences(row))]
        models = len({row["file"] for row in answered})
        equal = models - len({row["file"] for row in wrong})
        crashed = len(requests) - len(answered)
        figures = (
            f"{equal} of {models} | {len(answered) - len(wrong)} of {len(answered)} "
            f"| {f'{crashed}, as predicted' if crashed else 0}"
        )
        wheels.setdefault(figures, []).append(wheel)
    for figures, names in wheels.items():
        lines.append(f"| {names[0]} to {names[-1]} ({len(names)}) | {figures} |")
    return "\n".join(lines) + "\n"


def collect(measured: Iterable[tuple[str, str, int, int]]) -> Errors:
    """(class, part, predicted, actual) of every row -> relative errors; a part that is 0 in both counts as exact."""
    errors: Errors = {}
    for kind, part, predicted, actual in measured:
        error = (predicted - actual) / actual if actual else float(bool(predicted))
        for group in (kind, "all"):
            errors.setdefault(group, {}).setdefault(part, []).append(error)
    return errors


def sum_rows(errors: Errors, kind: str = "all") -> int:
    return max(len(values) for values in errors[kind].values())


def figure_rows(parts: dict[str, list[float]]) -> Iterator[tuple[str, str]]:
    """Parts with the same figures share a row."""
    same: dict[str, list[str]] = {}
    for part, values in parts.items():
        same.setdefault(_figures(values), []).append(part)
    for figures, names in same.items():
        yield "all, GPU and RAM" if len(names) == len(PARTS) * 2 else ", ".join(names), figures


def class_text(classes: dict[str, Counter[str]]) -> str:
    """The number of rows per class of models."""
    lines = []
    for title, counts in classes.items():
        kinds = "; ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))
        lines.append(f"- {title}: {kinds}")
    return "Rows by class of models:\n\n" + "\n".join(lines) + "\n"


def _figures(values: list[float]) -> str:
    exact = sum(not value for value in values) / len(values)
    text = f"{len(values):,} rows, {exact:.1%} exact"
    if exact == 1:
        return text
    return f"{text}, errors from {min(0.0, *values):.2%} to {max(0.0, *values):.2%}"


def model_class(model: Model) -> str:
    """The class of a model by its caches."""
    mixers = [layer.mixer for layer in model.geometry.layers]
    if any(isinstance(mixer, (Recurrent, HybridLayer)) for mixer in mixers):
        return "hybrid, recurrent"
    if any(isinstance(mixer, LatentAttention) for mixer in mixers):
        return "MLA"
    if all(isinstance(mixer, NoCache) for mixer in mixers):
        return "encoder"
    if any(stream.span is not Span.ALL for mixer in mixers for stream in mixer.streams):
        return "sliding window"
    experts = any(layer.experts for layer in model.geometry.layers)
    return "experts" if experts else "dense"


def _estimate(row: dict[str, Any], backend: str) -> tuple[Model, MemoryEstimate]:
    model = engine_models()[row["model"], row["quant"]]
    return model, llamacpp.estimate(model, *read_row(row["options"], backend))


def _cpu_rows() -> Iterator[tuple[str, str, int, int]]:
    for row in rows("llama_cpp_cpu.jsonl.gz"):
        if "error" in row["actual"]:
            continue
        model, bill = _estimate(row, "cpu")
        kind, actual = model_class(model), row["actual"]
        yield kind, "weights", bill.weights_bytes, actual["model_buffer_bytes"]
        yield kind, "cache", bill.kv_cache_bytes, actual["context_bytes"]
        yield kind, "compute", bill.of(Component.COMPUTE), actual["compute_bytes"]
        parts = ("model_buffer_bytes", "context_bytes", "compute_bytes", "output_bytes")
        yield kind, "total", bill.total_bytes, sum(actual[part] for part in parts)


def _cuda_rows(*, full: bool) -> Iterator[tuple[str, str, int, int]]:
    for row in rows("llama_cpp_cuda.jsonl.gz"):
        breakdown = row.get("breakdown")
        if breakdown is None or row["tag"] == "real" or _is_full(row) != full:
            continue
        yield from _by_pool(*_estimate(row, "cuda"), breakdown)


def _newer_rows(backend: str, *, full: bool) -> Iterator[tuple[str, str, int, int]]:
    """Rows of llama.cpp 0.6: of the recorded models, then of further ones."""
    further: dict[str, Model] = {}
    for row in (*rows("llama_cpp_06.jsonl.gz"), *rows("llama_cpp_06_more.jsonl.gz")):
        if row["backend"] != backend or "error" in row:
            continue
        if backend == "cuda" and _is_full(row) != full:
            continue
        if "model" in row:
            model = engine_models()[row["model"], row["quant"]]
        else:
            file = row["file"]
            model = further.get(file) or further_model(file, row["data_bytes"])
            further = {file: model}  # rows of one file follow each other
        options = {**row["options"], "llama_version": "0.6"}
        bill = llamacpp.estimate(model, *read_row(options, backend))
        yield from _by_pool(model, bill, row["breakdown"])


def _by_pool(
    model: Model, bill: MemoryEstimate, breakdown: dict[str, list[int]]
) -> Iterator[tuple[str, str, int, int]]:
    host = [sum(breakdown.get(name, [0, 0, 0])[i] for name in HOST_BUFFERS) for i in range(3)]
    pools = {PoolKind.DEVICE: breakdown.get("CUDA0", [0, 0, 0]), PoolKind.HOST: host}
    if bill.backend == "cpu":
        del pools[PoolKind.DEVICE]
    for pool, actual in pools.items():
        sizes = zip(PARTS, _parts(bill, pool), actual, strict=True)
        for part, predicted, allocated in sizes:
            yield model_class(model), f"{pool.value} {part}", predicted, allocated


def _unread_rows(how: str, backend: str) -> Iterator[tuple[str, str, int, int]]:
    """Compute buffers from the keys or from config.json alone."""
    for row in rows(f"llama_cpp_{backend}.jsonl.gz"):
        missing = "error" in row.get("actual", {}) or (
            how == "config" and row["model"] in WITHOUT_CONFIG
        )
        if missing or (
            backend == "cuda" and (row.get("breakdown") is None or row["tag"] == "real")
        ):
            continue
        load, setup = read_row(row["options"], backend)
        if how == "config":
            model, setup = from_config(row["model"]), replace(setup, mix=row["quant"])
        else:
            model = from_keys(row["model"], row["quant"])
        bill = llamacpp.estimate(model, load, setup)
        if backend == "cpu":
            yield "", "CPU compute", bill.of(Component.COMPUTE), row["actual"]["compute_bytes"]
            continue
        breakdown = row["breakdown"]
        host = sum(breakdown.get(name, [0, 0, 0])[2] for name in HOST_BUFFERS)
        yield "", "device compute", _parts(bill, PoolKind.DEVICE)[2], breakdown["CUDA0"][2]
        yield "", "host compute", _parts(bill, PoolKind.HOST)[2], host


def _real_rows() -> Iterator[tuple[str, str, int, int]]:
    for row in rows("llama_cpp_cuda.jsonl.gz"):
        if row["tag"] == "real" and "breakdown" in row:
            model, bill = _estimate(row, "cuda")
            free, total = row["free_decoded"]["CUDA0"]
            yield model_class(model), "device", bill.in_pool(PoolKind.DEVICE), total - free


def _vllm_rows() -> Iterator[tuple[str, str, int, int]]:
    for row in rows("vllm.jsonl.gz"):
        if row["kind"] != "spec":
            continue
        model, actual = open_config(row["config"]).model, row["actual"]
        bill = vllm.estimate(model, *read_vllm_row(row["options"]))
        facts: dict[str, Any] = dict(bill.facts)
        kind = model_class(model)
        yield kind, "weights", bill.weights_bytes, actual["weights_param_bytes"]
        for name in ("bytes_per_block", "request_bytes", "num_blocks"):
            if actual.get(name) is not None:
                yield kind, name.replace("_", " "), facts[name], actual[name]


def _mlx_rows() -> Iterator[tuple[str, str, int, int]]:
    for row in rows("mlx.jsonl.gz"):
        if row["kind"] not in {"weights", "cache"} or "refused" in row["actual"]:
            continue
        model = open_config(row["config"]).model
        bill = mlx.estimate(model, *read_mlx_row(row["options"]))
        if row["kind"] == "weights":
            yield model_class(model), "weights", bill.weights_bytes, row["actual"]["bytes"]
        else:
            yield model_class(model), "cache", bill.kv_cache_bytes, row["actual"]["cache_bytes"]


def _is_full(row: dict[str, Any]) -> bool:
    options = row["options"]
    return options["n_gpu_layers"] >= 999 and not options["cpu_moe"] and options["offload_kqv"]


def _parts(bill: MemoryEstimate, pool: PoolKind) -> tuple[int, int, int]:
    def size(*components: Component) -> int:
        return bill.total(lambda line: line.pool.kind is pool and line.component in components)

    return size(Component.WEIGHTS), size(*CACHES), size(Component.COMPUTE)


UNREAD = {"keys alone": "keys", "config.json alone": "config"}

HEAD = f"""
# Accuracy

The error is (predicted - allocated) / allocated, over recorded allocations of the engines
themselves: full-size models whose weights are a hole in a sparse file, with the options of each
row. "exact" is the share of rows that are right to the byte. llama.cpp 0.5 is
{version_name(Rules.V0_5, None)}, 0.6 is {version_name(NEWEST, None)}; vLLM is {vllm.VERSION}, MLX
is {mlx.VERSION}, both from config.json alone.
Generated by `python tools/accuracy_table.py > docs/accuracy.md`.
"""

NOTES = """
"Keys alone" and "config.json alone" read nothing else of the model; two of 43 configs omit what their
recorded header lacks (expert groups, a prediction block). The driver's figure is all GPU memory in
use after a model was loaded and run. vLLM's errors are in the recordings: four rows (MLA) lack the
block size they ran with, three have another budget.
"""

OTHER_TOOLS = """
## Other tools, on the same kind of rows

Measured in November 2026 on llama.cpp's own allocations, all options: median / 95th percentile /
worst of |error| in %; "under" is the share of rows more than 5 % too low.

| tool | class | KV cache | compute | total | total under |
|---|---|---|---|---|---|
| gguf-parser 0.26, GPU | all | 0 / 44 / 118 | 7 / 166 / 1783 | 3.6 / 42 / 82 | 1 % |
| | MLA | 44 / 44 / 44 | 11 / 231 / 1016 | 1.3 / 7 / 11 | 4 % |
| | sliding | 5.5 / 75 / 118 | 3.5 / 124 / 933 | 6.8 / 42 / 77 | 0 % |
| gguf-parser 0.26, CPU | all | 0 / 44 / 118 | 12 / 156 / 6330 | 4.8 / 51 / 113 | 9 % |
| gguf-parser 0.26, server mode | all | 0 / 44 / 87 | 100 / 513 / 929 | 4.5 / 68 / 174 | 1 % |
| hf-mem 0.5.6, CPU | all | 13 / 281 / 700 | none | 4.8 / 49 / 329 | 37 % |
| llmfit 1.1.17, CPU | all | 7 / 676 / 2389 | constant 0.5 GB | 7.7 / 73 / 531 | 14 % |
"""

if __name__ == "__main__":
    main()
