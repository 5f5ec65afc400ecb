"""The weights of a file as a plan has them: vectors held as float32, matrices kept or read tile by tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.buffers import PassPlan, matrices, row_bytes, vectors
from edgekit.engines.native.crew import CrewMember
from edgekit.engines.native.kernels.types import BlockError, Floats
from edgekit.errors import WeightsError
from edgekit.formats.dtype import TensorType, by_name
from edgekit.formats.types import Tensor

if TYPE_CHECKING:
    from edgekit.engines.native.file import WeightFile
    from edgekit.engines.native.kernels.types import Kernels


Packed = NDArray[np.uint8]
F32 = by_name("F32")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRows:
    """Consecutive rows of one tensor, and the kernels that unpack them."""

    kernels: Kernels
    name: str
    kind: TensorType
    columns: int
    count: int
    row_bytes: int
    offset: int  # of the first, in the file
    kept: Packed | None  # all of them, if they stay in memory
    file: WeightFile
    ahead_bytes: int  # how far ahead the system should read

    def part(self, first: int, count: int) -> TensorRows:
        skipped = first * self.row_bytes
        kept = None if self.kept is None else self.kept[skipped : skipped + count * self.row_bytes]
        return replace(self, offset=self.offset + skipped, count=count, kept=kept)

    def packed(self, worker: CrewMember, first: int, last: int) -> Packed:
        """The bytes of rows first..last: in place if they are kept, else read into the tile."""
        begin, end = first * self.row_bytes, last * self.row_bytes
        if self.kept is not None:
            return self.kept[begin:end]
        into = worker.packed[: end - begin]
        assert into.size == end - begin  # noqa: S101 - a tile is planned for what is read into it
        self.file.read_into(self.offset + begin, into, what=f"tensor {self.name}")
        if self.ahead_bytes:
            self.file.read_ahead(self.offset + end, self.ahead_bytes)
        return into

    def multiply(self, worker: CrewMember, x: Floats, out: Floats, first: int, last: int) -> None:
        """Multiply x by the rows first..last into `out` [tokens, rows]."""
        packed = self.packed(worker, first, last)
        try:
            self.kernels.multiply(self.kind, packed, x, out, worker.scratch)
        except BlockError as error:
            raise self.bad(first + self.row_of(error)) from error

    def unpack(self, worker: CrewMember, into: Floats, first: int, last: int) -> None:
        packed = self.packed(worker, first, last)
        try:
            self.kernels.dequantize(self.kind, packed, into)
        except BlockError as error:
            raise self.bad(first + self.row_of(error)) from error

    def row_of(self, error: BlockError) -> int:
        return error.block * self.kind.block_elements // self.columns

    def bad(self, row: int) -> WeightsError:
        return WeightsError(
            f"tensor {self.name}, row {row:,}: a weight is not a finite number; the file "
            "is damaged, or was converted to a type that cannot represent it",
            file=self.file.name,
            offset=self.offset + row * self.row_bytes,
        )


class Weights:
    """By name in the file: `rows` to multiply by or to look up, and `held` vectors as float32."""

    def __init__(
        self,
        file: WeightFile,
        plan: PassPlan,
        kernels: Kernels,
        worker: CrewMember,
        check: Callable[[], None],
        *,
        unpacked: frozenset[str] = frozenset(),
    ) -> None:
        """Reads everything that is held or kept; `check` is called every few tiles.

        `unpacked`: kept tensors that stay as float32.
        """
        self._file, self._plan, self._kernels = file, plan, kernels
        self._worker, self._check, self._unpacked = worker, check, unpacked
        self._ahead_bytes = plan.threads * plan.tile_bytes
        self.held = {
            tensor.name: self._vector(tensor, tensor.shape[-1]) for tensor in vectors(plan.model)
        }
        self.rows = {tensor.name: self._matrix(tensor) for tensor in matrices(plan.model)}

    @property
    def head(self) -> TensorRows:
        """The matrix that makes logits. An embedding used for this is read row after row."""
        own = self.rows.get("output.weight")
        return own or replace(self.rows["token_embd.weight"], ahead_bytes=self._ahead_bytes)

    def _matrix(self, tensor: Tensor) -> TensorRows:
        rows = TensorRows(
            kernels=self._kernels,
            name=tensor.name,
            kind=tensor.type,
            columns=tensor.shape[1],
            count=tensor.shape[0],
            row_bytes=row_bytes(tensor),
            offset=tensor.offset,
            kept=None,
            file=self._file,
            # Rows of the embedding are read here and there: reading ahead would be useless.
            ahead_bytes=0 if tensor.name == "token_embd.weight" else self._ahead_bytes,
        )
        if tensor.name not in self._plan.kept:
            return rows
        if tensor.name not in self._unpacked:
            return replace(rows, kept=self._kept(rows))
        floats = self._floats(rows)
        return replace(
            rows, kind=F32, row_bytes=F32.row_bytes(rows.columns), kept=floats.view(np.uint8)
        )

    def _kept(self, rows: TensorRows) -> Packed:
        into = np.empty(rows.count * rows.row_bytes, np.uint8)
        step = max(1, self._plan.tile_bytes)
        for first in range(0, into.size, step):
            part = into[first : first + step]
            self._file.read_into(rows.offset + first, part, what=f"tensor {rows.name}")
            self._check()
        return into

    def _floats(self, rows: TensorRows) -> Floats:
        into = np.empty(rows.count * rows.columns, np.float32)
        step = max(1, self._worker.packed.size // rows.row_bytes)
        for first in range(0, rows.count, step):
            last = min(first + step, rows.count)
            part = into[first * rows.columns : last * rows.columns]
            rows.unpack(self._worker, part, first, last)
            self._check()
        return into

    def _vector(self, tensor: Tensor, elements: int) -> Floats:
        """As rows of one block each: it may be longer than a tile."""
        kind = tensor.type
        blocks = TensorRows(
            kernels=self._kernels,
            name=tensor.name,
            kind=kind,
            columns=kind.block_elements,
            count=elements // kind.block_elements,
            row_bytes=kind.block_bytes,
            offset=tensor.offset,
            kept=None,
            file=self._file,
            ahead_bytes=0,
        )
        return self._floats(blocks)
