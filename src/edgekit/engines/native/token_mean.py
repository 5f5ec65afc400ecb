"""Tokens -> the mean of their rows in the embedding table. No layer is run.

A token's row is read from the file, unpacked, and added to the vector. There are two buffers; a row that is longer than
one of them goes through it in pieces of whole blocks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import index

import numpy as np

from edgekit.engines.native.crew import Checkpoint
from edgekit.engines.native.file import FileHeader, WeightFile
from edgekit.engines.native.kernels.types import BlockError, Floats, Kernels
from edgekit.errors import HeaderLimitError, TextError, UnknownDtypeError, WeightsError, quoted
from edgekit.formats.types import Tensor
from edgekit.machine.monitor import Monitor
from edgekit.units import KIB, MB

TABLE = "token_embd.weight"
VOCABULARY = "tokenizer.ggml.tokens"
# The sizes of the two buffers, at most: packed bytes of a row, and floats that are unpacked from them.
READ_BYTES = 32 * KIB
DECODE_FLOATS = 16 * KIB // 4
WIDEST = 65_536  # floats in a row: the widest models have 18,432
# The checkpoint is called after this many bytes of unpacked floats, or after this time if the disk is slow.
PAUSE_BYTES = 1 * MB
PAUSE_S = 0.02


class TokenMean:
    """An Encoder. Not thread-safe."""

    def __init__(
        self, file: WeightFile, header: FileHeader, *, kernels: Kernels, monitor: Monitor
    ) -> None:
        """Raises WeightsError if the file has no table, or one that contradicts its keys."""
        table = _find_table(header)
        kind = table.type
        zeros = np.zeros(kind.block_bytes, np.uint8)  # valid in every type that can be unpacked
        try:
            kernels.dequantize(kind, zeros, np.empty(kind.block_elements, np.float32))
        except UnknownDtypeError as error:
            raise UnknownDtypeError(f"tensor {TABLE}: {error.what}", file=header.name) from error
        self._file = file
        self._table = table
        self._kernels = kernels
        self._rows, self.width = table.shape
        self._row_bytes = kind.row_bytes(self.width)
        packed_bytes, floats = _buffer_sizes(table)
        self._reservation = monitor.try_allocate(
            packed_bytes + 4 * floats, "reading the token table"
        )
        self._packed, self._floats = np.empty(packed_bytes, np.uint8), np.empty(floats, np.float32)

    def encode(self, texts: Sequence[Sequence[int]], into: Floats, checkpoint: Checkpoint) -> None:
        """The mean of each text's rows, added up one after another in float32.

        2,048 rows lose less than 2,048 * 2**-24 of the largest sum. Raises SourceError if the file changes meanwhile,
        WeightsError for a row that is missing or not finite.
        """
        shape = (len(texts), self.width)
        if into.shape != shape or into.dtype != np.float32:
            raise ValueError(
                f"output must be float32 of shape {shape}, got {into.dtype} of {into.shape}"
            )
        self._file.check_unchanged()
        total, done = sum(map(len, texts)), 0
        # The checkpoint is due when this many tokens are done, or at this time.
        step = due = max(1, PAUSE_BYTES // (4 * self.width))
        due_s = time.monotonic() + PAUSE_S
        with np.errstate(over="ignore"):  # noticed when the vector is scaled
            for number, tokens in enumerate(texts):
                if not len(tokens):
                    raise TextError("has no tokens, so it has no mean", index=number)
                vector = into[number]
                vector.fill(0)
                for token in tokens:
                    self._add_row(index(token), vector)
                    done += 1
                    if done >= due or time.monotonic() >= due_s:
                        checkpoint(done / total)
                        due, due_s = done + step, time.monotonic() + PAUSE_S
                vector /= np.float32(len(tokens))
        self._file.check_unchanged()

    def _add_row(self, token: int, vector: Floats) -> None:
        """Reads the token's row in pieces, and unpacks each piece in parts that fit into the buffer of floats."""
        if not 0 <= token < self._rows:
            raise self._error(
                f"token {token:,} has no row ({self._rows:,} rows): the vocabulary "
                "belongs to another model"
            )
        kind = self._table.type
        row_offset = self._table.offset + token * self._row_bytes
        part_bytes = self._floats.size // kind.block_elements * kind.block_bytes
        for piece_start in range(0, self._row_bytes, self._packed.size):
            piece = self._packed[: self._row_bytes - piece_start]
            self._file.read_into(row_offset + piece_start, piece, what=TABLE)
            for part_start in range(0, piece.size, part_bytes):
                packed = piece[part_start : part_start + part_bytes]
                floats = self._floats[: packed.size // kind.block_bytes * kind.block_elements]
                byte = piece_start + part_start
                try:
                    self._kernels.dequantize(kind, packed, floats)
                except BlockError as error:
                    raise self._error(
                        f"row {token:,} contains numbers that are not finite",
                        row_offset + byte + error.block * kind.block_bytes,
                    ) from error
                first = byte // kind.block_bytes * kind.block_elements
                vector[first : first + floats.size] += floats

    def _error(self, what: str, offset: int | None = None) -> WeightsError:
        return WeightsError(f"tensor {TABLE}: {what}", file=self._file.name, offset=offset)

    def close(self) -> None:
        self._packed, self._floats = np.empty(0, np.uint8), np.empty(0, np.float32)
        self._reservation.release()


def token_mean_bytes(header: FileHeader) -> int:
    """What a TokenMean allocates: its two buffers."""
    packed_bytes, floats = _buffer_sizes(_find_table(header))
    return packed_bytes + 4 * floats


def _find_table(header: FileHeader) -> Tensor:
    """The embedding table. Raises WeightsError if it is missing or contradicts the file's keys."""
    table = header.tensors.get(TABLE)
    if table is None:
        names = ", ".join(map(quoted, header.first_names))
        tensors = f"it has {header.tensor_count:,}: {names}, ..." if names else "it has none"
        raise WeightsError(
            f"tensor {TABLE} is missing ({tensors}); use a text model", file=header.name
        )
    if len(table.shape) != 2 or not all(table.shape):
        raise _contradiction(header, f"has the shape {list(table.shape)}, not rows x width")
    rows, width = table.shape
    if width > WIDEST:
        raise HeaderLimitError(
            f"floats in a row of {TABLE}", value=width, limit=WIDEST, file=header.name
        )
    stated = header.keys.get(f"{header.keys.get('general.architecture')}.embedding_length", width)
    if stated != width:
        raise _contradiction(
            header, f"has rows of {width:,}, but embedding_length is {quoted(stated)}"
        )
    words = header.arrays.get(VOCABULARY)
    if words is not None and words.count > rows:
        raise _contradiction(
            header, f"has {rows:,} rows, but the vocabulary has {words.count:,} tokens"
        )
    return table


def _contradiction(header: FileHeader, what: str) -> WeightsError:
    return WeightsError(f"tensor {TABLE} {what}", file=header.name)


def _buffer_sizes(table: Tensor) -> tuple[int, int]:
    """Packed bytes and floats: whole blocks of at most one row, within the limits."""
    kind = table.type
    blocks = table.shape[1] // kind.block_elements
    return (
        min(blocks, READ_BYTES // kind.block_bytes) * kind.block_bytes,
        min(blocks, DECODE_FLOATS // kind.block_elements) * kind.block_elements,
    )
