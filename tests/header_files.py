"""Builds small GGUF and safetensors files, valid or with one fault, and sources that read them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from edgekit.sources.types import ByteSource, Container, ModelFile, ModelFiles, Origin

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = (
    range(13)
)
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
F32, F16, Q4_0, Q8_0, Q4_K = 0, 1, 2, 8, 12


class BytesSource:
    """A ByteSource over `data`; up to `size_bytes` it continues with zeros, as a sparse file does."""

    def __init__(self, data: bytes, *, name: str = "model", size_bytes: int | None = None) -> None:
        self.data = data
        self.name = name
        self.size_bytes = len(data) if size_bytes is None else size_bytes
        self.furthest = 0
        self.closed = False

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
        end = min(offset + length, self.size_bytes)
        self.furthest = max(self.furthest, end)
        result = self.data[offset:end]
        return result + bytes(max(0, end - offset) - len(result))

    def close(self) -> None:
        self.closed = True


class GrowingSource(BytesSource):
    """Grows by ranges as a remote file does: the first of 512 KiB, the others of at least 64 KiB."""

    def __init__(self, data: bytes, *, name: str = "remote", size_bytes: int | None = None) -> None:
        super().__init__(data, name=name, size_bytes=size_bytes)
        self.available_bytes = 0
        self.requests: list[tuple[int, int]] = []
        self.kept = False

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:
        start = self.available_bytes
        if offset + length > start:
            end = max(offset + length + ahead, start + 65_536) if self.requests else 524_288
            self.available_bytes = min(max(end, offset + length), self.size_bytes)
            self.requests.append((start, self.available_bytes))
        return super().read(offset, length)

    def keep(self) -> None:
        self.kept = True


def model_files(
    *sources: ByteSource,
    container: Container = Container.GGUF,
    origin: Origin = Origin.LOCAL,
    **others: ByteSource,
) -> ModelFiles:
    """`others`: sources for config, index or quantization."""
    extra: dict[str, Any] = {name: _unopened(source) for name, source in others.items()}
    return ModelFiles(
        reference="test",
        label="test",
        origin=origin,
        container=container,
        weights=tuple(map(_unopened, sources)),
        **extra,
    )


def _unopened(source: ByteSource) -> ModelFile:
    return ModelFile(name=source.name, open=lambda: source, size_bytes=source.size_bytes)


# --- GGUF


def text(value: str | bytes, order: str = "<") -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(order + "Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: Any, order: str = "<") -> bytes:
    """A key with its value: a number, a str, or (element kind, list) for an array."""
    head = text(name, order) + struct.pack(order + "I", kind)
    if kind == STRING:
        return head + text(value, order)
    if kind != ARRAY:
        return head + struct.pack(order + _CODES[kind], value)
    element, values = value
    head += struct.pack(order + "IQ", element, len(values))
    if element == STRING:
        return head + b"".join(text(item, order) for item in values)
    return head + struct.pack(f"{order}{len(values)}{_CODES[element]}", *values)


def entry(
    name: str | bytes, dimensions: Sequence[int], kind: int, offset: int, order: str = "<"
) -> bytes:
    """A tensor of the directory; dimensions innermost first, as in the file."""
    packed = f"{order}I{len(dimensions)}QIQ"
    return text(name, order) + struct.pack(packed, len(dimensions), *dimensions, kind, offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    *,
    data_bytes: int = 0,
    version: int = 3,
    order: str = "<",
    key_count: int | None = None,
    tensor_count: int | None = None,
) -> bytes:
    """A complete file. `key_count` and `tensor_count` replace the true counts."""
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    head = b"GGUF" + struct.pack(order + "IQQ", version, *counts) + b"".join((*keys, *tensors))
    if tensors:
        head += bytes(-len(head) % 32)
    return head + bytes(data_bytes)


ARCHITECTURE = (
    key("general.architecture", STRING, "llama"),
    key("llama.block_count", UINT32, 2),
)

# --- safetensors


def safetensors(
    header: dict[str, Any] | bytes, *, data_bytes: int = 0, length: int | None = None
) -> bytes:
    """A complete file. `length` replaces the true length of the header."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data_bytes)


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
