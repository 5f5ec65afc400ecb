"""Asks the system to read weights before a pass needs them, so that the disk works while the processor computes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, zip_longest
from typing import TYPE_CHECKING

from edgekit.engines.native.families import ModelUse
from edgekit.units import MIB

if TYPE_CHECKING:
    from edgekit.engines.native.buffers import PassPlan
    from edgekit.engines.native.file import WeightFile
    from edgekit.formats.types import Tensor

AHEAD_BYTES = (
    16 * MIB
)  # how far the disk is ahead: 16 ms at 1 GB/s, longer than the work between two matrices
# Linux reads at most max_sectors_kb (usually 1,280) of one request ahead, and ignores the rest.
PIECE_BYTES = MIB

Piece = tuple[int, int]  # offset in the file, and length

# The matrices of a layer in the order in which a pass reads them; those of one line are read together.
_ORDER = (
    ("attn_qkv",),
    ("attn_q",),
    ("attn_k",),
    ("attn_v",),
    ("attn_output",),
    ("ffn_gate", "ffn_up"),
    ("ffn_down",),
)


class ReadAhead:
    """The parts of a file that each pass reads, in this order, and again from the first."""

    def __init__(self, file: WeightFile, pieces: Sequence[Piece]) -> None:
        self._file, self._pieces = file, tuple(pieces)
        lengths = (length for _, length in self._pieces)
        *self._starts, self._total_bytes = accumulate(lengths, initial=0)
        by_offset = sorted(
            (offset, start) for (offset, _), start in zip(self._pieces, self._starts, strict=True)
        )
        self._offsets = [offset for offset, _ in by_offset]
        self._starts_by_offset = [start for _, start in by_offset]

    def follow(self, offset: int, length: int) -> None:
        """Hints what will be read AHEAD_BYTES after this part, of the same length. Never fails."""
        place = bisect_right(self._offsets, offset) - 1
        if place < 0 or not self._total_bytes:
            return
        position = self._starts_by_offset[place] + offset - self._offsets[place]
        for next_offset, count in self._range(position + AHEAD_BYTES, length):
            self._file.read_ahead(next_offset, count)

    def _range(self, position: int, length: int) -> Iterator[Piece]:
        """The pieces, cut to `length` bytes, from a position that counts all bytes of a pass in their order."""
        length = min(length, self._total_bytes)
        while length > 0:
            position %= self._total_bytes
            index = bisect_right(self._starts, position) - 1
            offset, size = self._pieces[index]
            begin = position - self._starts[index]
            count = min(length, size - begin)
            yield offset + begin, count
            position += count
            length -= count


def reading_order(plan: PassPlan) -> Iterator[Piece]:
    """The pieces of all matrices that are not in memory, in the order of a pass."""
    model = plan.model
    for layer in model.layers:
        for names in _ORDER:
            together = (layer.get(f"{name}.weight") for name in names)
            parts = [
                _pieces(tensor) for tensor in together if tensor and tensor.name not in plan.kept
            ]
            yield from (piece for piece in chain(*zip_longest(*parts)) if piece)
    if model.use is ModelUse.GENERATE:
        head = model.outside.get("output.weight") or model.outside["token_embd.weight"]
        if head.name not in plan.kept:
            yield from _pieces(head)


def _pieces(tensor: Tensor) -> Iterator[Piece]:
    end = tensor.offset + tensor.size_bytes
    return (
        (offset, min(PIECE_BYTES, end - offset))
        for offset in range(tensor.offset, end, PIECE_BYTES)
    )
