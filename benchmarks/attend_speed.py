"""The speed of one query attending to all cells of a cache: our kernels, plain numpy, and reading alone.

    python benchmarks/attend_speed.py

One core, one run; all take turns and the best turn counts, so that a busy machine slows all of them equally. Plain
numpy is softmax(q k^T) v over float32 keys and values in memory: two to four times as many bytes as our cells.
"Reading" is the maximum of the same bytes by numpy: the speed of the memory without attention.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported: one core for all

import numpy as np
from numpy.typing import NDArray
from turns import Work, best_turns

from edgekit.bill.types import cache_type
from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.types import CacheAttention, CacheKind, Floats, Kernels
from edgekit.errors import UsageError

HEAD_DIM = 128
SHAPES = ((8, 4), (4, 7))  # key heads, query heads for each: Llama 3.1 8B, Qwen2.5 7B
CELLS = (8_192, 65_536)
KINDS: tuple[CacheKind, ...] = ("f16", "q8_0", "f32")
TURNS_S = 3.0  # for all that are compared


def main() -> None:
    all_kernels = [choose_kernels("numpy")]
    try:
        all_kernels.insert(0, choose_kernels("native"))
    except UsageError as error:
        print(f"{error}\n")
    print("| cells | heads | cache | kernels | ms | GB/s | of reading | times plain numpy |")
    print("|---|---|---|---|---|---|---|---|")
    for cells in CELLS:
        for kv_heads, group in SHAPES:
            for kind in KINDS:
                _print_rows(all_kernels, cells, kv_heads, group, kind)


def _print_rows(
    all_kernels: list[Kernels], cells: int, kv_heads: int, group: int, kind: CacheKind
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((cells, kv_heads * HEAD_DIM), np.float32)
    q = rng.standard_normal((1, kv_heads * group * HEAD_DIM), np.float32)
    k = np.empty((cells, cache_type(kind).row_bytes(x.shape[1])), np.uint8)
    all_kernels[0].store(kind, x, k)
    v = k.copy()
    work: dict[str, Work] = {
        kernels.name: _attend_work(kernels, q, k, v, (kind, kv_heads, group))
        for kernels in all_kernels
    }
    work["plain"] = lambda: _plain(q, x, kv_heads, group)
    work["reading"] = lambda: (k.view(np.uint64).max(), v.view(np.uint64).max())
    seconds = best_turns(work, turns_s=TURNS_S, min_turns=3)
    for kernels in all_kernels:
        kernel_s = seconds[kernels.name]
        print(
            f"| {cells:,} | {kv_heads * group} / {kv_heads} | {kind} | {kernels.name}"
            f" | {kernel_s * 1e3:.2f} | {2 * k.nbytes / kernel_s / 1e9:.1f}"
            f" | {seconds['reading'] / kernel_s:.2f} | {seconds['plain'] / kernel_s:.2f} |",
            flush=True,
        )


def _attend_work(
    kernels: Kernels,
    q: Floats,
    k: NDArray[np.uint8],
    v: NDArray[np.uint8],
    shape: tuple[CacheKind, int, int],
) -> Work:
    kind, kv_heads, group = shape
    heads, cells = kv_heads * group, len(k)
    out, state = np.empty_like(q), np.empty((1, heads, 2), np.float32)
    scratch = np.empty(kernels.attend_floats(HEAD_DIM), np.float32)

    span = CacheAttention(
        q=q, k=k, v=v, out=out, state=state, k_kind=kind, v_kind=kind, heads=heads, kv_heads=kv_heads,
        head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5, cells=cells, first_position=0,
        query_position=cells, reach=None,
    )  # fmt: skip

    def attend() -> None:
        out.fill(0)
        state[:] = (-np.inf, 0)
        kernels.attend(span, scratch, 0, kv_heads)
        kernels.settle(out, state, heads, HEAD_DIM)

    return attend


def _plain(q: Floats, x: Floats, kv_heads: int, group: int) -> Floats:
    """Attention with the same numbers as keys and values."""
    cells = x.reshape(-1, kv_heads, HEAD_DIM).transpose(1, 0, 2)
    scores = q.reshape(kv_heads, group, HEAD_DIM) @ cells.transpose(0, 2, 1)
    scores *= np.float32(HEAD_DIM**-0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.asarray(weights @ cells, np.float32)


if __name__ == "__main__":
    main()
