"""A recorded header without vocabulary -> a file of full size with a vocabulary of realistic shape.

The weights are a hole in a sparse file, so that a 40 GB model costs a few megabytes of disk.

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
    """Write `model` with that many tokens and merges, mean lengths those of Llama 3."""
    fact = _fact(model, quant)
    raw = gzip.decompress((DATA / "headers" / fact["header_without_vocabulary"]).read_bytes())
    first = b"token_embd.weight"  # the directory begins with it, and no key holds it
    keys_end = raw.index(struct.pack("<Q", len(first)) + first)
    header = _with_keys(raw, keys_end, _vocabulary(tokens, merges))
    path = folder / f"{model}-{quant}.gguf"
    path.write_bytes(header)
    with path.open("r+b") as file:
        file.truncate(-(-len(header) // 32) * 32 + fact["data_section_bytes"])
    return path


def _fact(model: str, quant: str) -> dict[str, Any]:
    facts = json.loads(gzip.decompress((DATA / "models.json.gz").read_bytes()))
    fact: dict[str, Any] = next(f for f in facts if (f["model"], f["quant"]) == (model, quant))
    return fact


def _with_keys(raw: bytes, keys_end: int, extra: list[bytes]) -> bytes:
    count = struct.unpack_from("<Q", raw, 16)[0] + len(extra)
    return raw[:16] + struct.pack("<Q", count) + raw[24:keys_end] + b"".join(extra) + raw[keys_end:]


def _vocabulary(tokens: int, merges: int) -> list[bytes]:
    pick = random.Random(0)
    words = [
        pick.randbytes(pick.randint(2, 11)).hex()[: pick.randint(3, 13)].encode()
        for _ in range(tokens)
    ]
    pairs = [pick.choice(words)[:6] + b" " + pick.choice(words)[:6] for _ in range(merges)]
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
