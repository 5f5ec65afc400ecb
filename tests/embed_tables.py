"""Sparse GGUF files with a token table of any type and size, in which only some rows are written."""

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
    """Packed bytes of finite numbers: every scale is a small half."""
    count = width // kind.block_elements
    if kind.block_elements == 1:
        return plain_row(kind, random.normal(size=width).astype(np.float32))
    blocks = random.integers(0, 256, (count, kind.block_bytes), np.uint8)
    offset = 0
    for name, size in kind.fields:
        if name in {"d", "dmin", "m"}:
            scales = random.uniform(0.001, 0.01, count).astype(np.float16)
            blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(count, 2)
        offset += size
    return blocks.reshape(-1)


def plain_row(kind: TensorType, values: NDArray[np.float32]) -> Bytes:
    packed: Bytes = gguf_py.quants.quantize(values, gguf_py.GGMLQuantizationType[kind.name])
    return packed.view(np.uint8).reshape(-1)


def unpacked(kind: TensorType, row: Bytes) -> NDArray[np.float32]:
    """The numbers of a row, unpacked by gguf-py."""
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
    tensor_type = by_name(kind)
    count, width = shape
    row_bytes = tensor_type.row_bytes(width)
    table_bytes = -(-count * row_bytes // 32) * 32
    other_entries = [
        entry(f"blk.{n}.ffn_up.weight", [32], 0, table_bytes + 128 * n) for n in range(others)
    ]
    head = gguf(
        [*ARCHITECTURE, key("llama.embedding_length", UINT32, width), *keys],
        [entry(TABLE, [width, count], tensor_type.ggml_id or 0, 0), *other_entries],
    )
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + table_bytes + 128 * others)
        for number, row in rows.items():
            file.seek(len(head) + number * row_bytes)
            file.write(row.tobytes())
    return Tensor(
        name=TABLE, type=tensor_type, shape=shape, size_bytes=count * row_bytes, offset=len(head)
    )


def write_later(path: Path, data: bytes, offset: int = 0) -> None:
    """Write into the file as another process would, with a modification time one second later."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))


def nan_half() -> bytes:
    return struct.pack("<e", float("nan"))
