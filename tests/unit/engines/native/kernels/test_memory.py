"""Memory that the kernels themselves allocate: bounded, however much data there is."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from tests.embed_kernels import HAVE_NATIVE, KINDS, kernel_names, random_blocks, use_kernels

from edgekit.engines.native.kernels.types import Kernels
from edgekit.formats.dtype import by_name

KIB = 1024


@pytest.fixture(params=kernel_names())
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    with use_kernels(request.param) as chosen:
        yield chosen


def peak_bytes(kernels: Kernels, name: str, count: int) -> int:
    """The peak of one call that unpacks `count` blocks into an existing array."""
    kind = by_name(name)
    source = random_blocks(name, count).reshape(-1)
    into = np.empty(count * kind.block_elements, np.float32)
    peaks = []
    for _ in range(3):  # a thread of another test may allocate meanwhile
        tracemalloc.start()
        kernels.dequantize(kind, source, into)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(peaks)


@pytest.mark.parametrize("name", KINDS)
def test_dequantize_memory_does_not_grow_with_the_data(kernels: Kernels, name: str) -> None:
    count = 300_000 // by_name(name).block_elements
    peak_bytes(kernels, name, 1)  # allocate what is created on first use
    limit = 4 * KIB if kernels.name == "native" else 96 * KIB
    assert peak_bytes(kernels, name, count) < limit
    assert peak_bytes(kernels, name, 4 * count) < limit


@pytest.mark.skipif(not HAVE_NATIVE, reason="the extension was not built here")
def test_codebooks_are_loaded_only_when_needed() -> None:
    program = """
import numpy as np
from edgekit.engines.native.kernels import choose_kernels
from edgekit.engines.native.kernels._native import held_bytes
from edgekit.formats.dtype import by_name
kernels, into = choose_kernels("native"), np.empty(256, np.float32)
kernels.dequantize(by_name("Q4_K"), bytes(144), into)
before = held_bytes()
kernels.dequantize(by_name("IQ2_S"), bytes(82), into)
print(before, held_bytes() - before)
"""
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    before, codebook_bytes = map(int, process.stdout.split())
    assert before < 4 * KIB
    assert codebook_bytes == 33_792
