"""Small model files, made by hand: GGUF, safetensors and the JSON around them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

MIB = 1024**2


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _uint32(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", 4, value)


def _string(key: str, value: str) -> bytes:
    return _text(key) + struct.pack("<I", 8) + _text(value)


def _strings(key: str, values: list[str]) -> bytes:
    head = _text(key) + struct.pack("<IIQ", 9, 8, len(values))
    return head + b"".join(map(_text, values))


def _uint16(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<IH", 2, value)


def _int32(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<Ii", 5, value)


def split_header(number: int, count: int) -> bytes:
    """One shard of a split GGUF as llama-gguf-split writes it: only the first has the architecture."""
    split = [
        _uint16("split.no", number),
        _uint16("split.count", count),
        _int32("split.tensors.count", count),
    ]
    if number == 0:
        return gguf_header(keys=split)
    tensor = _text(f"blk.{number}.attn_q.weight") + struct.pack("<IQQIQ", 2, 64, 4, 0, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(split)) + b"".join(split) + tensor


def gguf_header(
    *,
    architecture: str = "llama",
    vocabulary: int = 0,
    extra: bytes = b"",
    keys: Sequence[bytes] = (),
) -> bytes:
    """A GGUF v3 header with one F32 tensor of 64 x 4 and a vocabulary of `vocabulary` tokens."""
    all_keys = [
        _string("general.architecture", architecture),
        _uint32(f"{architecture}.block_count", 2),
        _uint32(f"{architecture}.embedding_length", 64),
        _uint32(f"{architecture}.attention.head_count", 4),
        _uint32(f"{architecture}.context_length", 2048),
        _uint32(f"{architecture}.feed_forward_length", 128),
        _strings("tokenizer.ggml.tokens", [f"token{number:07d}" for number in range(vocabulary)]),
        *keys,
    ]
    tensor = _text("token_embd.weight") + struct.pack("<IQQIQ", 2, 64, 4, 0, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(all_keys)) + b"".join(all_keys) + tensor + extra


def write_gguf(path: Path, header: bytes, *, weights_bytes: int) -> bytes:
    """The header, and then a hole: the weights are never read."""
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
        offsets = [begin, begin + size]
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        begin += size
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
