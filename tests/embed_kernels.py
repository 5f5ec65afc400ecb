"""All kernels that run on this machine (numpy, and each variant of the C extension), and random blocks for them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels.numpy_kernels import UNPACK
from edgekit.engines.native.kernels.types import Kernels
from edgekit.formats.dtype import TensorType, by_name

KINDS = tuple(UNPACK)
HAVE_NATIVE = importlib.util.find_spec("edgekit.engines.native.kernels._native") is not None


def kernel_names() -> tuple[str, ...]:
    """For example: numpy, native-plain, native-avx2."""
    if not HAVE_NATIVE:
        return ("numpy",)
    from edgekit.engines.native.kernels import _native

    return ("numpy", *(f"native-{variant}" for variant in _native.variants()))


@contextmanager
def use_kernels(name: str) -> Iterator[Kernels]:
    """The kernels of that name; afterwards the best variant is selected again."""
    if name == "numpy":
        yield choose_kernels("numpy")
        return
    from edgekit.engines.native.kernels import _native

    _native.use_variant(name.removeprefix("native-"))
    try:
        yield choose_kernels("native")
    finally:
        _native.use_variant(_native.variants()[-1])


def scale_offsets(kind: TensorType) -> tuple[int, ...]:
    """The offsets of a block's half-precision fields (scale, minimum)."""
    offset, result = 0, []
    for field, size in kind.fields:
        if field in {"d", "dmin", "m"} or (field == "value" and size == 2):
            result.append(offset)
        offset += size
    return tuple(result)


def random_blocks(kind_name: str, count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Random bits as codes; any finite scales, including subnormal and negative ones."""
    kind = by_name(kind_name)
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    if kind_name == "F32":
        finite = draw.integers(0, 0x7F800000, (count, 1), dtype=np.uint32)
        finite |= draw.integers(0, 2, (count, 1), dtype=np.uint32) << 31
        blocks = finite.view(np.uint8)
    if kind_name == "MXFP4":
        blocks[:, 0] = draw.integers(0, 253, count)
    for offset in scale_offsets(kind):
        set_half(blocks, offset, random_halves(kind_name, count, draw))
    if kind_name == "IQ1_M":
        set_iq1_m_scale(blocks, random_halves(kind_name, count, draw))
    return blocks


def random_halves(kind_name: str, count: int, draw: np.random.Generator) -> NDArray[np.uint16]:
    """The bits of finite numbers: infinity is 0x7c00 in F16 and 0x7f80 in BF16."""
    end = 0x7F80 if kind_name == "BF16" else 0x7C00
    halves = draw.integers(0, end, count, dtype=np.uint16)
    return np.asarray(halves | draw.integers(0, 2, count, dtype=np.uint16) << 15, np.uint16)


def set_half(blocks: NDArray[np.uint8], offset: int, halves: NDArray[np.uint16]) -> None:
    blocks[:, offset] = halves & 255
    blocks[:, offset + 1] = halves >> 8


def set_iq1_m_scale(blocks: NDArray[np.uint8], halves: NDArray[np.uint16]) -> None:
    """The scale of IQ1_M: four bits at the top of each of four words."""
    for word in range(4):
        top = 49 + 2 * word
        blocks[:, top] = blocks[:, top] & 15 | (halves >> (4 * word) & 15) << 4
