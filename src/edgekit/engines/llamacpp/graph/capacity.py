"""How many tensors a graph may have before llama.cpp gives up.

The scheduler keeps nodes and leafs in a table of fixed size: a prime just above a power of two. Phi-3-medium with a
quantised cache and a stream for each sequence has 2,058 of them for 2,053 places. llama-context.cpp (graph_max_nodes)
and ggml.c (ggml_hash_size) @ 0c1e570.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from edgekit.engines.llamacpp.graph.llama.hparams import Hparams
from edgekit.errors import RefusedError

_PRIMES = (
    *(2, 3, 5, 11, 17, 37, 67, 131, 257, 521, 1031, 2053, 4099, 8209, 16411, 32771, 65537),
    *(131101, 262147, 524309, 1048583, 2097169, 4194319, 8388617, 16777259, 33554467, 67108879),
)

_SMALLEST = 1024
_PER_TENSOR = 8
_MANY = (40, 32)
# Nodes for each token of the micro-batch and for each tensor of the model, where they are not those above.
_BUDGETS: Mapping[str, tuple[int, int]] = {
    "kimi-k3": (160, 64),
    "glm5-next": (160, 64),
    "hrm-text": (80, 64),
    **dict.fromkeys(
        (
            *("qwen3next", "kimi-linear", "bailingmoe3", "qwen35", "qwen35moe", "qwen4exp"),
            *("deepseek4", "nanbeige", "minimax-01", "minimax-m3", "hy-v4"),
        ),
        _MANY,
    ),
}


def graph_capacity(hparams: Hparams, n_tokens: int) -> int:
    """Nodes and leafs together."""
    tensors = hparams.n_tensors
    if hparams.arch in _BUDGETS:
        per_token, per_tensor = _BUDGETS[hparams.arch]
        nodes = max(n_tokens * per_token, tensors * per_tensor)
    else:
        nodes = max(_SMALLEST, tensors * _PER_TENSOR)
    place = bisect_left(_PRIMES, nodes)
    return _PRIMES[place] if place < len(_PRIMES) else nodes | 1


def check_capacity(tensors: int, capacity: int) -> None:
    if tensors > capacity:
        raise RefusedError(
            f"llama.cpp aborts: its graph has {tensors:,} tensors, but its table only has "
            f"room for {capacity:,}; a unified cache (--kv-unified) or an unquantised one "
            "needs fewer"
        )
