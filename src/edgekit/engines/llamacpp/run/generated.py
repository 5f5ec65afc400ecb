"""GGUF files generated for llama.cpp: headers with a hole for the weights, and a test model with made-up weights.

The format: docs/formats.md. Keys have the types that llama.cpp asks for (llama-model-loader.cpp @ b21e4de): whole
numbers UINT32, or INT32 below zero, others FLOAT32.
"""

from __future__ import annotations

import math
import os
import random
import re
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

from edgekit.engines.llamacpp.types import pad
from edgekit.engines.process import ending_in_order
from edgekit.errors import EngineError, HeaderError, UsageError, one_line
from edgekit.formats import read_header
from edgekit.formats.cursor import read_shards
from edgekit.formats.dtype import by_name
from edgekit.formats.gguf import read_gguf
from edgekit.formats.types import ModelHeader, Tensor, Value
from edgekit.model import read_geometry
from edgekit.model.types import Model
from edgekit.sources.types import ByteSource, Container, ModelFile, ModelFiles, Origin
from edgekit.units import KIB, MIB, format_bytes

ALIGNMENT = 32  # of tensors: GGUF's default
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64 = 4, 5, 6, 7, 8, 9, 10
_PROBE_BYTES = 8 * MIB
_SPARSE_BYTES = 512 * KIB  # a sparse probe takes at most this on disk
_SMALL_BYTES = 64 * MIB  # files up to this size may be written without holes
TEST_MODEL = "a generated test model"
_NORMAL, _CONTROL = 1, 3  # llama.h @ b21e4de: enum llama_token_type
# The largest weight byte: read as f16 or f32, it gives small finite numbers.
_LARGEST_BYTE = 0x30


@dataclass(frozen=True, slots=True, kw_only=True)
class HollowFile:
    """A file without its weights. A ByteSource: the hole reads as zeros."""

    name: str
    header: bytes = field(repr=False)
    size_bytes: int

    def read(self, offset: int, length: int, *, ahead: int = 0) -> bytes:  # noqa: ARG002 - in memory
        length = max(0, min(length, self.size_bytes - offset))
        return self.header[offset : offset + length].ljust(length, b"\0")

    def close(self) -> None:
        """Nothing to close."""


def hollow_out(files: ModelFiles) -> tuple[HollowFile, ...]:
    """The headers of all shards; nothing else is fetched from a remote file."""
    if files.container is not Container.GGUF:
        raise UsageError(
            f"{files.label} is {files.container.value}, but verify runs llama.cpp, which "
            "only reads GGUF files"
        )
    if not files.weights:
        raise HeaderError("there is no GGUF file to read", file=files.label)
    return tuple(read_shards(files, range(len(files.weights)), _hollow_file))


def _hollow_file(source: ByteSource, _: int) -> HollowFile:
    length = read_gguf(source).header_bytes or 0
    return HollowFile(name=source.name, header=source.read(0, length), size_bytes=source.size_bytes)


def files_of(files: ModelFiles, hollow: Sequence[HollowFile]) -> ModelFiles:
    """The model's files, served from memory."""

    def stand_in(file: HollowFile) -> ModelFile:
        return ModelFile(name=file.name, open=lambda: file, size_bytes=file.size_bytes)

    return replace(files, weights=tuple(map(stand_in, hollow)))


