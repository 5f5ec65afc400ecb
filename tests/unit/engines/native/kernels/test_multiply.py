"""multiply: x @ W.T with packed W, compared with float64 for every type and many shapes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
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

from edgekit.engines.native.kernels.types import BlockError, Floats, Kernels
from edgekit.errors import HeaderError
from edgekit.formats.dtype import by_name


@pytest.fixture(params=kernel_names())
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    with use_kernels(request.param) as chosen:
        yield chosen


def weights(name: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """Blocks whose scales are near 1/100, so that sums stay near 1."""
    kind = by_name(name)
    blocks = random_blocks(name, rows * columns // kind.block_elements, seed=rows + columns)
    scales = np.full(len(blocks), 0x2000, np.uint16)
    for offset in scale_offsets(kind):
        set_half(blocks, offset, scales)
    if name == "IQ1_M":
        set_iq1_m_scale(blocks, scales)
    if name == "MXFP4":
        blocks[:, 0] = 121
    if name in {"F32", "F16", "BF16"}:
        values = np.random.default_rng(rows).standard_normal(len(blocks)).astype(np.float32)
        blocks = as_bytes(name, values).reshape(len(blocks), kind.block_bytes)
    return blocks.reshape(-1)


def as_bytes(name: str, values: Floats) -> NDArray[np.uint8]:
    if name == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype({"F32": np.float32, "F16": np.float16}[name]).view(np.uint8)


def products(
    kernels: Kernels, name: str, packed: NDArray[np.uint8], x: Floats, rows: int
) -> Floats:
    kind = by_name(name)
    scratch = np.empty(kernels.scratch_floats(kind, x.shape[1]), np.float32)
    out = np.full((len(x), rows), np.nan, np.float32)
    kernels.multiply(kind, packed, x, out, scratch)
    return out


def exact(
    kernels: Kernels, name: str, packed: NDArray[np.uint8], x: Floats, rows: int
) -> NDArray[np.float64]:
    unpacked = np.empty(rows * x.shape[1], np.float32)
    kernels.dequantize(by_name(name), packed, unpacked)
    return x.astype(np.float64) @ unpacked.astype(np.float64).reshape(rows, -1).T


def random_x(tokens: int, columns: int) -> Floats:
    return np.random.default_rng(tokens * columns).standard_normal(
        (tokens, columns), dtype=np.float32
    )


@pytest.fixture
def tolerance(kernels: Kernels, request: pytest.FixtureRequest) -> float:
    """A few float32 roundings; for several tokens i8mm rounds x to 16 bits."""
    return 4e-5 if request.node.callspec.params["kernels"] == "native-i8mm" else 2e-6


def close(
    actual: Floats, expected: NDArray[np.float64], columns: int, tolerance: float = 2e-6
) -> bool:
    """As precise as that for a sum of `columns` numbers near 1."""
    error = np.abs(actual - expected).max()
    return bool(error <= tolerance * max(np.abs(expected).max(), columns**0.5))


@pytest.mark.parametrize("tokens", [1, 30])
@pytest.mark.parametrize("name", KINDS)
def test_multiply_every_type(kernels: Kernels, tolerance: float, name: str, tokens: int) -> None:
    packed, x = weights(name, 45, 1280), random_x(tokens, 1280)
    actual, expected = products(kernels, name, packed, x, 45), exact(kernels, name, packed, x, 45)
    assert close(actual, expected, 1280, tolerance)


@pytest.mark.parametrize("rows", [1, 3, 4, 31, 33, 70])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 23, 24, 29, 37, 100])
def test_multiply_every_tile_shape(kernels: Kernels, tokens: int, rows: int) -> None:
    for columns in (1, 33, 512, 1030):
        packed, x = weights("F32", rows, columns), random_x(tokens, columns)
        assert close(
            products(kernels, "F32", packed, x, rows),
            exact(kernels, "F32", packed, x, rows),
            columns,
        )


@pytest.mark.parametrize(("name", "columns"), [("Q4_K", 3584), ("Q6_K", 18944), ("Q8_0", 96)])
def test_multiply_real_row_lengths(
    kernels: Kernels, tolerance: float, name: str, columns: int
) -> None:
    packed, x = weights(name, 9, columns), random_x(16, columns)
    actual, expected = products(kernels, name, packed, x, 9), exact(kernels, name, packed, x, 9)
    assert close(actual, expected, columns, tolerance)


@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_multiply_columns_of_larger_arrays(kernels: Kernels, tolerance: float, tokens: int) -> None:
    """The other columns are not touched."""
    kind = by_name("Q4_0")
    packed = weights("Q4_0", 37, 64)
    wide_x, wide_out = random_x(tokens, 100), np.full((tokens, 50), -7, np.float32)
    x, out = wide_x[:, 20:84], wide_out[:, 5:42]
    kernels.multiply(kind, packed, x, out, np.empty(kernels.scratch_floats(kind, 64), np.float32))
    expected = exact(kernels, "Q4_0", packed, x, 37)
    assert close(np.ascontiguousarray(out), expected, 64, tolerance)
    assert (wide_out[:, :5] == -7).all()
    assert (wide_out[:, 42:] == -7).all()


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_multiply_counts_a_bad_block_from_the_start_of_the_weights(
    kernels: Kernels, tokens: int
) -> None:
    packed = weights("Q4_K", 40, 1024)
    packed.reshape(-1, 144)[37 * 4 + 2, :2] = (0, 0x7C)
    with pytest.raises(BlockError) as raised:
        products(kernels, "Q4_K", packed, random_x(tokens, 1024), 40)
    assert raised.value.block == 37 * 4 + 2


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_multiply_counts_a_bad_number_from_the_start_of_the_weights(
    kernels: Kernels, name: str
) -> None:
    kind = by_name(name)
    packed = weights(name, 5, 300)
    packed.reshape(-1, kind.block_bytes)[4 * 300 + 299, -2:] = (0x80, 0x7F)  # NaN, or infinity
    with pytest.raises(BlockError) as raised:
        products(kernels, name, packed, random_x(1, 300), 5)
    assert raised.value.block == 4 * 300 + 299


def test_multiply_without_tokens_or_rows(kernels: Kernels) -> None:
    kind = by_name("Q4_K")
    scratch = np.empty(kernels.scratch_floats(kind, 256), np.float32)
    kernels.multiply(
        kind, weights("Q4_K", 3, 256), random_x(0, 256), np.empty((0, 3), np.float32), scratch
    )
    kernels.multiply(kind, b"", random_x(4, 256), np.empty((4, 0), np.float32), scratch)


def test_scratch_floats_refuses_partial_blocks(kernels: Kernels) -> None:
    with pytest.raises(HeaderError, match="multiple"):
        kernels.scratch_floats(by_name("Q4_K"), 300)


def test_scratch_of_a_long_row_is_at_most_256_kib(kernels: Kernels) -> None:
    kind = by_name("Q4_K")
    assert kernels.scratch_floats(kind, 18944) * 4 <= 256 * 1024


def test_multiply_in_several_threads(kernels: Kernels) -> None:
    packed, x = weights("Q6_K", 64, 512), random_x(33, 512)
    expected = products(kernels, "Q6_K", packed, x, 64)
    is_same: list[bool] = []

    def work() -> None:
        is_same.extend(
            bool((products(kernels, "Q6_K", packed, x, 64) == expected).all()) for _ in range(20)
        )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_same == [True] * 80
