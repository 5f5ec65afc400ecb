"""A recurrent layer -> bytes of its state on one rank (mamba_utils.py MambaStateShapeCalculator @ 0.32.0)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgekit.engines.vllm.types import DTYPE_BYTES
from edgekit.errors import RefusedError
from edgekit.model.types import Cell, Recurrent

Shape = Callable[
    [Recurrent, int], tuple[int, int]
]  # elements of the convolution's tail, of the state


def state_bytes(kind: Recurrent, ranks: int, conv_dtype: str, state_dtype: str) -> int:
    shape = _SHAPES.get(kind.cell)
    if shape is None:
        raise RefusedError(f"vLLM 0.32 has no model with {kind.cell.value} layers")
    conv, state = shape(kind, ranks)
    return conv * DTYPE_BYTES[conv_dtype] + state * DTYPE_BYTES[state_dtype]


def state_blocks(kind: Recurrent, *, prefix_caching: bool) -> int:
    """Blocks of one request: its state; a second to copy on write; a third that a Mamba-2 prefill leaves behind."""
    if not prefix_caching:
        return 1
    return 3 if kind.cell is Cell.MAMBA2 else 2  # MambaSpec.max_memory_usage_bytes, mamba_mixer2.py


def _share(size: int, ranks: int, what: str) -> int:
    if size % ranks:
        raise RefusedError(f"{what} of {size} is not divisible by tensor parallel size {ranks}")
    return size // ranks


def _mamba(kind: Recurrent, ranks: int) -> tuple[int, int]:
    inner = _share(kind.inner, ranks, "an inner width")
    return (kind.conv_kernel - 1) * inner, inner * kind.state_size


def _mamba2(kind: Recurrent, ranks: int) -> tuple[int, int]:
    # Groups are copied until every rank has one.
    groups = kind.groups if kind.groups % ranks == 0 else ranks
    channels = _share(kind.inner + 2 * groups * kind.state_size, ranks, "a convolution")
    _share(kind.heads, ranks, "a count of state heads")
    return (kind.conv_kernel - 1) * channels, kind.state_elements // ranks


def _delta(kind: Recurrent, ranks: int) -> tuple[int, int]:
    taps = kind.conv_kernel - 1
    channels = _share(kind.conv_elements // max(taps, 1), ranks, "a convolution")
    _share(kind.heads, ranks, "a count of state heads")
    return taps * channels, kind.state_elements // ranks


def _short_conv(kind: Recurrent, ranks: int) -> tuple[int, int]:
    return (kind.conv_kernel - 1) * _share(kind.inner, ranks, "a convolution"), 0


_SHAPES: Mapping[Cell, Shape] = {
    Cell.MAMBA: _mamba,
    Cell.MAMBA2: _mamba2,
    Cell.GATED_DELTA: _delta,
    Cell.KIMI_DELTA: _delta,
    Cell.SHORT_CONV: _short_conv,
}
