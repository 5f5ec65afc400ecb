"""The files of a model -> files of the same length with the same header and a hole for the weights.

A model that is known without a file gets a generated header. The format: docs/formats.md. Keys have the types that
llama.cpp asks for (llama-model-loader.cpp @ b21e4de): whole numbers UINT32, or INT32 below zero, others FLOAT32.
There is no vocabulary: its size is a key of the architecture.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgekit.engines.process import ending_in_order
from edgekit.errors import EngineError, HeaderError, UsageError
from edgekit.formats.files import read_shards
from edgekit.formats.gguf import read_gguf
from edgekit.formats.types import ModelHeader, Tensor, Value
from edgekit.sources.types import ByteSource, Container, ModelFile, ModelFiles, Origin
from edgekit.units import KIB, MIB, format_bytes

ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64 = 4, 5, 6, 7, 8, 9, 10
_PROBE_BYTES = 8 * MIB
_TAKEN_BYTES = 512 * KIB  # more than this of the probe on disk: the hole is not one
_SMALL_BYTES = 64 * MIB  # may be written out in full


@dataclass(frozen=True, slots=True, kw_only=True)
class HollowFile:
    """All of a file but its weights. A ByteSource: what lies in the hole reads as zeros."""

    name: str
    header: bytes = field(repr=False)
    size_bytes: int

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - in memory
        length = max(0, min(length, self.size_bytes - offset))
        return self.header[offset : offset + length].ljust(length, b"\0")

    def close(self) -> None:
        """Nothing to close."""


def hollow_out(files: ModelFiles) -> tuple[HollowFile, ...]:
    """The headers of all shards, read once; of a remote file nothing else is fetched."""
    if files.container is not Container.GGUF:
        raise UsageError(
            f"{files.label} is {files.container.value}, but verify runs llama.cpp, which "
            "only reads GGUF files"
        )
    if not files.weights:
        raise HeaderError("there is no GGUF file to read", file=files.label)
    return tuple(read_shards(files, range(len(files.weights)), _hollow_file))


def _hollow_file(source: ByteSource, _: int) -> HollowFile:
    found = read_gguf(source)
    length = found.header_bytes or 0
    return HollowFile(name=source.name, header=source.read(0, length), size_bytes=source.size_bytes)


def files_of(files: ModelFiles, hollow: Sequence[HollowFile]) -> ModelFiles:
    """The same model, from memory."""

    def stand_in(file: HollowFile) -> ModelFile:
        return ModelFile(name=file.name, open=lambda: file, size_bytes=file.size_bytes)

    return replace(files, weights=tuple(map(stand_in, hollow)))


@contextmanager
def on_disk(hollow: Sequence[HollowFile]) -> Iterator[Path]:
    """The path of the first, all of them in a folder that is gone afterwards, whatever happens.

    EngineError where the files would really take their size.
    """
    with ending_in_order(), ExitStack() as stack:
        try:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="edgekit-verify-", ignore_cleanup_errors=True)
            )
            path = _write_all(Path(folder), hollow)
        except OSError as error:
            raise EngineError(
                f"cannot write the header to {tempfile.gettempdir()}: "
                f"{error.strerror or error}; set TMPDIR to a folder with free space"
            ) from error
        yield path


def _write_all(folder: Path, hollow: Sequence[HollowFile]) -> Path:
    total = sum(file.size_bytes for file in hollow)
    if total > _SMALL_BYTES and not _keeps_holes(folder):
        raise EngineError(
            f"{folder.parent} is on a file system without sparse files, so the copy would "
            f"take {format_bytes(total)}; set TMPDIR to another folder"
        )
    paths = [folder / name for name in _names(len(hollow))]
    for path, file in zip(paths, hollow, strict=True):
        with path.open("wb") as out:
            out.write(file.header)
            out.truncate(file.size_bytes)
    return paths[0]


def _names(count: int) -> list[str]:
    """llama.cpp finds the other shards by these names."""
    if count == 1:
        return ["model.gguf"]
    return [f"model-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def _keeps_holes(folder: Path) -> bool:
    probe = folder / "probe"
    with probe.open("wb") as out:
        out.truncate(_PROBE_BYTES)
        blocks = _blocks(out.fileno())
    probe.unlink()
    return blocks is not None and blocks * 512 <= _TAKEN_BYTES


def _blocks(descriptor: int) -> int | None:
    """Those a file takes on disk. Where they are not told (Windows) a hole takes its whole size."""
    return getattr(os.fstat(descriptor), "st_blocks", None)


# --- a header generated from known facts


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
