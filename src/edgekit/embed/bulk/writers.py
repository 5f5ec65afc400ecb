"""TABLE of output formats. Each is a file that only grows, so that a kill leaves a good beginning behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from edgekit.embed.bulk.types import InputRow, VectorForm
from edgekit.errors import UsageError

if TYPE_CHECKING:
    from edgekit.engines.native.types import Floats

NPY_HEAD_BYTES = 128  # numpy aligns its own to 64; room for 20 digits of rows
_NPY_MAGIC = (
    b"\x93NUMPY\x01\x00"  # https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
)
_FLOAT_WIDTH = "U16"  # -1.1754944e-38 has 14 characters


def form_of(name: str, *, dimensions: int, ids: bool, integer_ids: bool) -> VectorForm:
    """UsageError where the format cannot hold what is asked for."""
    return _FORMS[name](dimensions, ids, integer_ids)


def output_format(reference: str) -> str:
    """By the name; standard output has lines of JSON."""
    if reference == "-":
        return "jsonl"
    suffix = PurePath(reference).suffix.lower()
    found = SUFFIXES.get(suffix)
    if found is None:
        raise UsageError(f"{reference}: choose one of the output formats {', '.join(SUFFIXES)}")
    return found


class NpyForm:
    """One array of float32, a row for each text that was embedded. It has no room for ids."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    def head(self) -> bytes:
        return self._head(0)

    def encode(self, rows: Sequence[InputRow], vectors: Floats) -> bytes:
        if vectors.shape != (len(rows), self._dimensions):
            raise ValueError(f"{vectors.shape} vectors for {len(rows)} rows")
        return vectors.astype("<f4", copy=False).tobytes()

    def finish(self, partial: Path, kept: int) -> Path:
        with partial.open("r+b") as file:
            file.write(self._head(kept))
        return partial

    def _head(self, rows: int) -> bytes:
        told = (
            f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {self._dimensions}), }}"
        )
        length = NPY_HEAD_BYTES - len(_NPY_MAGIC) - 2
        return _NPY_MAGIC + length.to_bytes(2, "little") + f"{told:<{length - 1}}\n".encode("ascii")


class JsonlForm:
    """{"row": 1, "id": "a", "vector": [...]}: numbers as short as they can be to give the same float32."""

    def __init__(self, *, ids: bool) -> None:
        self._ids = ids

    def head(self) -> bytes:
        return b""

    def encode(self, rows: Sequence[InputRow], vectors: Floats) -> bytes:
        numbers = vectors.astype(_FLOAT_WIDTH).tolist()
        return b"".join(map(self._line, rows, numbers))

    def finish(self, partial: Path, kept: int) -> Path:  # noqa: ARG002 - a line is final as it is
        return partial

    def _line(self, row: InputRow, numbers: Sequence[str]) -> bytes:
        named = f',"id":{json.dumps(row.id, ensure_ascii=False)}' if self._ids else ""
        return f'{{"row":{row.number}{named},"vector":[{",".join(numbers)}]}}\n'.encode()


def _npy(dimensions: int, ids: bool, _: bool) -> VectorForm:  # noqa: FBT001 - called through the table alone
    if ids:
        raise UsageError("an .npy file cannot store ids: use .jsonl or .parquet")
    return NpyForm(dimensions)


def _jsonl(_: int, ids: bool, __: bool) -> VectorForm:  # noqa: FBT001 - called through the table alone
    return JsonlForm(ids=ids)


def _parquet(dimensions: int, ids: bool, integer_ids: bool) -> VectorForm:  # noqa: FBT001 - called through the table alone
    from edgekit.embed.bulk.parquet import ParquetForm

    return ParquetForm(dimensions, ids=ids, integer_ids=integer_ids)


_FORMS: dict[str, Callable[[int, bool, bool], VectorForm]] = {
    "npy": _npy,
    "jsonl": _jsonl,
    "parquet": _parquet,
}
SUFFIXES = {
    ".npy": "npy",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
