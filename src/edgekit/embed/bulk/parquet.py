"""Parquet in and out, a few rows at a time. pyarrow is imported here and nowhere else.

A Parquet file ends with its directory and cannot be added to after a kill. So a job's vectors first lie in an Arrow
stream, of which every batch stands on its own, and are copied into the Parquet file when all are there: for that
moment the disk holds both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.embed.bulk.lines import check_same, file_identity, open_input
from edgekit.embed.bulk.parquet_pages import PageError, largest_page_bytes, read_directory
from edgekit.embed.bulk.types import BadRow, Fields, InputRow, ReadPosition, RowLimit
from edgekit.errors import EdgekitError, HeaderError, SourceError, UsageError
from edgekit.terminal import one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgekit.engines.native.types import Floats

READ_ROWS = 64  # held at a time, or fewer: no value is larger than the page it is in, or the page of the dictionary
PAGES_IN_ROW = 3  # so many times the limit of a row may a page have: 1 MB is usual
GROUP_ROWS = 4096  # a row group of 1,024 floats each is 16 MiB

_BUFFER_BYTES = 256 * 1024


def arrow() -> Any:
    """The library with its Parquet part: some 40 MiB in memory, which a plan that is made later counts."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow: pip install 'edgekit-models[parquet]'") from error
    return pa


