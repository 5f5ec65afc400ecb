"""Tokens -> the mean of their rows in the embedding table. No layer is run.

A token's row is read from the file, unpacked, and added to the vector. There are two buffers; a row that is longer than
one of them goes through it in pieces of whole blocks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from operator import index as whole
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekit.engines.native.crew import Checkpoint
from edgekit.engines.native.file import FileHeader, WeightFile
from edgekit.engines.native.kernels.types import BlockError, Floats, Kernels
from edgekit.errors import HeaderLimitError, TextError, UnknownDtypeError, WeightsError, quoted
from edgekit.formats.dtype import TensorType
from edgekit.formats.types import Tensor
from edgekit.machine.monitor import Monitor
from edgekit.units import KIB, MB

TABLE = "token_embd.weight"
VOCABULARY = "tokenizer.ggml.tokens"
READ_BYTES = 32 * KIB
DECODE_FLOATS = 16 * KIB // 4
WIDEST = 65_536  # floats in a row: the widest models have 18,432
PAUSE_BYTES = 1 * MB  # unpacked floats between two checkpoints,
PAUSE_S = 0.02  # or the time, if the disk is slow


class TokenMean:
    """An Encoder, made by `open_token_mean`. Not thread-safe."""

    def __init__(
        self, file: WeightFile, table: Tensor, *, kernels: Kernels, monitor: Monitor
    ) -> None:
        self._file = file
        self._table = table
        self._kernels = kernels
        self._rows, self._width = table.shape
        self._row_bytes = table.type.row_bytes(self._width)
        sizes = _buffer_sizes(table.type, self._width)
        self._reservation = monitor.try_allocate(sizes.total_bytes, "reading the token table")
        self._pieces = tuple(_pieces(table.type, self._width, sizes))

    @property
    def width(self) -> int:
        return self._width

    def encode(self, texts: Sequence[Sequence[int]], into: Floats, checkpoint: Checkpoint) -> None:
        """The mean of each text's rows, added up one after another in float32.

        2,048 rows lose less than 2,048 * 2**-24 of the largest sum. Raises SourceError if the file changes meanwhile,
        WeightsError for a row that is missing or not finite.
        """
        if into.shape != (len(texts), self._width) or into.dtype != np.float32:
            shape = (len(texts), self._width)
            raise ValueError(
                f"output must be float32 of shape {shape}, got {into.dtype} of {into.shape}"
            )
        self._file.check_unchanged()
        pause = _Pause(checkpoint, sum(map(len, texts)), 4 * self._width)
        with np.errstate(over="ignore"):  # noticed when the vector is scaled
            for place, tokens in enumerate(texts):
                if not len(tokens):
                    raise TextError("has no tokens, so it has no mean", index=place)
                self._mean(tokens, into[place], pause)
        self._file.check_unchanged()

    def _mean(self, tokens: Sequence[int], vector: Floats, pause: _Pause) -> None:
        vector.fill(0)
        for token in tokens:
            self._add(whole(token), vector)
            pause.after_row()
        vector /= np.float32(len(tokens))

    def _add(self, token: int, vector: Floats) -> None:
        if not 0 <= token < self._rows:
            raise self._broken(
                f"token {token:,} has no row ({self._rows:,} rows): the vocabulary "
                "belongs to another model"
            )
        begin = self._table.offset + token * self._row_bytes
        for piece in self._pieces:
            self._file.read_into(begin + piece.at_bytes, piece.packed, what=TABLE)
            for tile in piece.tiles:
                try:
                    self._kernels.dequantize(self._table.type, tile.packed, tile.floats)
                except BlockError as error:
                    at = begin + tile.at_bytes + error.block * self._table.type.block_bytes
                    raise self._broken(
                        f"row {token:,} contains numbers that are not finite", at
                    ) from error
                part = vector[tile.columns]
                np.add(part, tile.floats, out=part)

    def _broken(self, what: str, offset: int | None = None) -> WeightsError:
        return WeightsError(f"tensor {TABLE}: {what}", file=self._file.name, offset=offset)

    def close(self) -> None:
        self._pieces = ()
        self._reservation.release()


def open_token_mean(
    file: WeightFile, header: FileHeader, *, kernels: Kernels, monitor: Monitor
) -> TokenMean:
    """Raises WeightsError if the file has no table, or one that contradicts its keys."""
    table = _find_table(header)
    _check_kind(header.name, table, kernels)
    return TokenMean(file, table, kernels=kernels, monitor=monitor)


def token_mean_bytes(header: FileHeader) -> int:
    """The two buffers, before anything is opened."""
    table = _find_table(header)
    return _buffer_sizes(table.type, table.shape[1]).total_bytes


def _find_table(header: FileHeader) -> Tensor:
    table = header.tensors.get(TABLE)
    if table is None:
        seen = ", ".join(map(quoted, header.first_names))
        there = f"it has {header.tensor_count:,}: {seen}, ..." if seen else "it has none"
        raise WeightsError(
            f"tensor {TABLE} is missing ({there}); use a text model", file=header.name
        )
    if len(table.shape) != 2 or not all(table.shape):
        raise _misfit(header, f"has the shape {list(table.shape)}, not rows x width")
    rows, width = table.shape
    if width > WIDEST:
        raise HeaderLimitError(
            f"floats in a row of {TABLE}", value=width, limit=WIDEST, file=header.name
        )
    stated = header.keys.get(f"{header.keys.get('general.architecture')}.embedding_length", width)
    if stated != width:
        raise _misfit(header, f"has rows of {width:,}, but embedding_length is {quoted(stated)}")
    words = header.arrays.get(VOCABULARY)
    if words is not None and words.count > rows:
        raise _misfit(header, f"has {rows:,} rows, but the vocabulary has {words.count:,} tokens")
    return table


def _misfit(header: FileHeader, what: str) -> WeightsError:
    return WeightsError(f"tensor {TABLE} {what}", file=header.name)


def _check_kind(name: str, table: Tensor, kernels: Kernels) -> None:
    """A block of zeros is valid in every type that can be unpacked."""
    kind = table.type
    try:
        kernels.dequantize(
            kind, np.zeros(kind.block_bytes, np.uint8), np.empty(kind.block_elements, np.float32)
        )
    except UnknownDtypeError as error:
        raise UnknownDtypeError(f"tensor {TABLE}: {error.what}", file=name) from error


class _Sizes(NamedTuple):
    packed_bytes: int
    floats: int

    @property
    def total_bytes(self) -> int:
        return self.packed_bytes + 4 * self.floats


class _Tile(NamedTuple):
    """Blocks that are unpacked together."""

    at_bytes: int  # from the start of the row
    packed: NDArray[np.uint8]
    floats: Floats
    columns: slice


class _Piece(NamedTuple):
    """Blocks that are read together."""

    at_bytes: int
    packed: NDArray[np.uint8]
    tiles: tuple[_Tile, ...]


def _buffer_sizes(kind: TensorType, width: int) -> _Sizes:
    """Whole blocks of at most one row, within the limits."""
    read_blocks = READ_BYTES // kind.block_bytes
    decode_blocks = DECODE_FLOATS // kind.block_elements
    blocks = width // kind.block_elements
    return _Sizes(
        packed_bytes=min(blocks, read_blocks) * kind.block_bytes,
        floats=min(blocks, decode_blocks) * kind.block_elements,
    )


def _pieces(kind: TensorType, width: int, sizes: _Sizes) -> Iterator[_Piece]:
    """How every row goes through the two buffers, which are allocated here."""
    packed = np.empty(sizes.packed_bytes, np.uint8)
    floats = np.empty(sizes.floats, np.float32)
    row_bytes = kind.row_bytes(width)
    for begin in range(0, row_bytes, packed.size):
        part = packed[: row_bytes - begin]
        yield _Piece(begin, part, tuple(_tiles(kind, begin, part, floats)))


def _tiles(
    kind: TensorType, begin: int, packed: NDArray[np.uint8], floats: Floats
) -> Iterator[_Tile]:
    step = floats.size // kind.block_elements * kind.block_bytes
    for at in range(0, packed.size, step):
        part = packed[at : at + step]
        first = (begin + at) // kind.block_bytes * kind.block_elements
        count = part.size // kind.block_bytes * kind.block_elements
        yield _Tile(begin + at, part, floats[:count], slice(first, first + count))


class _Pause:
    """Calls the checkpoint after PAUSE_BYTES or PAUSE_S."""

    def __init__(self, checkpoint: Checkpoint, rows: int, row_bytes: int) -> None:
        self._checkpoint = checkpoint
        self._rows = rows
        self._done = 0
        self._step = max(1, PAUSE_BYTES // row_bytes)
        self._due = self._step
        self._due_s = time.monotonic() + PAUSE_S

    def after_row(self) -> None:
        self._done += 1
        if self._done >= self._due or time.monotonic() >= self._due_s:
            self._checkpoint(self._done / self._rows)
            self._due = self._done + self._step
            self._due_s = time.monotonic() + PAUSE_S
