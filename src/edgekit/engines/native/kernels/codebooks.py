"""The codebooks of the IQ types: points of a lattice that the codes of a block refer to.

They are facts of the format, thousands of numbers; tools/codebooks.py writes codebooks.bin from the gguf package. Read
on first use: most files have no IQ tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

FILE = "codebooks.bin"
SIGN_CODES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Codebook:
    """A part of the file: `points` points of `width` values, one signed byte each."""

    points: int
    width: int
    offset: int

    @property
    def size_bytes(self) -> int:
        return self.points * self.width


# In the order of the file. IQ1_M has IQ1_S's.
CODEBOOKS: Mapping[str, Codebook] = {
    "IQ2_XXS": Codebook(points=256, width=8, offset=0),
    "IQ2_XS": Codebook(points=512, width=8, offset=2048),
    "IQ2_S": Codebook(points=1024, width=8, offset=2048 + 4096),
    "IQ3_XXS": Codebook(points=256, width=4, offset=2048 + 4096 + 8192),
    "IQ3_S": Codebook(points=512, width=4, offset=2048 + 4096 + 8192 + 1024),
    "IQ1_S": Codebook(points=2048, width=8, offset=2048 + 4096 + 8192 + 1024 + 2048),
}
SIZE_BYTES = sum(book.size_bytes for book in CODEBOOKS.values())


@cache
def read_codebooks() -> bytes:
    data = resources.files(__package__ or "").joinpath(FILE).read_bytes()
    if len(data) != SIZE_BYTES:
        raise ImportError(
            f"{FILE} has {len(data):,} bytes instead of {SIZE_BYTES:,}: reinstall edgekit"
        )
    return data


def sign_bits(code: int) -> int:
    """Eight signs in seven bits: the number of minus signs is always even."""
    return code | (code.bit_count() % 2) << 7
