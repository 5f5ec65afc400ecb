"""GGUF files with a token table of any type and size, of which only some rows are really written."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf as gguf_py
import numpy as np
from numpy.typing import NDArray
from tests.header_files import ARCHITECTURE, UINT32, entry, gguf, key

from edgekit.formats.dtype import TensorType, by_name
from edgekit.formats.types import Tensor

TABLE = "token_embd.weight"
Bytes = NDArray[np.uint8]


def random_row(kind: TensorType, width: int, random: np.random.Generator) -> Bytes:
    """Packed bytes that mean finite numbers: every scale is a small half."""
    count = width // kind.block_elements
    if kind.block_elements == 1:
        return plain_row(kind, random.normal(size=width).astype(np.float32))
    blocks = random.integers(0, 256, (count, kind.block_bytes), np.uint8)
    at = 0
    for name, size in kind.fields:
        if name in {"d", "dmin", "m"}:
            scales = random.uniform(0.001, 0.01, count).astype(np.float16)
            blocks[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
        at += size
    return blocks.reshape(-1)


def plain_row(kind: TensorType, values: NDArray[np.float32]) -> Bytes:
    packed: Bytes = gguf_py.quants.quantize(values, gguf_py.GGMLQuantizationType[kind.name])
    return packed.view(np.uint8).reshape(-1)


def unpacked(kind: TensorType, row: Bytes) -> NDArray[np.float32]:
    """gguf-py's word for it."""
    floats: NDArray[np.float32] = gguf_py.quants.dequantize(
        row.reshape(1, -1), gguf_py.GGMLQuantizationType[kind.name]
    )
    return floats.reshape(-1)


def write_table(
    path: Path,
    kind: str,
    shape: tuple[int, int],
    rows: Mapping[int, Bytes],
    *,
    keys: Sequence[bytes] = (),
    others: int = 0,
) -> Tensor:
    """A sparse file with the table and `others` more tensors; rows that are not given are holes."""
    packing = by_name(kind)
    count, width = shape
    row_bytes = packing.row_bytes(width)
    table_bytes = -(-count * row_bytes // 32) * 32
    more = [entry(f"blk.{n}.ffn_up.weight", [32], 0, table_bytes + 128 * n) for n in range(others)]
    head = gguf(
        [*ARCHITECTURE, key("llama.embedding_length", UINT32, width), *keys],
        [entry(TABLE, [width, count], packing.ggml_id or 0, 0), *more],
    )
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + table_bytes + 128 * others)
        for place, row in rows.items():
            file.seek(len(head) + place * row_bytes)
            file.write(row.tobytes())
    return Tensor(
        name=TABLE, type=packing, shape=shape, size_bytes=count * row_bytes, offset=len(head)
    )


def write_later(path: Path, data: bytes, offset: int = 0) -> None:
    """As somebody else would: into the same file, at a time that a clock can tell from the first."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))


def nan_half() -> bytes:
    return struct.pack("<e", float("nan"))
