"""Small model files, made by hand: GGUF, safetensors and the JSON around them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.header_files import (
    ARRAY,
    F32,
    INT32,
    STRING,
    UINT16,
    UINT32,
    entry,
    gguf,
    key,
    safetensors,
    tensor,
)

MIB = 1024**2


def split_header(number: int, count: int) -> bytes:
    """One shard of a split GGUF as llama-gguf-split writes it: only the first has the architecture."""
    split = [
        key("split.no", UINT16, number),
        key("split.count", UINT16, count),
        key("split.tensors.count", INT32, count),
    ]
    if number == 0:
        return gguf_header(keys=split)
    return gguf(split, [entry(f"blk.{number}.attn_q.weight", [64, 4], F32, 0)])


@cache
def _vocabulary(count: int) -> bytes:
    tokens = [f"token{number:07d}" for number in range(count)]
    return key("tokenizer.ggml.tokens", ARRAY, (STRING, tokens))


def gguf_header(
    *,
    architecture: str = "llama",
    vocabulary: int = 0,
    extra: bytes = b"",
    keys: Sequence[bytes] = (),
) -> bytes:
    """A GGUF v3 header with one F32 tensor of 64 x 4 and a vocabulary of `vocabulary` tokens."""
    numbers = {
        "block_count": 2,
        "embedding_length": 64,
        "attention.head_count": 4,
        "context_length": 2048,
        "feed_forward_length": 128,
    }
    all_keys = [
        key("general.architecture", STRING, architecture),
        *(key(f"{architecture}.{name}", UINT32, value) for name, value in numbers.items()),
        _vocabulary(vocabulary),
        *keys,
    ]
    return gguf(all_keys, [entry("token_embd.weight", [64, 4], F32, 0)]) + extra


def write_gguf(path: Path, header: bytes, *, weights_bytes: int) -> bytes:
    """The header followed by a hole for the weights, which are never read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + weights_bytes)
    return header


def safetensors_header() -> bytes:
    return tensors_header({"model.embed_tokens.weight": ("F32", [8, 4], 128)})


def tensors_header(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """A safetensors header: name -> dtype, shape, bytes, one after another."""
    table, begin = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        table[name] = tensor(dtype, shape, begin, begin + size)
        begin += size
    return safetensors(table)


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
