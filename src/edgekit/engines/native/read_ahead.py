"""Asks the system to read weights before a pass needs them, so that the disk works while the processor computes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from edgekit.engines.native.families import ModelUse
from edgekit.units import MIB

if TYPE_CHECKING:
    from edgekit.engines.native.buffers import PassPlan
    from edgekit.engines.native.file import WeightFile
    from edgekit.formats.types import Tensor

AHEAD_BYTES = 16 * MIB  # 16 ms at 1 GB/s, which is longer than the work between two matrices

# The matrices of a layer in the order in which a pass reads them.
_ORDER = ("attn_qkv", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class ReadAhead:
    """The parts of a file that every pass reads in the same order."""

    def __init__(self, file: WeightFile, tensors: Iterable[Tensor]) -> None:
        self._file = file
        self._parts = tuple((tensor.offset, tensor.size_bytes) for tensor in tensors)
        # Positions count the bytes of a pass in the order in which they are read.
        *self._starts, self._total_bytes = accumulate((size for _, size in self._parts), initial=0)
        self._start_of = {
            offset: start for (offset, _), start in zip(self._parts, self._starts, strict=True)
        }
        self._offsets = sorted(self._start_of)

    def follow(self, offset: int, length: int) -> None:
        """Asks for what is read AHEAD_BYTES after this part, in the same amount. The first part follows the last.

        A tile is not more than Linux takes at once (max_sectors_kb, usually 1,280). Never fails.
        """
        place = bisect_right(self._offsets, offset) - 1
        if place < 0:
            return
        first = self._offsets[place]
        position = self._start_of[first] + offset - first + AHEAD_BYTES
        length = min(length, self._total_bytes)
        while length > 0:
            position %= self._total_bytes
            index = bisect_right(self._starts, position) - 1
            begin, size = self._parts[index]
            skipped = position - self._starts[index]
            count = min(length, size - skipped)
            self._file.read_ahead(begin + skipped, count)
            position += count
            length -= count


def streamed(plan: PassPlan) -> Iterator[Tensor]:
    """All matrices that are not in memory, in the order in which a pass reads them."""
    model = plan.model
    for layer in model.layers:
        for name in _ORDER:
            tensor = layer.get(f"{name}.weight")
            if tensor is not None and tensor.name not in plan.kept:
                yield tensor
    if model.use is ModelUse.GENERATE:
        head = model.outside.get("output.weight") or model.outside["token_embd.weight"]
        if head.name not in plan.kept:
            yield head
