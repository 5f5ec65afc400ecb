"""The speed of unpacking and of products, compared with ggml, gguf-py and BLAS. Needs gguf and xllamacpp.

    python benchmarks/dequant_speed.py

Ratios of one run on one core; above 1, ours is faster. All take turns, and the best of many turns counts, so that a
busy machine slows all of them equally. A chunk is 32 KiB of packed weights. gguf-py gets it as rows of 4,096 weights,
where it is fastest (one pass over the chunk), and as a table of blocks (16 at a time). The functions of ggml are called
through ctypes in the library of xllamacpp, on Linux and macOS only.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported: one core for all

import ctypes
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
from turns import Work, best_turns

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.embed_kernels import KINDS, random_blocks, scale_offsets, set_half

from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.types import Bytes, Floats, Kernels
from edgekit.errors import UsageError
from edgekit.formats.dtype import by_name

CHUNK_BYTES = 32 * 1024
ROW_WEIGHTS = 4096
TURN_S = 0.4  # for all that are compared
SHAPES = (
    ("F32", 384, 384),
    ("F16", 384, 1536),
    ("F16", 1536, 384),
    ("Q4_K", 3584, 256),
    ("Q6_K", 18944, 64),
)
TOKENS = (1, 16, 128, 1024)


def main() -> None:
    numpy_kernels = choose_kernels("numpy")
    try:
        native: Kernels | None = choose_kernels("native")
    except UsageError as error:
        native = None
        print(f"{error}\n")
    _print_unpacking(native, numpy_kernels)
    for kernels in (native, numpy_kernels):
        if kernels is not None:
            _print_products(kernels)


def _print_unpacking(native: Kernels | None, numpy_kernels: Kernels) -> None:
    print("Unpacking: native and numpy compared with ggml and gguf-py (rows, blocks)\n")
    print(
        "| type | native, GB/s of floats | / ggml | / rows | / blocks | numpy / rows | / blocks |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in KINDS:
        work = _unpackers(name, native, numpy_kernels)
        seconds = best_turns(work, turns_s=TURN_S, min_turns=5)
        size = _chunk(name).size // by_name(name).block_bytes * by_name(name).block_elements * 4
        cells = [
            f"{size / seconds['native'] / 1e9:.1f}" if "native" in seconds else "-",
            _ratio(seconds, "ggml", "native"),
            *(
                _ratio(seconds, other, ours)
                for ours in ("native", "numpy")
                for other in ("rows", "blocks")
            ),
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    print()


def _unpackers(name: str, native: Kernels | None, numpy_kernels: Kernels) -> Mapping[str, Work]:
    kind, chunk = by_name(name), _chunk(name)
    into = np.empty(chunk.size // kind.block_bytes * kind.block_elements, np.float32)
    rows = chunk.reshape(-1, kind.row_bytes(ROW_WEIGHTS))
    blocks = chunk.reshape(-1, kind.block_bytes)
    code = gguf.GGMLQuantizationType[name]
    work: dict[str, Work] = {
        "numpy": lambda: numpy_kernels.dequantize(kind, chunk, into),
        "rows": lambda: gguf.quants.dequantize(rows, code),
        "blocks": lambda: gguf.quants.dequantize(blocks, code),
    }
    if native is not None:
        work["native"] = lambda: native.dequantize(kind, chunk, into)
    ggml = _ggml_function(name)
    if ggml is not None:
        work["ggml"] = lambda: ggml(chunk.ctypes.data, into.ctypes.data, into.size)
    return work


def _chunk(name: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """As many rows as fit in 32 KiB; scales near 1/100, as in real weights."""
    kind = by_name(name)
    rows = max(1, CHUNK_BYTES // kind.row_bytes(ROW_WEIGHTS))
    return _weights(name, rows, ROW_WEIGHTS).reshape(-1)


def _weights(name: str, rows: int, columns: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    kind = by_name(name)
    blocks = random_blocks(name, rows * columns // kind.block_elements)
    if name == "F32":
        return np.random.default_rng(0).standard_normal(len(blocks), np.float32).view(np.uint8)
    for offset in scale_offsets(kind):
        set_half(blocks, offset, np.full(len(blocks), 0x2000, np.uint16))
    return blocks.reshape(-1)


def _ggml_function(name: str) -> Callable[[int, int, int], None] | None:
    result = find_spec("xllamacpp")
    if result is None or result.origin is None or sys.platform == "win32":
        return None
    ggml_name = name.lower().replace("_k", "_K")
    for library in Path(result.origin).parent.glob("xllamacpp*.so"):
        function = getattr(ctypes.CDLL(str(library)), f"dequantize_row_{ggml_name}", None)
        if function is not None:
            function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
            function.restype = None
            return function  # type: ignore[no-any-return]  # a foreign function is typed as Any
    return None


def _print_products(kernels: Kernels) -> None:
    print(f"x @ W.T, {kernels.name}: GFLOPS, and ratio to BLAS with W unpacked before\n")
    print(f"| W | {' | '.join(f'{tokens} tokens' for tokens in TOKENS)} |")
    print(f"|---|{'---|' * len(TOKENS)}")
    for name, columns, rows in SHAPES:
        packed = _weights(name, rows, columns)
        cells = [_product(kernels, name, packed, (tokens, columns, rows)) for tokens in TOKENS]
        print(f"| {name} {rows} x {columns} | {' | '.join(cells)} |")
    print()


def _product(kernels: Kernels, name: str, packed: Bytes, shape: tuple[int, int, int]) -> str:
    tokens, columns, rows = shape
    kind = by_name(name)
    x = np.random.default_rng(0).standard_normal((tokens, columns), np.float32)
    out: Floats = np.empty((tokens, rows), np.float32)
    unpacked = np.empty(rows * columns, np.float32)
    kernels.dequantize(kind, packed, unpacked)
    transposed = unpacked.reshape(rows, columns).T
    scratch = np.empty(kernels.scratch_floats(kind, columns), np.float32)
    work: dict[str, Work] = {
        "ours": lambda: kernels.multiply(kind, packed, x, out, scratch),
        "blas": lambda: np.matmul(x, transposed, out=out),
    }
    seconds = best_turns(work, turns_s=TURN_S, min_turns=5)
    rate = 2 * tokens * columns * rows / seconds["ours"] / 1e9
    return f"{rate:.0f} ({_ratio(seconds, 'blas', 'ours')})"


def _ratio(seconds: Mapping[str, float], other: str, ours: str) -> str:
    if other not in seconds or ours not in seconds:
        return "-"
    return f"{seconds[other] / seconds[ours]:.2f}"


if __name__ == "__main__":
    main()
