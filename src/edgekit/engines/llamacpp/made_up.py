"""A shape -> a GGUF file of it with made-up weights and words, for measuring where there is no model at hand.

The format: docs/formats.md. Speed and memory do not depend on what the numbers are; they do on the vocabulary,
which llama.cpp keeps in tables of its own: so this one is as large as that of real models, with merges.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

from edgekit.formats.dtype import TensorType, by_name
from edgekit.units import MIB

ALIGNMENT = 32
LABEL = "a generated test model"

_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_NORMAL, _CONTROL = 1, 3  # llama.h @ b21e4de: enum llama_token_type
_LARGEST_BYTE = (
    0x30  # no byte is larger: read as a half or a float it is a small number, never infinite
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder of the llama family, its head tied to its embedding."""

    layers: int = 8
    width: int = 2048
    inner: int = 8192
    heads: int = 32
    kv_heads: int = 8
    vocabulary: int = 131_072
    context: int = 4096
    matrices: str = "Q4_K"

    @property
    def kv_width(self) -> int:
        return self.width // self.heads * self.kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    name: str
    dimensions: tuple[int, ...]  # innermost first, as the file has them
    type: TensorType

    @property
    def size_bytes(self) -> int:
        elements = 1
        for dimension in self.dimensions:
            elements *= dimension
        return self.type.size_bytes(elements)


def file_bytes(shape: Shape) -> int:
    """What the file takes on the disk."""
    return len(_head(shape)) + sum(_padded(one.size_bytes) for one in _tensors(shape))


def write_made_up(path: Path, shape: Shape) -> None:
    """Raises OSError where there is no room."""
    tile = _tile()
    with path.open("wb") as out:
        out.write(_head(shape))
        for tensor in _tensors(shape):
            left = _padded(tensor.size_bytes)
            while left:
                left -= out.write(tile[:left])


def _tile() -> bytes:
    low = bytes(byte % _LARGEST_BYTE for byte in range(256))
    return random.Random(0).randbytes(MIB).translate(low)  # noqa: S311 - nothing is kept secret by it


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _head(shape: Shape) -> bytes:
    keys, tensors = list(_keys(shape)), list(_tensors(shape))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    offset = 0
    for one in tensors:
        count = len(one.dimensions)
        head += _text(one.name)
        head += struct.pack(f"<I{count}QIQ", count, *one.dimensions, one.type.ggml_id, offset)
        offset += _padded(one.size_bytes)
    return head.ljust(_padded(len(head)), b"\0")


def _tensors(shape: Shape) -> Iterator[_Tensor]:
    width, inner, kv_width = shape.width, shape.inner, shape.kv_width
    yield _matrix("token_embd", width, shape.vocabulary, shape)
    yield _vector("output_norm", width)
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        yield _vector(f"{block}.attn_norm", width)
        yield _matrix(f"{block}.attn_q", width, width, shape)
        yield _matrix(f"{block}.attn_k", width, kv_width, shape)
        yield _matrix(f"{block}.attn_v", width, kv_width, shape)
        yield _matrix(f"{block}.attn_output", width, width, shape)
        yield _vector(f"{block}.ffn_norm", width)
        yield _matrix(f"{block}.ffn_gate", width, inner, shape)
        yield _matrix(f"{block}.ffn_up", width, inner, shape)
        yield _matrix(f"{block}.ffn_down", inner, width, shape)


def _matrix(name: str, columns: int, rows: int, shape: Shape) -> _Tensor:
    kind = by_name(shape.matrices)
    return _Tensor(name=f"{name}.weight", dimensions=(columns, rows), type=kind)


def _vector(name: str, width: int) -> _Tensor:
    return _Tensor(name=f"{name}.weight", dimensions=(width,), type=by_name("F32"))


def _keys(shape: Shape) -> Iterator[bytes]:
    words = list(islice(_words(), shape.vocabulary - 1))
    yield _key("general.architecture", _STRING, _text("llama"))
    numbers = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.width,
        "feed_forward_length": shape.inner,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "rope.dimension_count": shape.width // shape.heads,
    }
    for name, number in numbers.items():
        yield _key(f"llama.{name}", _UINT32, struct.pack("<I", number))
    yield _key("llama.attention.layer_norm_rms_epsilon", _FLOAT32, struct.pack("<f", 1e-5))
    yield _key("tokenizer.ggml.model", _STRING, _text("gpt2"))
    yield _key("tokenizer.ggml.pre", _STRING, _text("gpt-2"))
    yield _texts("tokenizer.ggml.tokens", ["<|end|>", *(left + right for left, right in words)])
    yield _texts("tokenizer.ggml.merges", [" ".join(pair) for pair in words if pair[0]])
    kinds = (_CONTROL, *[_NORMAL] * len(words))
    yield _key(
        "tokenizer.ggml.token_type",
        _ARRAY,
        struct.pack(f"<IQ{len(kinds)}i", _INT32, len(kinds), *kinds),
    )
    yield _key("tokenizer.ggml.eos_token_id", _UINT32, struct.pack("<I", 0))


def _words() -> Iterator[tuple[str, str]]:
    """Each as what it is merged from: bytes from nothing, then pairs of letters, then pairs of pairs."""
    pairs = ["".join(pair) for pair in product(ascii_lowercase, repeat=2)]
    yield from (("", sign) for sign in _byte_signs())
    yield from ((pair[0], pair[1]) for pair in pairs)
    yield from product(pairs, repeat=2)


def _byte_signs() -> Iterator[str]:
    """GPT-2's sign for each byte: itself where it can be seen, else one from 256 on."""
    further = 256
    for byte in range(256):
        seen = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
        yield chr(byte if seen else further)
        further += not seen


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _texts(name: str, texts: Sequence[str]) -> bytes:
    packed = b"".join(map(_text, texts))
    return _key(name, _ARRAY, struct.pack("<IQ", _STRING, len(texts)) + packed)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
