"""A recorded GGUF header as keys and tensors, in which a test changes one thing, and built again."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.header_files import ARRAY, INT32, STRING, UINT32, UINT64, entry, gguf, key
from tests.recorded import DATA, header_bytes

from edgekit.formats.dtype import by_ggml_id

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


@dataclass
class EditableHeader:
    """Keys as name -> (type, value), tensors as name -> (dimensions innermost first, ggml type)."""

    keys: dict[str, tuple[int, Any]]
    tensors: dict[str, tuple[list[int], int]]

    @property
    def architecture(self) -> str:
        return str(self.keys["general.architecture"][1])

    def put(self, name: str, value: Any, kind: int = UINT32) -> None:
        name = f"{self.architecture}.{name}"
        self.keys[name] = (self.keys.get(name, (kind, None))[0], value)

    def drop_key(self, name: str) -> None:
        del self.keys[f"{self.architecture}.{name}"]

    def reshape(self, name: str, dimensions: list[int]) -> None:
        self.tensors[name] = (dimensions, self.tensors[name][1])

    def build(self, order: str = "<") -> tuple[bytes, int]:
        """The header, and how many bytes of weights follow it."""
        entries, offset = [], 0
        for name, (dimensions, kind) in self.tensors.items():
            entries.append(entry(name, dimensions, kind, offset, order))
            size = by_ggml_id(kind).row_bytes(dimensions[0] if dimensions else 1)
            for dimension in dimensions[1:]:
                size *= dimension
            offset += -(-size // 32) * 32
        keys = [key(name, kind, value, order) for name, (kind, value) in self.keys.items()]
        return gguf(keys, entries, order=order), offset


def parse_header(data: bytes) -> EditableHeader:
    position = 24

    def read(code: str) -> Any:
        nonlocal position
        result = struct.unpack_from(f"<{code}", data, position)
        position += struct.calcsize(f"<{code}")
        return result if len(result) > 1 or code[0].isdecimal() else result[0]

    def text() -> str:
        nonlocal position
        length = read("Q")
        position += length
        return data[position - length : position].decode()

    def value(kind: int) -> Any:
        if kind == STRING:
            return text()
        if kind != ARRAY:
            return read(_CODES[kind])
        element, count = read("IQ")
        if element == STRING:
            return element, [text() for _ in range(count)]
        return element, list(read(f"{count}{_CODES[element]}"))

    tensor_count, key_count = struct.unpack_from("<QQ", data, 8)
    keys = {}
    for _ in range(key_count):
        name, kind = text(), read("I")
        keys[name] = (kind, value(kind))
    tensors = {}
    for _ in range(tensor_count):
        name, rank = text(), read("I")
        dimensions = list(read(f"{rank}Q"))
        kind, _ = read("IQ")
        tensors[name] = (dimensions, kind)
    return EditableHeader(keys=keys, tensors=tensors)


def recorded_header(file: str) -> EditableHeader:
    folder = DATA / "headers"
    return parse_header(
        header_bytes(file, folder if Path(folder / file).exists() else DATA / "headers_more")
    )


def single_changes(base: EditableHeader) -> Iterator[tuple[str, EditableHeader]]:
    """Headers with one change each: a tensor missing, added or misshapen; a key missing or with another value."""
    rng = random.Random(0)
    stems: dict[str, list[str]] = {}
    for name in base.tensors:
        stems.setdefault(re.sub(r"^blk\.\d+\.", "blk.N.", name), []).append(name)
    for names in stems.values():
        changed, name = deepcopy(base), rng.choice(names)
        del changed.tensors[name]
        yield f"no {name}", changed
        changed, name = deepcopy(base), rng.choice(names)
        if dimensions := changed.tensors[name][0]:
            dimensions[rng.randrange(len(dimensions))] *= 2
            yield f"{name} {dimensions}", changed
    for extra in ("blk.0.bogus.weight", "bogus", "blk.999.attn_norm.weight"):
        changed = deepcopy(base)
        changed.tensors[extra] = ([32], 0)
        yield f"more {extra}", changed
    for name in base.keys:
        if name.startswith(f"{base.architecture}."):
            yield from _changes_of_key(base, name)
    changed = deepcopy(base)
    changed.put("rope.scaling.type", "bogus", STRING)
    yield "bogus rope scaling", changed


def _changes_of_key(base: EditableHeader, name: str) -> Iterator[tuple[str, EditableHeader]]:
    changed = deepcopy(base)
    kind, value = changed.keys.pop(name)
    yield f"no {name}", changed
    others: list[Any] = []
    if kind in {UINT32, INT32, UINT64}:
        others = sorted({value * 2, max(value - 1, 0), 1} - {value})
    elif kind == ARRAY and value[1]:
        others = [(value[0], value[1][:-1])]
    for other in others:
        changed = deepcopy(base)
        changed.keys[name] = (kind, other)
        yield f"{name} = {other}"[:120], changed
