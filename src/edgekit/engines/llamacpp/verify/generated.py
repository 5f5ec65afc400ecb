"""A model that is known without a file -> a GGUF of it with a hole for the weights, for llama.cpp to look at.

The format: docs/formats/gguf.md. Keys have the types that llama.cpp asks for (llama-model-loader.cpp @ b21e4de): whole
numbers UINT32, or INT32 below zero, others FLOAT32. There is no vocabulary: its size is a key of the architecture.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from edgekit.engines.llamacpp.verify.hollow import HollowFile
from edgekit.errors import UsageError
from edgekit.formats.types import ModelHeader, Tensor, Value
from edgekit.sources.types import Container, ModelFile, ModelFiles, Origin

ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64 = 4, 5, 6, 7, 8, 9, 10


def generated_files(header: ModelHeader, *, label: str) -> ModelFiles:
    """UsageError for a header that is not a GGUF's: the keys of a config.json are not those of llama.cpp."""
    architecture = header.keys.get("general.architecture")
    if architecture is None or header.tensors is None:
        raise UsageError(
            f"the catalog has only the config.json of {label}, and llama.cpp needs a "
            "GGUF: name a GGUF of it"
        )
    raw, size_bytes = _gguf(header, str(architecture))
    file = HollowFile(name=f"{label}.gguf", header=raw, size_bytes=size_bytes)
    return ModelFiles(
        reference=label,
        label=label,
        origin=Origin.CATALOG,
        container=Container.GGUF,
        weights=(ModelFile(name=file.name, open=lambda: file, size_bytes=size_bytes),),
    )


def _gguf(header: ModelHeader, architecture: str) -> tuple[bytes, int]:
    """The header's bytes, and how long the file would be."""
    tensors = header.tensors or ()
    keys: dict[str, Value] = {**header.keys, "tokenizer.ggml.model": "none"}
    embedding = next((one for one in tensors if one.name == "token_embd.weight"), None)
    if embedding is not None:
        keys.setdefault(f"{architecture}.vocab_size", embedding.shape[0])
    directory, data_bytes = _directory(tensors)
    counts = struct.pack("<IQQ", 3, len(tensors), len(keys))
    raw = b"GGUF" + counts + b"".join(_key(name, keys[name]) for name in keys) + directory
    raw += bytes(-len(raw) % ALIGNMENT)
    return raw, len(raw) + data_bytes


def _directory(tensors: Iterable[Tensor]) -> tuple[bytes, int]:
    entries, offset = [], 0
    for tensor in tensors:
        dimensions = tensor.shape[::-1] or (1,)  # innermost first in the file
        count = len(dimensions)
        place = struct.pack(f"<I{count}QIQ", count, *dimensions, tensor.type.ggml_id, offset)
        entries.append(_text(tensor.name) + place)
        offset += -(-tensor.size_bytes // ALIGNMENT) * ALIGNMENT
    return b"".join(entries), offset


def _key(name: str, value: Value) -> bytes:
    if isinstance(value, tuple):
        kind = max((_kind(one) for one in value), default=_UINT32)
        packed = b"".join(_packed(one, kind) for one in value)
        return _text(name) + struct.pack("<IIQ", _ARRAY, kind, len(value)) + packed
    kind = _kind(value)
    return _text(name) + struct.pack("<I", kind) + _packed(value, kind)


def _kind(value: object) -> int:
    match value:
        case bool():
            return _BOOL
        case int():
            return _INT32 if value < 0 else _UINT32 if value < 2**32 else _UINT64
        case float():
            return _FLOAT32
        case _:
            return _STRING


def _packed(value: object, kind: int) -> bytes:
    if kind == _STRING:
        return _text(str(value))
    codes = {_UINT32: "I", _INT32: "i", _FLOAT32: "f", _BOOL: "?", _UINT64: "Q"}
    return struct.pack(f"<{codes[kind]}", value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