@contextmanager
def on_disk(hollow: Sequence[HollowFile]) -> Iterator[Path]:
    """Writes the files to a temporary folder, which is always deleted; yields the path of the first. EngineError on a
    file system without sparse files.
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
    """Writes headers with holes; returns the path of the first. EngineError without sparse files."""
    total = sum(file.size_bytes for file in hollow)
    if total > _SMALL_BYTES and not _keeps_holes(folder):
        raise EngineError(
            f"{folder.parent} is on a file system without sparse files, so the copy would "
            f"take {format_bytes(total)}; set TMPDIR to another folder"
        )
    count = len(hollow)
    # llama.cpp finds the other shards by these names.
    names = [f"model-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    paths = [folder / name for name in (names if count > 1 else ["model.gguf"])]
    for path, file in zip(paths, hollow, strict=True):
        with path.open("wb") as out:
            out.write(file.header)
            out.truncate(file.size_bytes)
    return paths[0]


def _keeps_holes(folder: Path) -> bool:
    """True if the file system has sparse files: a hole takes no space on disk."""
    probe = folder / "probe"
    with probe.open("wb") as out:
        out.truncate(_PROBE_BYTES)
        blocks = _blocks(out.fileno())
    probe.unlink()
    return blocks is not None and blocks * 512 <= _SPARSE_BYTES


def _blocks(descriptor: int) -> int | None:
    """Blocks that a file takes on disk. None on Windows, where a hole takes its full size."""
    return getattr(os.fstat(descriptor), "st_blocks", None)


def generated_files(header: ModelHeader, *, label: str) -> ModelFiles:
    """Files with a generated header, for a model that is known without a file.

    They have no vocabulary, only its size. UsageError for a model known by its config.json, whose keys differ from
    llama.cpp's.
    """
    architecture = header.keys.get("general.architecture")
    if architecture is None or header.tensors is None:
        raise UsageError(
            f"the index has only the config.json of {label}, and llama.cpp needs a "
            "GGUF: name a GGUF of it"
        )
    keys: dict[str, Value] = {**header.keys, "tokenizer.ggml.model": "none"}
    embedding = next(
        (tensor for tensor in header.tensors if tensor.name == "token_embd.weight"), None
    )
    if embedding is not None:
        keys.setdefault(f"{architecture}.vocab_size", embedding.shape[0])
    packed = [_pack_key(name, value) for name, value in keys.items()]
    raw, size_bytes = _gguf_header(packed, header.tensors)
    return _one_file(HollowFile(name=f"{label}.gguf", header=raw, size_bytes=size_bytes), label)


def _one_file(file: HollowFile, label: str) -> ModelFiles:
    return ModelFiles(
        reference=label,
        label=label,
        origin=Origin.CATALOG,
        container=Container.GGUF,
        weights=(ModelFile(name=file.name, open=lambda: file, size_bytes=file.size_bytes),),
    )


def _gguf_header(keys: Sequence[bytes], tensors: Sequence[Tensor]) -> tuple[bytes, int]:
    """The header's bytes, and the size of the file with its weights."""
    parts, offset = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys)), *keys], 0
    for tensor in tensors:
        dimensions = tensor.shape[::-1] or (1,)  # innermost first in the file
        count = len(dimensions)
        location = struct.pack(f"<I{count}QIQ", count, *dimensions, tensor.type.ggml_id, offset)
        parts += [_pack_text(tensor.name), location]
        offset += pad(tensor.size_bytes, ALIGNMENT)
    raw = b"".join(parts)
    raw = raw.ljust(pad(len(raw), ALIGNMENT), b"\0")
    return raw, len(raw) + offset


def _pack_key(name: str, value: Value, kind: int | None = None) -> bytes:
    """A key and its value as GGUF writes them. `kind`: the type of an array's items, if not that of its values."""
    if isinstance(value, tuple):
        kind = kind or max((_value_type(item) for item in value), default=_UINT32)
        packed = b"".join(_pack(item, kind) for item in value)
        return _pack_text(name) + struct.pack("<IIQ", _ARRAY, kind, len(value)) + packed
    kind = _value_type(value)
    return _pack_text(name) + struct.pack("<I", kind) + _pack(value, kind)


def _value_type(value: object) -> int:
    """The GGUF type of a key's value."""
    match value:
        case bool():
            return _BOOL
        case int():
            if value < 0:
                return _INT32
            return _UINT32 if value < 2**32 else _UINT64
        case float():
            return _FLOAT32
        case _:
            return _STRING


def _pack(value: object, kind: int) -> bytes:
    """A value as GGUF writes a value of this type."""
    if kind == _STRING:
        return _pack_text(str(value))
    codes = {_UINT32: "I", _INT32: "i", _FLOAT32: "f", _BOOL: "?", _UINT64: "Q"}
    return struct.pack(f"<{codes[kind]}", value)


