"""The weights of a file: vectors in memory as float32, matrices in memory or read tile by tile, as planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.buffers import PassPlan, matrices, vectors
from edgekit.engines.native.crew import CrewMember
from edgekit.engines.native.kernels.types import BlockError, Floats
from edgekit.engines.native.read_ahead import ReadAhead, streamed
from edgekit.errors import WeightsError
from edgekit.formats.dtype import TensorType, by_name

if TYPE_CHECKING:
    from edgekit.engines.native.file import WeightFile
    from edgekit.engines.native.kernels.types import Kernels


Packed = NDArray[np.uint8]
F32 = by_name("F32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Consecutive rows of one tensor, their bias, and the kernels that unpack them."""

    kernels: Kernels
    name: str
    kind: TensorType
    columns: int
    count: int
    offset: int  # where the first row starts in the file
    file: WeightFile
    in_memory: Packed | None = None  # all rows, if they stay in memory
    bias: Floats | None = None
    ahead: ReadAhead | None = None  # what to read ahead; None: rows are not read in order

    @property
    def row_bytes(self) -> int:
        return self.kind.row_bytes(self.columns)

    @property
    def size_bytes(self) -> int:
        return self.count * self.row_bytes

    def part(self, first: int, count: int) -> Matrix:
        """The matrix of `count` rows from row `first` on."""
        begin, end = first * self.row_bytes, (first + count) * self.row_bytes
        return replace(
            self,
            offset=self.offset + begin,
            count=count,
            in_memory=None if self.in_memory is None else self.in_memory[begin:end],
            bias=None if self.bias is None else self.bias[first : first + count],
        )

    def packed(self, worker: CrewMember, first: int, last: int) -> Packed:
        """The packed rows first..last: a view if they are in memory, else read into the worker's tile."""
        begin, end = first * self.row_bytes, last * self.row_bytes
        if self.in_memory is not None:
            return self.in_memory[begin:end]
        into = worker.packed[: end - begin]
        assert into.size == end - begin  # noqa: S101 - a tile is planned for what is read into it
        if self.ahead is not None:
            self.ahead.follow(self.offset + begin, end - begin)
        self.file.read_into(self.offset + begin, into, what=f"tensor {self.name}")
        return into

    def multiply(self, worker: CrewMember, x: Floats, out: Floats, first: int, last: int) -> None:
        """Writes x @ rows.T into `out` [tokens, rows], for the rows first..last. Does not add the bias."""
        packed = self.packed(worker, first, last)
        try:
            self.kernels.multiply(self.kind, packed, x, out, worker.scratch)
        except BlockError as error:
            raise self.bad_weight(first + self.row_of(error)) from error

    def unpack(self, worker: CrewMember, into: Floats, first: int, last: int) -> None:
        """Writes the rows first..last into `into` as float32."""
        packed = self.packed(worker, first, last)
        try:
            self.kernels.dequantize(self.kind, packed, into)
        except BlockError as error:
            raise self.bad_weight(first + self.row_of(error)) from error

    def row_of(self, error: BlockError) -> int:
        """The row of the block that an error is about."""
        return error.block * self.kind.block_elements // self.columns

    def bad_weight(self, row: int) -> WeightsError:
        return WeightsError(
            f"tensor {self.name}, row {row:,}: a weight is not a finite number; the file "
            "is damaged, or was converted to a type that cannot represent it",
            file=self.file.name,
            offset=self.offset + row * self.row_bytes,
        )


class Weights:
    """All weights by name: matrices in `rows`, and vectors in `held` as float32."""

    def __init__(
        self,
        file: WeightFile,
        plan: PassPlan,
        kernels: Kernels,
        worker: CrewMember,
        check: Callable[[], None],
    ) -> None:
        """Reads all weights that stay in memory, and calls `check` after every tile."""
        self._worker, self._check = worker, check
        self.held: dict[str, Floats] = {}
        # A vector is read in rows of one block, because it may be longer than a tile.
        for tensor in vectors(plan.model):
            kind = tensor.type
            blocks = Matrix(
                kernels=kernels,
                name=tensor.name,
                kind=kind,
                columns=kind.block_elements,
                count=tensor.shape[-1] // kind.block_elements,
                offset=tensor.offset,
                file=file,
            )
            self.held[tensor.name] = self._unpack(blocks)
        self.rows: dict[str, Matrix] = {}
        ahead = ReadAhead(file, streamed(plan))
        for tensor in matrices(plan.model):
            count, columns = tensor.shape
            rows = Matrix(
                kernels=kernels,
                name=tensor.name,
                kind=tensor.type,
                columns=columns,
                count=count,
                offset=tensor.offset,
                file=file,
                bias=self.held.get(f"{tensor.name.removesuffix('.weight')}.bias"),
                # Rows of the embedding are read in random order.
                ahead=None if tensor.name == "token_embd.weight" else ahead,
            )
            if tensor.name in plan.unpacked:
                rows = replace(rows, kind=F32, in_memory=self._unpack(rows).view(np.uint8))
            elif tensor.name in plan.kept:
                packed = np.empty(rows.size_bytes, np.uint8)
                for first in range(0, packed.size, plan.tile_bytes):
                    part = packed[first : first + plan.tile_bytes]
                    file.read_into(rows.offset + first, part, what=f"tensor {rows.name}")
                    check()
                rows = replace(rows, in_memory=packed)
            self.rows[tensor.name] = rows
        # The matrix that computes logits. If it is the embedding, its rows are read in order here.
        self.head = self.rows.get("output.weight") or replace(
            self.rows["token_embd.weight"],
            bias=self.held.get("output.bias"),
            ahead=ahead,
        )

    def _unpack(self, rows: Matrix) -> Floats:
        """The complete matrix as float32."""
        into = np.empty(rows.count * rows.columns, np.float32)
        step = max(1, self._worker.packed.size // rows.row_bytes)
        for first in range(0, rows.count, step):
            last = min(first + step, rows.count)
            part = into[first * rows.columns : last * rows.columns]
            rows.unpack(self._worker, part, first, last)
            self._check()
        return into
