"""Parquet in and out, a few rows at a time. pyarrow is imported here and nowhere else.

`ParquetSource` reads a file. How many rows may be read at a time depends on the size of the pages, which pyarrow does
not report, and pyarrow aborts on some damaged footers. So `read_directory` and `largest_page_bytes` read the footer
and the page headers here.

`ParquetForm` writes one. A Parquet file ends with its footer and cannot be appended to after a kill. So the vectors
of a job first go to an Arrow stream, whose batches are independent, and are copied to the Parquet file at the end:
until that is done the disk holds both.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from edgekit.embed.bulk.rows import (
    BadRow,
    Fields,
    InputRow,
    ResumeMark,
    RowLimit,
    RowSource,
    VectorForm,
    check_same,
    file_identity,
    open_input,
)
from edgekit.errors import EdgekitError, HeaderError, SourceError, UsageError, one_line
from edgekit.units import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgekit.engines.native.kernels.types import Floats

# Most rows in memory at a time: fewer if their pages are large, because a single value can be as large as its page.
READ_ROWS = 64
PAGES_IN_ROW = 3  # a page may have this many times the limit of a row; 1 MB is typical
GROUP_ROWS = 4096  # with 1,024 floats each, a row group has 16 MiB
HEAD_BYTES = 64 * 1024  # limit on a page header: a few dozen bytes, or a few KB with statistics
DIRECTORY_BYTES = 64 * MIB  # limit on the footer: 100,000 column chunks take about 20 MiB
# Limit on the lists in a footer: row groups, their columns, parts of column names.
MOST_ENTRIES = 2_000_000
MOST_DEEP = 16

_BUFFER_BYTES = 256 * 1024
_MAGIC = b"PAR1"

# Field numbers of the structs in parquet.thrift (github.com/apache/parquet-format).
_UNPACKED, _PACKED = 2, 3  # PageHeader
_ROW_GROUPS = 4  # FileMetaData
_COLUMNS, _ROWS = 1, 3  # RowGroup
_META_DATA = 3  # ColumnChunk
_PATH, _SIZE, _DATA_OFFSET, _DICTIONARY_OFFSET = 3, 7, 9, 11  # ColumnMetaData
# Types of Thrift's compact protocol.
_BOOLEANS, _INTEGERS = (1, 2), (4, 5, 6)
_BYTE, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = 3, 7, 8, (9, 10), 11, 12

FieldTree = Mapping[int, "FieldTree"]
"""The fields to read from a struct in addition to its integers, each with the fields to read inside it."""
_DIRECTORY: FieldTree = {_ROW_GROUPS: {_COLUMNS: {_META_DATA: {_PATH: {}}}}}


def arrow() -> Any:
    """The pyarrow module with its Parquet part. It takes about 40 MiB: import it before memory is planned."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow: pip install 'edgekit-models[parquet]'") from error
    return pa