def _pack_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A test model: a decoder of the llama family, its head tied to its embedding.

    Its weights are random: speed and memory do not depend on them. They depend on the vocabulary, which llama.cpp keeps
    in tables, so the test model's vocabulary is as large as a real model's and has merges.
    """

    layers: int = 8
    width: int = 2048
    inner: int = 8192
    heads: int = 32
    kv_heads: int = 8
    vocabulary: int = 131_072
    context: int = 4096
    matrices: str = "Q4_K"


_SHAPE_NAME = "generated:"
# A header of the largest shape takes 20 MB. llama.cpp's own vocabularies end at 262,144 tokens.
_LARGEST = Shape(
    layers=256,
    width=16_384,
    inner=65_536,
    heads=256,
    kv_heads=256,
    vocabulary=400_000,
    context=2**20,
)


def shape_name(shape: Shape) -> str:
    """'generated:layers=8,width=2048,...': everything but the type of the matrices, which is the quantisation."""
    sizes = asdict(shape)
    del sizes["matrices"]
    return _SHAPE_NAME + ",".join(f"{name}={size}" for name, size in sizes.items())


def is_shape_name(name: str) -> bool:
    return name.startswith(_SHAPE_NAME)


def read_shape(name: str, matrices: str) -> Shape:
    """The shape of such a name. Raises UsageError if `shape_name` would not write it, or if it is too large."""
    pairs = [pair.partition("=") for pair in name.removeprefix(_SHAPE_NAME).split(",")]
    sizes = {key: int(size) for key, _, size in pairs if re.fullmatch("[1-9][0-9]{0,6}", size)}
    largest = asdict(_LARGEST)
    if not all(sizes.get(key, 0) <= largest[key] for key in largest if key != "matrices"):
        raise UsageError(f"{one_line(name, 160)!r}: larger than any generated model")
    try:
        shape = Shape(**sizes, matrices=matrices)
        is_valid = (
            shape_name(shape) == name
            and shape.width % shape.heads == shape.heads % shape.kv_heads == 0
        )
        tensors = list(_test_tensors(shape)) if is_valid else []
    except (TypeError, HeaderError) as error:
        raise UsageError(f"{one_line(name, 160)!r} is not the shape of a model: {error}") from error
    if not tensors:
        raise UsageError(f"{one_line(name, 160)!r} is not the shape of a generated model")
    return shape


@lru_cache(4)
def generated_model(shape: Shape) -> Model:
    """The test model as it is read from its file, without the file."""
    raw, size_bytes = _test_header(shape)
    file = HollowFile(name="made-up.gguf", header=raw, size_bytes=size_bytes)
    header = read_header(_one_file(file, TEST_MODEL))
    return Model(header=header, geometry=read_geometry(header))


def file_bytes(shape: Shape) -> int:
    """The file's size on disk."""
    return _test_header(shape)[1]


def write_test_model(path: Path, shape: Shape) -> None:
    """Writes the test model. Raises OSError if the disk is full."""
    limited = bytes(byte % _LARGEST_BYTE for byte in range(256))
    pattern = random.Random(0).randbytes(MIB).translate(limited)  # noqa: S311 - not for secrets
    with path.open("wb") as out:
        out.write(_test_header(shape)[0])
        for tensor in _test_tensors(shape):
            remaining = pad(tensor.size_bytes, ALIGNMENT)
            while remaining:
                remaining -= out.write(pattern[:remaining])


@lru_cache(1)  # for the size, then for the file
def _test_header(shape: Shape) -> tuple[bytes, int]:
    """The header of the test model, and the size of its file."""
    words = list(islice(_words(), shape.vocabulary - 1))
    kinds = (_CONTROL, *[_NORMAL] * len(words))
    keys: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.block_count": shape.layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.width,
        "llama.feed_forward_length": shape.inner,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.rope.dimension_count": shape.width // shape.heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ("<|end|>", *(left + right for left, right in words)),
        "tokenizer.ggml.merges": tuple(" ".join(pair) for pair in words if pair[0]),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.eos_token_id": 0,
    }
    packed = [
        _pack_key(name, value, _INT32 if name.endswith("token_type") else None)
        for name, value in keys.items()
    ]
    return _gguf_header(packed, list(_test_tensors(shape)))


def _test_tensors(shape: Shape) -> Iterator[Tensor]:
    """The tensors of the test model, in the order of the file."""
    width, inner = shape.width, shape.inner
    kv_width = width // shape.heads * shape.kv_heads
    block = {
        "attn_norm": (width,),
        "attn_q": (width, width),
        "attn_k": (kv_width, width),
        "attn_v": (kv_width, width),
        "attn_output": (width, width),
        "ffn_norm": (width,),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    shapes = {"token_embd": (shape.vocabulary, width), "output_norm": (width,)}
    for layer in range(shape.layers):
        shapes |= {f"blk.{layer}.{name}": lengths for name, lengths in block.items()}
    for name, lengths in shapes.items():
        kind = by_name(shape.matrices if len(lengths) > 1 else "F32")
        size = kind.row_bytes(math.prod(lengths))
        yield Tensor(name=f"{name}.weight", type=kind, shape=lengths, size_bytes=size, offset=0)


def _words() -> Iterator[tuple[str, str]]:
    """The vocabulary, each word as the two parts it is merged from: single bytes (the first part is empty), pairs of
    letters, pairs of pairs.
    """
    pairs = ["".join(pair) for pair in product(ascii_lowercase, repeat=2)]
    yield from (("", sign) for sign in _byte_signs())
    yield from ((pair[0], pair[1]) for pair in pairs)
    yield from product(pairs, repeat=2)


def _byte_signs() -> Iterator[str]:
    """GPT-2's character for each byte: a printable byte is itself; the others are numbered from 256."""
    next_sign = 256
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        yield chr(byte if printable else next_sign)
        next_sign += not printable
