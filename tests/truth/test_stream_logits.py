"""The built-in engine compared with llama.cpp: the same F32 file and tokens, step by step, with an f32 cache.

xllamacpp has no call for logits. Its server reports the log probability of every token, which is the logit up to a
constant (tests/stream_oracle.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.embed_models import write_model
from tests.embed_oracle import cosines
from tests.embed_vocabularies import byte_bpe
from tests.stream_oracle import centred, llamacpp_logits
from tests.stream_sessions import FAMILIES, session, some_tokens, steps
from tests.thoroughness import LONG, costly, sampled

from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.types import Floats

pytest.importorskip("xllamacpp")

STEPS, FEWER_STEPS = (64, 16) if LONG else (32, 8)  # of the families, and of their variations
TOKENS = some_tokens(96)
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama 3 with rope factors and an output tensor": {
        "architecture": "llama",
        "rope_factors": True,
        "tied": False,
        "vocabulary": byte_bpe("llama-bpe", bos=True),
    },
    "qwen2": {"architecture": "qwen2"},
    "qwen2 with yarn rope scaling": {
        "architecture": "qwen2",
        "keys": {
            "qwen2.rope.scaling.type": "yarn",
            "qwen2.rope.scaling.factor": 4.0,
            "qwen2.rope.scaling.original_context_length": 32,
        },
    },
    "qwen2 with a sliding window, which llama.cpp ignores": {
        "architecture": "qwen2",
        "keys": {"qwen2.attention.sliding_window": 8},
    },
    "qwen3": {"architecture": "qwen3"},
    "gemma3": {"architecture": "gemma3"},  # windows of 16 tokens
    "gemma3 with linear rope scaling and another local base": {
        "architecture": "gemma3",
        "tied": False,
        "keys": {
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
            "gemma3.rope.freq_base_swa": 500.0,
        },
    },
    "gemma3 without a window pattern": {
        "architecture": "gemma3",
        "window_period": None,
        "layers": 7,
    },
    "gemma3 without windows": {"architecture": "gemma3", "window": None, "window_period": None},
    "gemma3 of 62 layers, which has another scale of scores": {
        "architecture": "gemma3",
        "layers": 62,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 16,
        "width": 64,
        "inner": 64,
    },
}


@costly
@pytest.mark.parametrize("name", sampled(tuple(MODELS), each=2))
def test_logits_and_tokens_equal_llama_cpp(tmp_path: Path, name: str) -> None:
    path = _write_small(tmp_path, **MODELS[name])
    actual, expected = _logits_of_both(path, STEPS if name in FAMILIES else FEWER_STEPS)
    assert cosines(actual, expected).min() >= 0.99999
    second, first = np.sort(expected, axis=1)[:, -2:].T
    is_clear = first - second > 1e-3
    assert is_clear.mean() > 0.9
    assert (actual.argmax(1) == expected.argmax(1))[is_clear].all()


def test_logits_of_the_numpy_kernels_equal_llama_cpp(tmp_path: Path) -> None:
    path = _write_small(tmp_path, architecture="gemma3")
    actual, expected = _logits_of_both(path, FEWER_STEPS, kernels=choose_kernels("numpy"))
    assert cosines(actual, expected).min() >= 0.99999


def _write_small(folder: Path, **shape: Any) -> Path:
    small = {"width": 128, "inner": 192, "heads": 4, "kv_heads": 2, "head_dim": 32, "spread": 0.1}
    return write_model(folder / "model.gguf", kind="F32", **{**small, **shape})


def _logits_of_both(path: Path, count: int, **more: Any) -> tuple[Floats, Floats]:
    with session(path, window=len(TOKENS), **more) as engine:
        actual = centred(steps(engine, TOKENS, prompt=len(TOKENS) - count + 1))
        return actual, llamacpp_logits(path, TOKENS, count, engine.vocabulary)