class ParquetSource(RowSource):
    """Rows of a Parquet file. Only the columns of the text and the id are read, page by page."""

    def __init__(self, reference: str, fields: Fields, limit: RowLimit) -> None:
        pa = arrow()
        # pyarrow's default pool does not return freed memory.
        pa.set_memory_pool(pa.system_memory_pool())
        self.name = reference
        self._fields, self._limit = fields, limit
        self._columns = [name for name in (fields.text, fields.id) if name is not None]
        path = Path(reference)
        if path.is_dir():
            raise UsageError(f"{reference} is a folder: name one Parquet file")
        self._raw = open_input(path)
        self._before = os.fstat(self._raw.fileno())
        self.identity = file_identity(self._before)
        try:
            self._file = pa.parquet.ParquetFile(
                self._raw, pre_buffer=False, buffer_size=_BUFFER_BYTES
            )
            schema = self._file.schema_arrow
        except (pa.ArrowException, OSError, ValueError) as error:
            self.close()
            reason = one_line(str(error), 300)
            raise SourceError(f"{reference} is not a Parquet file: {reason}") from error
        try:
            self._check_columns(schema, pa.types)
            self._groups = read_directory(self._raw, frozenset(self._columns))
            self._page_bytes: dict[int, int] = {}  # the largest page of a row group
            self._check_pages()
        except EdgekitError:
            self.close()
            raise
        except (pa.ArrowException, PageError, OSError, ValueError) as error:
            self.close()
            raise self._damaged("a damaged Parquet file", error) from error

    def rows(self, start: ResumeMark) -> Iterator[InputRow | BadRow]:
        """Reads from the row group that contains the next row, and frees each batch before it reads another."""
        pa = arrow()
        rows_up_to = list(accumulate(group.rows for group in self._groups))
        first_group = bisect_right(rows_up_to, start.position)  # the first that ends after it
        number = rows_up_to[first_group - 1] if first_group else 0  # rows before the next one
        batches = self._batches(first_group)
        try:
            while (batch := next(batches, None)) is not None:
                texts, *ids = (
                    batch.column(batch.schema.get_field_index(name)) for name in self._columns
                )
                del batch
                for index in range(len(texts)):
                    number += 1
                    if number > start.position:
                        yield self._row(number, texts[index], ids[0][index] if ids else None)
                is_small_batch = len(texts) < READ_ROWS  # because its pages are large
                del texts, ids  # before the next batch is read
                if is_small_batch:
                    pa.system_memory_pool().release_unused()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._damaged("reading it failed", error) from error

    def _damaged(self, what: str, error: Exception) -> HeaderError:
        """An error about this file, with pyarrow's message on one line."""
        return HeaderError(f"{what}: {one_line(str(error), 300)}", file=self.name)

    def share(self, position: int) -> float:
        return position / max(sum(group.rows for group in self._groups), 1)

    def check_unchanged(self) -> None:
        check_same(self.name, self._before, self._raw.fileno())

    def close(self) -> None:
        self._raw.close()

    def _check_columns(self, schema: Any, types: Any) -> None:
        """Raises UsageError unless each column exists once and has a type that can be used."""
        for name in self._columns:
            if len(schema.get_all_field_indices(name)) != 1:
                names = ", ".join(repr(column[:40]) for column in schema.names[:20])
                raise UsageError(
                    f"{self.name}: expected exactly one column named {name!r}; it has {names}"
                )
        for name in self._columns:
            column_type = schema.field(name).type
            if types.is_dictionary(column_type):
                column_type = column_type.value_type
            if name == self._fields.id:
                is_uint64 = types.is_uint64(column_type)
                self.integer_ids = types.is_integer(column_type) and not is_uint64
            is_text = (
                types.is_string(column_type)
                or types.is_large_string(column_type)
                or types.is_string_view(column_type)
            )
            is_text_column = name == self._fields.text
            if not is_text and (is_text_column or not self.integer_ids):
                expected = "text" if is_text_column else "text or whole numbers"
                raise UsageError(
                    f"{self.name}: the column {name!r} holds {column_type}, not {expected}"
                )

    def _batches(self, first_group: int) -> Iterator[Any]:
        """Batches of rows, from a row group on. The larger the pages of a group, the fewer rows are in a batch."""
        most_bytes = PAGES_IN_ROW * self._limit.row_bytes
        for group in range(first_group, len(self._groups)):
            yield from self._file.iter_batches(
                batch_size=min(most_bytes // self._largest_page(group) or 1, READ_ROWS),
                columns=self._columns,
                row_groups=[group],
                use_threads=False,
            )

    def _check_pages(self) -> None:
        """Raises UsageError if there is a budget and a page does not fit in it."""
        if self._limit.budget_bytes is None:
            return
        most_bytes = PAGES_IN_ROW * self._limit.row_bytes
        for group in range(len(self._groups)):
            page_bytes = self._largest_page(group)
            if page_bytes > most_bytes:
                raise UsageError(
                    f"{self.name}: a page of row group {group + 1:,} unpacks to {page_bytes:,} "
                    f"bytes, but only {most_bytes:,} are allowed ({PAGES_IN_ROW} x "
                    f"{self._limit}): use a larger --budget, or write the file with "
                    "smaller pages (1 MB is typical)"
                )

    def _largest_page(self, group: int) -> int:
        """The bytes of the largest page of each column in a row group, added up. Cached."""
        if group not in self._page_bytes:
            extents = self._groups[group].extents.values()
            try:
                self._page_bytes[group] = 1 + sum(
                    largest_page_bytes(self._raw, *extent) for extent in extents
                )
            except (PageError, OSError) as error:
                where = f"reading it failed: the page header of row group {group + 1:,}"
                raise self._damaged(where, error) from error
        return self._page_bytes[group]

    def _row(self, number: int, text_cell: Any, id_cell: Any) -> InputRow | BadRow:
        """The row from pyarrow's cells. Cells that are too long are never converted to Python strings."""
        if _size_bytes(text_cell) + _size_bytes(id_cell) > self._limit.row_bytes:
            return BadRow(number=number, reason=f"a row longer than {self._limit}", end=number)
        try:
            text = text_cell.as_py()
            row_id = None if id_cell is None else id_cell.as_py()
        except UnicodeDecodeError as error:
            reason = f"not UTF-8 at byte {error.start:,}"
            return BadRow(number=number, reason=reason, end=number)
        reason = ""
        if text is None:
            reason = "the text is null"
        elif id_cell is not None and row_id is None:
            reason = "the id is null"
        elif not text or text.isspace():
            reason = "the text is empty"
        if reason:
            return BadRow(number=number, reason=reason, end=number)
        return InputRow(number=number, text=text, id=row_id, end=number)


def _size_bytes(cell: Any) -> int:
    """The bytes of a text, which may be in a dictionary; 0 for a number or a null."""
    value = getattr(cell, "value", cell) if hasattr(cell, "dictionary") else cell
    buffer = value.as_buffer() if hasattr(value, "as_buffer") else None
    return 0 if buffer is None else int(buffer.size)


class ParquetForm(VectorForm):
    """The columns `row`, `id` if there are ids, and `vector`, a list of fixed size."""

    def __init__(self, dimensions: int, *, ids: bool, integer_ids: bool) -> None:
        pa = arrow()
        columns = [("row", pa.int64()), ("vector", pa.list_(pa.float32(), dimensions))]
        if ids:
            columns.insert(1, ("id", pa.int64() if integer_ids else pa.string()))
        self._ids, self._integer_ids, self._dimensions = ids, integer_ids, dimensions
        self._schema = pa.schema(columns)

    def head(self) -> bytes:
        return bytes(self._schema.serialize())

    def encode(self, rows: Sequence[InputRow], vectors: Floats) -> bytes:
        """One record batch of the Arrow stream."""
        pa = arrow()
        floats = _fixed_width_array(pa.float32(), vectors.astype("<f4", copy=False))
        columns = [
            _integer_array([row.number for row in rows]),
            pa.FixedSizeListArray.from_arrays(floats, self._dimensions),
        ]
        if self._ids:
            ids = [row.id for row in rows]
            columns.insert(1, _integer_array(ids) if self._integer_ids else _text_array(ids))
        return bytes(pa.record_batch(columns, schema=self._schema).serialize())

    def finish(self, partial: Path, vector_count: int) -> Path:  # noqa: ARG002 - the stream has the count
        """Copies the Arrow stream to a Parquet file, with GROUP_ROWS rows in each row group except the last."""
        pa = arrow()
        finished = partial.with_name(f"{partial.name}.finished")
        with (
            pa.OSFile(str(partial), "rb") as stream,
            finished.open("wb") as file,
            pa.parquet.ParquetWriter(file, self._schema, use_dictionary=False) as writer,
        ):
            for table in self._groups(stream):
                writer.write_table(table, row_group_size=GROUP_ROWS)
        return finished

    def _groups(self, stream: Any) -> Iterator[Any]:
        """The batches of the stream, joined and cut into tables of GROUP_ROWS rows."""
        pa = arrow()
        batches: list[Any] = []
        row_count = 0
        for batch in pa.ipc.open_stream(stream):
            batches.append(batch)
            row_count += batch.num_rows
            while row_count >= GROUP_ROWS:
                table = pa.Table.from_batches(batches)
                yield table.slice(0, GROUP_ROWS)
                batches = table.slice(GROUP_ROWS).to_batches()
                row_count -= GROUP_ROWS
        if row_count:
            yield pa.Table.from_batches(batches)


# Arrays are built from buffers here. pa.array() would import pandas, if installed, to look for a Series: 54 MiB.


def _fixed_width_array(kind: Any, values: NDArray[Any]) -> Any:
    return arrow().Array.from_buffers(
        kind, values.size, [None, arrow().py_buffer(values.tobytes())]
    )


def _integer_array(values: Sequence[Any]) -> Any:
    import numpy as np

    return _fixed_width_array(arrow().int64(), np.array(values, dtype="<i8"))


def _text_array(values: Sequence[object]) -> Any:
    import numpy as np

    pa = arrow()
    parts = [str(value).encode() for value in values]
    offsets = np.cumsum([0, *map(len, parts)]).astype("<i4")
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.string(), len(parts), buffers)


