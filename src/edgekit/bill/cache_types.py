"""The types that a KV cache can be stored in: one row each."""

from __future__ import annotations

from dataclasses import dataclass

from edgekit.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheType:
    """A block of numbers and its size."""

    name: str
    block_elements: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        return self.block_elements > 1

    @property
    def bits(self) -> float:
        return self.block_bytes * 8 / self.block_elements

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row, which must be a multiple of the block."""
        return elements // self.block_elements * self.block_bytes

    def divides(self, elements: int) -> bool:
        return elements % self.block_elements == 0


def _row(name: str, elements: int, size_bytes: int) -> CacheType:
    return CacheType(name=name, block_elements=elements, block_bytes=size_bytes)


TABLE: tuple[CacheType, ...] = (
    _row("f32", 1, 4),
    _row("f16", 1, 2),
    _row("bf16", 1, 2),
    _row("fp8", 1, 1),
    _row("q8_0", 32, 34),
    _row("q5_1", 32, 24),
    _row("q5_0", 32, 22),
    _row("q4_1", 32, 20),
    _row("q4_0", 32, 18),
    _row("iq4_nl", 32, 18),
    # The compressed layouts of the what-if engine: keys 2.125 bits, values 3.5 or 4.5.
    _row("qjl1_256", 256, 68),
    _row("turbo3_0", 256, 112),
    _row("q4_polar", 256, 144),
)

F32, F16, BF16 = TABLE[0], TABLE[1], TABLE[2]
_BY_NAME = {row.name: row for row in TABLE}


def cache_type(name: str) -> CacheType:
    """The type of this name. Raises UsageError that lists the names."""
    row = _BY_NAME.get(name.lower())
    if row is None:
        raise UsageError(f"unknown cache type {name[:40]!r}; choose one of {', '.join(_BY_NAME)}")
    return row
