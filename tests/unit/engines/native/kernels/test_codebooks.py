"""codebooks.bin has the points of gguf-py."""

from __future__ import annotations

from gguf import quants
from tools.codebooks import all_points

from edgekit.engines.native.kernels.codebooks import (
    CODEBOOKS,
    SIGN_CODES,
    SIZE_BYTES,
    read_codebooks,
    sign_bits,
)


def test_codebooks_file_equals_the_output_of_the_tool() -> None:
    assert read_codebooks() == all_points()


def test_codebooks_are_contiguous() -> None:
    end = 0
    for book in CODEBOOKS.values():
        assert book.offset == end
        end += book.points * book.width
    assert end == SIZE_BYTES


def test_sign_bits_equal_gguf_py() -> None:
    assert bytes(sign_bits(code) for code in range(SIGN_CODES)) == quants.IQ2_XXS.ksigns