class ParquetSource:
    """Only the columns that are asked for are read, page by page."""

    def __init__(self, reference: str, fields: Fields, limit: RowLimit) -> None:
        pa = arrow()
        pa.set_memory_pool(
            pa.system_memory_pool()
        )  # its own keeps what is freed: that is ours to save
        self.name = reference
        self._fields, self._limit = fields, limit
        self._columns = [name for name in (fields.text, fields.id) if name is not None]
        path = Path(reference)
        if path.is_dir():
            raise UsageError(f"{reference} is a folder: name one Parquet file")
        self._raw = open_input(path)
        self._before = os.fstat(self._raw.fileno())
        try:
            self._file = pa.parquet.ParquetFile(
                self._raw, pre_buffer=False, buffer_size=_BUFFER_BYTES
            )
            schema = self._file.schema_arrow
        except (pa.ArrowException, OSError, ValueError) as error:
            self.close()
            told = one_line(str(error), 300)
            raise SourceError(f"{reference} is not a Parquet file: {told}") from error
        try:
            self._check(schema, pa.types)
            self._groups = read_directory(self._raw, frozenset(self._columns))
            self._page_bytes: dict[int, int] = {}  # of the largest of a row group
            self._check_pages()
        except EdgekitError:
            self.close()
            raise
        except (pa.ArrowException, PageError, OSError, ValueError) as error:
            self.close()
            raise self._damaged("a damaged Parquet file", error) from error

    @property
    def identity(self) -> Mapping[str, Any]:
        return file_identity(self._before)

    def rows(self, start: ReadPosition) -> Iterator[InputRow | BadRow]:
        pa = arrow()
        try:
            yield from self._rows(start)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._damaged("reading it failed", error) from error

    def _damaged(self, what: str, error: Exception) -> HeaderError:
        return HeaderError(f"{what}: {one_line(str(error), 300)}", file=self.name)

    def digest(self, position: int) -> None:  # noqa: ARG002 - a file is known by its inode and times
        return None

    def share(self, position: int) -> float:
        return position / max(sum(group.rows for group in self._groups), 1)

    def check_unchanged(self) -> None:
        check_same(self.name, self._before, self._raw.fileno())

    def close(self) -> None:
        self._raw.close()

    def _check(self, schema: Any, types: Any) -> None:
        self.integer_ids = False
        for name in filter(None, (self._fields.text, self._fields.id)):
            if len(schema.get_all_field_indices(name)) != 1:
                told = ", ".join(repr(one[:40]) for one in schema.names[:20])
                raise UsageError(
                    f"{self.name}: expected exactly one column named {name!r}; it has {told}"
                )
        kind = _stored(schema.field(self._fields.text).type, types)
        if not _is_text(kind, types):
            raise UsageError(
                f"{self.name}: the column {self._fields.text!r} holds {kind}, not text"
            )
        if self._fields.id is None:
            return
        kind = _stored(schema.field(self._fields.id).type, types)
        self.integer_ids = types.is_integer(kind) and not types.is_uint64(kind)
        if not self.integer_ids and not _is_text(kind, types):
            raise UsageError(
                f"{self.name}: the column {self._fields.id!r} holds {kind}, not text or "
                "whole numbers"
            )

    def _rows(self, start: ReadPosition) -> Iterator[InputRow | BadRow]:
        group, skip = self._group_of(start.position)
        number = start.position - skip
        pool = arrow().system_memory_pool()
        batches = self._batches(group)
        while (batch := next(batches, None)) is not None:
            texts, *ids = (batch.column(batch.schema.get_field_index(one)) for one in self._columns)
            del batch
            for place in range(len(texts)):
                number += 1
                if number > start.position:
                    yield self._row(number, texts[place], ids[0][place] if ids else None)
            few = len(texts) < READ_ROWS
            del texts, ids  # before the next are read
            if few:  # large ones
                pool.release_unused()

    def _batches(self, first: int) -> Iterator[Any]:
        """From a row group on, so few rows at a time that they stay within the limit of a page."""
        most_bytes = PAGES_IN_ROW * self._limit.row_bytes
        for group in range(first, len(self._groups)):
            yield from self._file.iter_batches(
                batch_size=min(most_bytes // self._largest_page(group) or 1, READ_ROWS),
                columns=self._columns,
                row_groups=[group],
                use_threads=False,
            )

    def _check_pages(self) -> None:
        """UsageError before any work where a page does not fit the budget."""
        most_bytes = PAGES_IN_ROW * self._limit.row_bytes
        groups = 0 if self._limit.budget_bytes is None else len(self._groups)
        for group in range(groups):
            if (found := self._largest_page(group)) > most_bytes:
                raise UsageError(
                    f"{self.name}: a page of row group {group + 1:,} unpacks to {found:,} "
                    f"bytes, but only {most_bytes:,} are allowed ({PAGES_IN_ROW} x "
                    f"{self._limit}): use a larger --budget, or write the file with "
                    "smaller pages (1 MB is typical)"
                )

    def _largest_page(self, group: int) -> int:
        """Bytes of the largest page of each column together."""
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

    def _row(self, number: int, text: Any, identity: Any) -> InputRow | BadRow:
        """A row that is too long never becomes a text."""
        if _size_bytes(text) + _size_bytes(identity) > self._limit.row_bytes:
            return BadRow(number=number, reason=f"a row longer than {self._limit}", end=number)
        return _row(number, text, identity)

    def _group_of(self, position: int) -> tuple[int, int]:
        """The row group that holds a row, and how many rows of it come before."""
        for number, group in enumerate(self._groups):
            if position < group.rows:
                return number, position
            position -= group.rows
        return len(self._groups), 0


def _stored(kind: Any, types: Any) -> Any:
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_text(kind: Any, types: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _size_bytes(cell: Any) -> int:
    value = getattr(cell, "value", cell) if hasattr(cell, "dictionary") else cell
    buffer = value.as_buffer() if hasattr(value, "as_buffer") else None
    return 0 if buffer is None else int(buffer.size)


def _row(number: int, text: Any, identity: Any) -> InputRow | BadRow:
    reason = ""
    try:
        found, named = text.as_py(), None if identity is None else identity.as_py()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {error.start:,}"
        found, named = "", None
    if reason:
        pass
    elif found is None:
        reason = "the text is null"
    elif identity is not None and named is None:
        reason = "the id is null"
    elif not found or found.isspace():
        reason = "the text is empty"
    if reason:
        return BadRow(number=number, reason=reason, end=number)
    return InputRow(number=number, text=found, id=named, end=number)


class ParquetForm:
    """`row`, `id` where there is one, and `vector` of a fixed size."""

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
        pa = arrow()
        floats = _plain(pa.float32(), vectors.astype("<f4", copy=False))
        columns = [
            _numbers([row.number for row in rows]),
            pa.FixedSizeListArray.from_arrays(floats, self._dimensions),
        ]
        if self._ids:
            ids = [row.id for row in rows]
            columns.insert(1, _numbers(ids) if self._integer_ids else _texts(ids))
        return bytes(pa.record_batch(columns, schema=self._schema).serialize())

    def finish(self, partial: Path, kept: int) -> Path:  # noqa: ARG002 - the stream knows how many
        """Row groups of one size, wherever the batches ended."""
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
        pa = arrow()
        batches: list[Any] = []
        held = 0
        for batch in pa.ipc.open_stream(stream):
            batches.append(batch)
            held += batch.num_rows
            while held >= GROUP_ROWS:
                table = pa.Table.from_batches(batches)
                yield table.slice(0, GROUP_ROWS)
                batches = table.slice(GROUP_ROWS).to_batches()
                held -= GROUP_ROWS
        if held:
            yield pa.Table.from_batches(batches)


# pyarrow's own pa.array() imports pandas where there is one, to see whether it was given a Series: 54 MiB.


def _plain(kind: Any, values: NDArray[Any]) -> Any:
    return arrow().Array.from_buffers(
        kind, values.size, [None, arrow().py_buffer(values.tobytes())]
    )


def _numbers(values: Sequence[Any]) -> Any:
    import numpy as np

    return _plain(arrow().int64(), np.array(values, dtype="<i8"))


def _texts(values: Sequence[object]) -> Any:
    import numpy as np

    pa = arrow()
    parts = [str(value).encode() for value in values]
    ends = np.cumsum([0, *map(len, parts)]).astype("<i4")
    places, data = pa.py_buffer(ends.tobytes()), pa.py_buffer(b"".join(parts))
    return pa.Array.from_buffers(pa.string(), len(parts), [None, places, data])
