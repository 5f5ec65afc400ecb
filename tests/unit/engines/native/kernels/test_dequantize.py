"""dequantize: every type, bit for bit like gguf-py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.embed_kernels import (
    KINDS,
    kernel_names,
    random_blocks,
    scale_offsets,
    set_half,
    set_iq1_m_scale,
    use_kernels,
)

from edgekit.engines.native.kernels.types import BlockError, Kernels
from edgekit.formats.dtype import by_name

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# 0, the smallest and largest subnormal, the smallest normal, 1, the largest normal; and their negatives.
EDGES = (
    0x0000,
    0x0001,
    0x03FF,
    0x0400,
    0x3C00,
    0x7BFF,
    0x8000,
    0x8001,
    0x83FF,
    0x8400,
    0xBC00,
    0xFBFF,
)
NOT_FINITE = (
    0x7C00,
    0xFC00,
    0x7E00,
    0x7D01,
    0xFFFF,
)  # both infinities, quiet and signalling NaN


@pytest.fixture(params=kernel_names())
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    with use_kernels(request.param) as chosen:
        yield chosen


def reference(name: str, blocks: Bytes) -> Floats:
    return np.asarray(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name]), np.float32)


def dequantize(kernels: Kernels, name: str, blocks: Bytes) -> Floats:
    kind = by_name(name)
    into = np.full(len(blocks) * kind.block_elements, np.nan, np.float32)
    kernels.dequantize(kind, blocks.reshape(-1), into)
    return into


def same_bits(a: Floats, b: Floats) -> bool:
    return bool(np.array_equal(a.reshape(-1).view(np.uint32), b.reshape(-1).view(np.uint32)))


@pytest.mark.parametrize("name", KINDS)
def test_dequantize_random_blocks_equals_gguf_py(kernels: Kernels, name: str) -> None:
    blocks = random_blocks(name, 5000)
    assert same_bits(dequantize(kernels, name, blocks), reference(name, blocks))


@pytest.mark.parametrize("name", KINDS)
def test_dequantize_extreme_scales_equals_gguf_py(kernels: Kernels, name: str) -> None:
    blocks = np.concatenate([with_scale(name, edge) for edge in EDGES])
    assert same_bits(dequantize(kernels, name, blocks), reference(name, blocks))


def with_scale(name: str, half: int, count: int = 20) -> Bytes:
    """Blocks of random codes, with `half` as every scale."""
    blocks = random_blocks(name, count, seed=half)
    halves = np.full(count, half, np.uint16)
    for offset in scale_offsets(by_name(name)):
        set_half(blocks, offset, halves)
    if name == "IQ1_M":
        set_iq1_m_scale(blocks, halves)
    return blocks


def test_dequantize_mxfp4_every_finite_exponent(kernels: Kernels) -> None:
    blocks = random_blocks("MXFP4", 253)
    blocks[:, 0] = np.arange(253)
    assert same_bits(dequantize(kernels, "MXFP4", blocks), reference("MXFP4", blocks))


@pytest.mark.parametrize("exponent", [253, 254, 255])
def test_dequantize_mxfp4_refuses_exponents_beyond_float32(kernels: Kernels, exponent: int) -> None:
    blocks = random_blocks("MXFP4", 7)
    blocks[5, 0] = exponent
    assert bad_block(kernels, "MXFP4", blocks) == 5


def bad_block(kernels: Kernels, name: str, blocks: Bytes) -> int:
    with pytest.raises(BlockError) as raised:
        dequantize(kernels, name, blocks)
    return raised.value.block


@pytest.mark.parametrize("name", [name for name in KINDS if scale_offsets(by_name(name))])
def test_dequantize_names_the_first_block_with_a_scale_that_is_not_finite(
    kernels: Kernels, name: str
) -> None:
    """For each scale of the block."""
    count = 20_000 if by_name(name).block_elements == 1 else 300
    good = random_blocks(name, count)
    for offset, half in product(scale_offsets(by_name(name)), NOT_FINITE):
        bits = half if name != "BF16" else (half & 0x8000) | 0x7F80 | (half & 0x7F)
        blocks = good.copy()
        for bad in (count - 1, count // 2):
            blocks[bad, offset : offset + 2] = (bits & 255, bits >> 8)
            assert bad_block(kernels, name, blocks) == bad, (offset, half)


def test_dequantize_iq1_m_names_the_block_with_a_scale_that_is_not_finite(kernels: Kernels) -> None:
    blocks = random_blocks("IQ1_M", 100)
    set_iq1_m_scale(blocks[70:], np.full(30, 0x7C00, np.uint16))
    assert bad_block(kernels, "IQ1_M", blocks) == 70


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_dequantize_f32_names_the_first_float_that_is_not_finite(
    kernels: Kernels, value: float
) -> None:
    blocks = random_blocks("F32", 20_000)
    blocks[12_345:12_347] = np.full(2, value, np.float32).view(np.uint8).reshape(2, 4)
    assert bad_block(kernels, "F32", blocks) == 12_345


@pytest.mark.parametrize("name", KINDS)
def test_dequantize_accepts_unaligned_bytes(kernels: Kernels, name: str) -> None:
    """Tensor data in a file may start at any offset."""
    kind = by_name(name)
    blocks = random_blocks(name, 40)
    for shift in (1, 2, 3):
        unaligned = np.zeros(blocks.size + shift, np.uint8)[shift:]
        unaligned[:] = blocks.reshape(-1)
        into = np.empty(40 * kind.block_elements, np.float32)
        kernels.dequantize(kind, unaligned.data, into)
        assert same_bits(into, reference(name, blocks))


@pytest.mark.parametrize("name", KINDS)
def test_dequantize_part_of_a_row_writes_only_that_part(kernels: Kernels, name: str) -> None:
    """The values equal those of the full row, and floats after them are not touched."""
    kind = by_name(name)
    blocks = random_blocks(name, 37)
    expected = reference(name, blocks).reshape(37, kind.block_elements)
    for first, last in ((0, 1), (1, 4), (4, 37), (37, 37)):
        into = np.full((last - first + 1) * kind.block_elements, -7, np.float32)
        kernels.dequantize(kind, blocks[first:last].tobytes(), into)
        written = (last - first) * kind.block_elements
        assert same_bits(into[:written], expected[first:last])
        assert (into[written:] == -7).all()


@pytest.mark.parametrize("name", KINDS)
def test_dequantize_refuses_partial_blocks_and_small_outputs(kernels: Kernels, name: str) -> None:
    kind = by_name(name)
    into = np.empty(10 * kind.block_elements, np.float32)
    with pytest.raises(ValueError, match="whole blocks"):
        kernels.dequantize(kind, bytes(2 * kind.block_bytes - 1), into)
    into = np.full(2 * kind.block_elements - 1, -7, np.float32)
    with pytest.raises(ValueError, match=r"fit|small"):
        kernels.dequantize(kind, bytes(2 * kind.block_bytes), into)
    assert (into == -7).all()


@given(st.sampled_from(KINDS), st.data())
@settings(max_examples=60, deadline=None)
def test_dequantize_of_any_bits_is_the_same_in_all_kernels(name: str, data: st.DataObject) -> None:
    """Bits that no quantiser writes are included, and the number of the first bad block is compared too."""
    kind = by_name(name)
    raw = data.draw(st.binary(min_size=kind.block_bytes, max_size=8 * kind.block_bytes))
    raw = raw[: len(raw) // kind.block_bytes * kind.block_bytes]
    outcomes = {outcome(name, raw, kernel_name) for kernel_name in kernel_names()}
    assert len(outcomes) == 1


def outcome(name: str, raw: bytes, kernel_name: str) -> bytes | int:
    kind = by_name(name)
    into = np.empty(len(raw) // kind.block_bytes * kind.block_elements, np.float32)
    with use_kernels(kernel_name) as kernels:
        try:
            kernels.dequantize(kind, raw, into)
        except BlockError as error:
            return error.block
    return into.tobytes()
