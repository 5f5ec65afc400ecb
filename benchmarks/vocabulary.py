"""A recorded header without vocabulary -> a file of full size with a vocabulary of realistic shape.

The file is sparse, so that a 40 GB model takes a few megabytes of disk.

Usage: python benchmarks/vocabulary.py FOLDER MODEL QUANT TOKENS MERGES
"""

from __future__ import annotations

import gzip
import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "tests" / "data"
STRING, ARRAY, INT32 = 8, 9, 5


def write_model(folder: Path, model: str, quant: str, *, tokens: int, merges: int) -> Path:
    """Write `model` with random tokens and merges of the same mean lengths as those of Llama 3."""
    recorded = _recorded_model(model, quant)
    raw = gzip.decompress((DATA / "headers" / recorded["header_without_vocabulary"]).read_bytes())
    first = b"token_embd.weight"  # the directory begins with it, and no key contains it
    keys_end = raw.index(struct.pack("<Q", len(first)) + first)
    header = _with_keys(raw, keys_end, _vocabulary(tokens, merges))
    path = folder / f"{model}-{quant}.gguf"
    path.write_bytes(header)
    with path.open("r+b") as file:
        file.truncate(-(-len(header) // 32) * 32 + recorded["data_section_bytes"])
    return path


def _recorded_model(model: str, quant: str) -> dict[str, Any]:
    all_models = json.loads(gzip.decompress((DATA / "models.json.gz").read_bytes()))
    recorded: dict[str, Any] = next(
        f for f in all_models if (f["model"], f["quant"]) == (model, quant)
    )
    return recorded


def _with_keys(raw: bytes, keys_end: int, extra: list[bytes]) -> bytes:
    count = struct.unpack_from("<Q", raw, 16)[0] + len(extra)
    return raw[:16] + struct.pack("<Q", count) + raw[24:keys_end] + b"".join(extra) + raw[keys_end:]


def _vocabulary(tokens: int, merges: int) -> list[bytes]:
    rng = random.Random(0)
    words = [
        rng.randbytes(rng.randint(2, 11)).hex()[: rng.randint(3, 13)].encode()
        for _ in range(tokens)
    ]
    pairs = [rng.choice(words)[:6] + b" " + rng.choice(words)[:6] for _ in range(merges)]
    types = struct.pack("<IQ", INT32, tokens) + b"\1\0\0\0" * tokens
    return [
        _key("tokenizer.ggml.tokens", ARRAY) + _strings(words),
        _key("tokenizer.ggml.token_type", ARRAY) + types,
        _key("tokenizer.ggml.merges", ARRAY) + _strings(pairs),
    ]


def _key(name: str, value_type: int) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", value_type)


def _strings(items: list[bytes]) -> bytes:
    body = b"".join(struct.pack("<Q", len(item)) + item for item in items)
    return struct.pack("<IQ", STRING, len(items)) + body


if __name__ == "__main__":
    target, name, mix, token_count, merge_count = sys.argv[1:]
    print(write_model(Path(target), name, mix, tokens=int(token_count), merges=int(merge_count)))
