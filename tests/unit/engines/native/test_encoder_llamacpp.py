"""The built-in encoder compared with llama.cpp itself, on random models of every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.embed_models import write_model
from tests.embed_oracle import cosines, llamacpp_vectors
from tests.thoroughness import sampled

from edgekit.engines.native.encoder import StreamedEncoder
from edgekit.engines.native.encoder_plan import plan_encoder
from edgekit.engines.native.families import Pooling
from edgekit.engines.native.file import Limits, WeightFile, scan_header
from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.types import Floats
from edgekit.machine.monitor import Monitor

pytest.importorskip("xllamacpp")

YARN = {
    "qwen2.rope.scaling.type": "yarn",
    "qwen2.rope.scaling.factor": 4.0,
    "qwen2.rope.scaling.original_context_length": 128,
    "qwen2.rope.scaling.attn_factor": 0.8,
}
# Architecture, type of its matrices, least cosine, shape. llama.cpp multiplies packed
# weights with activations that it has rounded to 8 bits, so only F32 and F16 can be exact.
CASES: dict[str, tuple[str, str, float, dict[str, Any]]] = {
    "bert": ("bert", "F16", 0.9999, {"joined_qkv": True, "pooling": "cls"}),
    "nomic-bert": ("nomic-bert", "F16", 0.9999, {}),
    "nomic-bert, rope on half of each head": ("nomic-bert", "F32", 0.9999, {"rope_dims": 32}),
    "nomic-bert Q8_0": ("nomic-bert", "Q8_0", 0.999, {}),
    "jina-bert-v2": (
        "jina-bert-v2",
        "F16",
        0.9999,
        {"joined_gate": True, "heads": 6, "kv_heads": 6, "width": 384},
    ),
    "jina-bert-v2 for code: query and key norms": (
        "jina-bert-v2",
        "F16",
        0.9999,
        {"query_norm": True},
    ),
    "qwen2": ("qwen2", "F16", 0.9999, {}),
    "qwen2 Q4_K": ("qwen2", "Q4_K", 0.998, {}),
    "qwen2, not causal, linear scaling": (
        "qwen2",
        "F16",
        0.9999,
        {
            "causal": False,
            "pooling": "mean",
            "keys": {"qwen2.rope.scaling.type": "linear", "qwen2.rope.scaling.factor": 3.0},
        },
    ),
    "qwen2, yarn": ("qwen2", "F16", 0.9999, {"keys": YARN}),
    "qwen3": ("qwen3", "F16", 0.9999, {}),
    "llama, rope factors": ("llama", "F16", 0.9999, {"rope_factors": True}),
}


def encode(path: Path, texts: list[list[int]], pooling: Pooling | None, kernels: str) -> Floats:
    arithmetic = choose_kernels(kernels)
    with WeightFile(path, Limits()) as file:
        header = scan_header(file)
        plan = plan_encoder(header, kernels=arithmetic, pooling=pooling)
        monitor = Monitor(budget_bytes=plan.budget_bytes)
        encoder = StreamedEncoder(file, header, kernels=arithmetic, monitor=monitor, plan=plan)
        into = np.empty((len(texts), encoder.width), np.float32)
        encoder.encode(texts, into, lambda _share: None)
        encoder.close()
    return into


@pytest.mark.parametrize("case", sampled(tuple(CASES), each=3))
def test_encoder_vectors_equal_llamacpp(case: str, tmp_path: Path) -> None:
    architecture, kind, min_cosine, shape = CASES[case]
    path = write_model(tmp_path / "model.gguf", architecture, kind=kind, **shape)
    random = np.random.default_rng(7)
    texts = [random.integers(5, 60, length).tolist() for length in (1, 6, 31, 100)]
    decoder = "bert" not in architecture
    pooling = Pooling.LAST if decoder and "pooling" not in shape else None
    expected = llamacpp_vectors(path, texts, "last" if pooling else None)
    for kernels in dict.fromkeys((choose_kernels().name, "numpy")):
        actual = encode(path, texts, pooling, kernels)
        assert cosines(actual, expected).min() >= min_cosine, kernels
        lengths = np.linalg.norm(actual, axis=1) / np.linalg.norm(expected, axis=1)
        assert np.abs(lengths - 1).max() < 0.01, kernels