# --- the footer and the page headers


class PageError(Exception):
    """The header of a page, or the footer of a file, is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    rows: int
    extents: Mapping[str, tuple[int, int]]  # by column: where its pages begin and end


def read_directory(file: IO[bytes], columns: frozenset[str]) -> tuple[RowGroup, ...]:
    """The row groups of a file, and where the pages of these columns are. Raises PageError and OSError."""
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(size_bytes - 8, 0))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size_bytes - 8:
        raise PageError("it has no footer")
    if length > DIRECTORY_BYTES:
        raise PageError(f"a footer of {length:,} bytes is over the limit of {DIRECTORY_BYTES:,}")
    file.seek(size_bytes - 8 - length)
    metadata = Compact(file.read(length)).read(_DIRECTORY)
    return tuple(_row_group(group, columns) for group in _list(metadata, _ROW_GROUPS))


def _row_group(group: object, columns: frozenset[str]) -> RowGroup:
    """A row group from its struct in the footer. Raises PageError if a column or the row count is missing."""
    extents = {}
    for chunk in _list(group, _COLUMNS):
        metadata = chunk.get(_META_DATA) if isinstance(chunk, dict) else None
        path = ".".join(
            part.decode(errors="replace")
            for part in _list(metadata, _PATH)
            if isinstance(part, bytes)
        )
        if isinstance(metadata, dict) and path in columns:
            begin = metadata.get(_DATA_OFFSET, -1)
            dictionary = metadata.get(_DICTIONARY_OFFSET, 0)
            if dictionary > 0:  # the page of the dictionary comes first
                begin = min(begin, dictionary)
            extents[path] = (begin, begin + metadata.get(_SIZE, -1))
    for name in columns:
        if name not in extents:
            raise PageError(f"a row group has no column {name!r}")
        begin, end = extents[name]
        if not 0 <= begin <= end:
            raise PageError(f"the column {name!r} ends before it starts")
    rows = group.get(_ROWS, -1) if isinstance(group, dict) else -1
    if rows < 0:
        raise PageError("a row group without a row count")
    return RowGroup(rows=rows, extents=extents)


def _list(struct: object, field: int) -> list[Any]:
    """The list in a field of a struct; empty if a damaged file has something else there."""
    value = struct.get(field) if isinstance(struct, dict) else None
    return value if isinstance(value, list) else []


def largest_page_bytes(file: IO[bytes], begin: int, end: int) -> int:
    """The size of the largest page between two offsets, packed or unpacked. Raises PageError and OSError."""
    largest = 0
    while begin < end:
        file.seek(begin)
        reader = Compact(file.read(min(HEAD_BYTES, end - begin)))
        header = reader.read({})
        unpacked, packed = header.get(_UNPACKED, -1), header.get(_PACKED, -1)
        if min(unpacked, packed) < 0:
            raise PageError("a page without a size")
        largest = max(largest, unpacked, packed)
        begin += reader.position + packed
    return largest


class Compact:
    """Reads one struct in Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._entries = 0
        self.position = 0

    def read(self, fields: FieldTree) -> dict[int, Any]:
        """The integers of the struct and the values of `fields`, by field number."""
        try:
            return self._struct(0, fields)
        except IndexError as error:
            raise PageError("it is cut off") from error

    def _struct(self, depth: int, fields: FieldTree) -> dict[int, Any]:
        """Reads a struct, up to the zero byte at its end."""
        values: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            field = field + step if step else self._zigzag()
            if kind in _INTEGERS:
                values[field] = self._zigzag()
            elif kind not in _BOOLEANS:  # the type of a boolean is its value
                value = self._value(kind, depth + 1, fields.get(field))
                if field in fields:
                    values[field] = value
        return values

    def _value(self, kind: int, depth: int, fields: FieldTree | None) -> Any:
        """Reads a value. Returns a struct, or the bytes or list that `fields` selects; None for any other value."""
        if depth > MOST_DEEP:
            raise PageError("it is nested too deeply")
        if kind == _STRUCT:
            return self._struct(depth, fields or {})
        if kind == _BINARY:
            length = self._varint()
            self._advance(length)
            return None if fields is None else self._data[self.position - length : self.position]
        if kind in _LISTS:
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            return self._values(count, (head & 15,), depth, fields)
        if kind == _MAP:
            if count := self._varint():
                kinds = self._byte()
                self._values(count, (kinds >> 4, kinds & 15), depth, None)
        elif kind in _INTEGERS:
            self._zigzag()
        elif kind in (*_BOOLEANS, _BYTE, _DOUBLE):
            self._advance(8 if kind == _DOUBLE else 1)
        else:
            raise PageError(f"it has a field of unknown type {kind}")
        return None

    def _values(
        self, count: int, kinds: tuple[int, ...], depth: int, fields: FieldTree | None
    ) -> Any:
        """Reads the entries of a list, or of a map: then `kinds` has the types of its keys and of its values."""
        if count > len(self._data):  # an entry has at least one byte
            raise PageError("it has more entries than bytes")
        if fields is not None:
            self._entries += count
            if self._entries > MOST_ENTRIES:
                raise PageError(f"it has more than {MOST_ENTRIES:,} entries")
            return [self._value(kinds[0], depth + 1, fields) for _ in range(count)]
        for _ in range(count):
            for kind in kinds:
                self._value(kind, depth + 1, None)
        return None

    def _advance(self, count: int) -> None:
        self.position += count
        if self.position > len(self._data):
            raise PageError("it is cut off, or too long")

    def _byte(self) -> int:
        self.position += 1
        return self._data[self.position - 1]

    def _varint(self) -> int:
        """An unsigned integer: 7 bits in each byte, the lowest bits first."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise PageError("an unterminated number")

    def _zigzag(self) -> int:
        """A signed integer: 0, -1, 1, -2 are stored as 0, 1, 2, 3."""
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
