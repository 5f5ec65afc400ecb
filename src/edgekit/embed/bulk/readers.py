"""The input formats of a bulk job: text lines, JSON lines, CSV, TSV and Parquet become rows, one at a time.

A row that cannot be used becomes a `BadRow` with the reason; nothing is guessed.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

from edgekit.embed.bulk.json_lines import (
    NotJsonError,
    broken_character,
    decode_line,
    kind_of,
    read_object,
)
from edgekit.embed.bulk.rows import (
    STDIN,
    BadRow,
    Fields,
    Id,
    InputRow,
    LineSource,
    Reader,
    ResumeMark,
    RowLimit,
    RowSource,
    open_lines,
)
from edgekit.errors import TextError, UsageError

SUFFIXES = {
    ".txt": "txt",
    ".text": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
FORMATS = ("txt", "jsonl", "csv", "tsv", "parquet")
PACKED = ".gz"
MOST_COLUMNS = 10_000  # of a CSV header

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_INT64 = 2**63


class _BadRowError(Exception):
    """A row cannot be used; the message says why."""


def open_source(
    reference: str, *, form: str | None, fields: Fields, limit: RowLimit | None = None
) -> RowSource:
    """The input. Raises UsageError, before a row is read, if the format and the fields do not go together."""
    form, limit = form or format_of(reference), limit or RowLimit()
    packed = PurePath(reference).suffix.lower() == PACKED
    if form == "parquet":
        if reference == STDIN or packed:
            raise UsageError("Parquet is read from its end: it needs a regular file, not a pipe")
        from edgekit.embed.bulk.parquet import ParquetSource

        return ParquetSource(reference, fields, limit)
    if form == "txt" and fields.id is not None:
        raise UsageError(
            "plain text lines have no ids: --id-field works with jsonl, csv, tsv and parquet"
        )
    if form in _DELIMITERS:
        reader: Reader = partial(_csv_rows, fields, _DELIMITERS[form])
    else:
        reader = partial(_line_rows, fields, _parse_text if form == "txt" else _parse_json)
    return open_lines(reference, limit, reader, packed=packed)


def format_of(reference: str) -> str:
    """The format by the file's suffix; standard input holds lines of text."""
    if reference == STDIN:
        return "txt"
    path = PurePath(reference)
    if path.suffix.lower() == PACKED:
        path = path.with_suffix("")
    form = SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise UsageError(
            f"cannot tell the format of {reference} from its name: add --format {'|'.join(FORMATS)}"
        )
    return form


ParseLine = Callable[[bytes, Fields], tuple[str, Id | None] | None]
"""From a line to its text and id; None for a blank line, which is not a row."""


def _line_rows(
    fields: Fields, parse: ParseLine, lines: LineSource, start: ResumeMark
) -> Iterator[InputRow | BadRow]:
    """One row per line."""
    for number, line in enumerate(lines.from_position(start.position), start.number + 1):
        if line.data is None:
            reason = f"a line longer than {lines.limit}"
            yield BadRow(number=number, reason=reason, end=line.end)
            continue
        try:
            parsed = parse(line.data, fields)
            if parsed is not None:
                text, row_id = parsed
                yield InputRow(number=number, text=text, id=row_id, end=line.end)
        except (_BadRowError, NotJsonError) as error:
            yield BadRow(number=number, reason=str(error), end=line.end)


def _csv_rows(
    fields: Fields, delimiter: str, lines: LineSource, start: ResumeMark
) -> Iterator[InputRow | BadRow]:
    """One row per record, which may span lines inside quotes. The first record names the columns.

    Raises UsageError if a column is missing, and TextError for a record whose end cannot be found.
    """
    records = _Records(lines, delimiter)
    head = records.next(0)
    if head is None:
        raise UsageError(
            f"{lines.name} is empty: the first line of a CSV file must name its columns"
        )
    columns = head.cells
    if head.problem or len(columns) > MOST_COLUMNS:
        raise UsageError(
            f"{lines.name}: the first line is not a header: {head.problem or 'too many columns'}"
        )
    for name in filter(None, (fields.text, fields.id)):
        if columns.count(name) != 1:
            names = ", ".join(repr(cell[:40]) for cell in columns[:20])
            raise UsageError(
                f"{lines.name}: {columns.count(name) or 'no'} columns are named {name!r}; "
                f"it has {names}"
            )
    if start.position > records.end:
        records.go_to(start.position)
    number = start.number
    while (record := records.next(number + 1)) is not None:
        number += 1
        count, problem = len(record.cells), record.problem
        if not count:  # a blank line
            continue
        if not problem and count != len(columns):
            problem = f"{count} field{'s' if count > 1 else ''}, but the header has {len(columns)}"
        if problem:
            yield BadRow(number=number, reason=problem, end=record.end)
            continue
        cells = dict(zip(columns, record.cells, strict=True))
        try:
            row_id = None if fields.id is None else _valid_text(cells[fields.id], "the id")
            text = _valid_text(cells[fields.text], "the text")
            yield InputRow(number=number, text=text, id=row_id, end=record.end)
        except _BadRowError as error:
            yield BadRow(number=number, reason=str(error), end=record.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    cells: list[str]
    end: int
    problem: str = ""  # why it is not valid


class _Records:
    """The records of a CSV file, each with the position after it.

    The csv module reads a line only when the current record needs it, so `end` is where that record ends.
    """

    def __init__(self, lines: LineSource, delimiter: str) -> None:
        self._lines, self._delimiter = lines, delimiter
        self.end = 0
        self._source = lines.from_position(0)
        self._start_reader()

    def go_to(self, position: int) -> None:
        """Skips to the record that begins at this position."""
        self.end = position
        self._source = self._lines.skip_to(self._source, position)
        self._start_reader()

    def next(self, number: int) -> _Record | None:
        """The record with this row number; None at the end of the file."""
        # Of the current record: its number, the position before it, and the bytes read so far.
        self._number, self._start, self._bytes = number, self.end, 0
        try:
            return _Record(cells=next(self._reader), end=self.end)
        except StopIteration:
            return None
        except (csv.Error, _BadRowError) as error:
            self._start_reader()  # the next record begins on the next line
            return _Record(cells=[""], end=self.end, problem=f"not valid CSV: {error}")

    def _start_reader(self) -> None:
        csv.field_size_limit(self._lines.limit.row_bytes)
        self._reader = csv.reader(self._texts(), delimiter=self._delimiter, strict=True)

    def _texts(self) -> Iterator[str]:
        """The lines for the csv module, which reads several for a record with a line break in quotes.

        Raises TextError if a record is longer than a row may be and its end cannot be found, because it has a quote.
        """
        limit = self._lines.limit
        for line in self._source:
            if line.data is None and not self._bytes and not line.has_quote:
                self.end = line.end
                raise _BadRowError(f"a line longer than {limit}")
            if line.data is None or self._bytes + len(line.data) > limit.row_bytes:
                raise TextError(
                    f"{self._lines.name}, row {self._number:,} (from byte {self._start:,} on): a "
                    f"record longer than {limit}, with a quote in it (is one never closed?). The "
                    "start of the next record cannot be determined, so --skip-bad cannot skip it"
                )
            self.end = line.end
            self._bytes += len(line.data)
            # Invalid UTF-8 is an error only in a cell that is used.
            text = line.data.decode("utf-8", "surrogateescape")
            del line
            yield text


class ArgumentTexts(RowSource):
    """Texts from the command line."""

    name = "the command line"

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        joined = json.dumps(texts).encode()
        self.identity = {"sha256": hashlib.sha256(joined).hexdigest()}

    def rows(self, start: ResumeMark) -> Iterator[InputRow | BadRow]:
        for number, text in enumerate(self._texts[start.position :], start.position + 1):
            try:
                yield InputRow(number=number, text=_valid_text(text, "the text"), end=number)
            except _BadRowError as error:
                yield BadRow(number=number, reason=str(error), end=number)

    def share(self, position: int) -> float:
        return position / len(self._texts)


def _parse_text(line: bytes, _: Fields) -> tuple[str, None]:
    """The text of a line. Raises _BadRowError or NotJsonError."""
    return _check_not_empty(decode_line(line.removesuffix(b"\n").removesuffix(b"\r"))), None


def _parse_json(line: bytes, fields: Fields) -> tuple[str, Id | None] | None:
    """The text and the id in a JSON line. Raises _BadRowError or NotJsonError."""
    line = line.strip()
    if not line:
        return None
    row = read_object(line)
    text = _field(row, fields.text)
    if not isinstance(text, str):
        raise _BadRowError(f"{fields.text!r} is {kind_of(text)}, not a string")
    row_id = None
    if fields.id is not None:
        row_id = _field(row, fields.id)
        if isinstance(row_id, str):
            _valid_text(row_id, "the id")
        elif type(row_id) is not int or not -_INT64 <= row_id < _INT64:
            raise _BadRowError(
                f"{fields.id!r} is {kind_of(row_id)}, not a string or a 64-bit integer"
            )
    return _check_not_empty(_check_utf8(text, fields.text)), row_id


def _field(row: Mapping[str, Any], name: str) -> Any:
    """The field of exactly this name, or a nested field: data.title. Raises _BadRowError if there is none."""
    if name in row:
        return row[name]
    value: Any = row
    for step in name.split("."):
        if not isinstance(value, dict) or step not in value:
            names = ", ".join(repr(key[:40]) for key in list(row)[:10]) or "nothing"
            raise _BadRowError(f"no field {name!r}; it has {names}")
        value = value[step]
    return value


def _valid_text(text: str, what: str) -> str:
    """Returns the text unchanged. Raises _BadRowError if it is empty or not valid UTF-8."""
    return _check_not_empty(_check_utf8(text, what), what)


def _check_utf8(text: str, what: str) -> str:
    """Returns the text unchanged. Raises _BadRowError if it cannot be encoded as UTF-8."""
    if (index := broken_character(text)) is not None:
        raise _BadRowError(f"{what} is not UTF-8 at character {index:,}")
    return text


def _check_not_empty(text: str, what: str = "the text") -> str:
    """Returns the text unchanged. Raises _BadRowError if it is empty or blank."""
    if not text or text.isspace():  # `strip` would copy it
        raise _BadRowError(f"{what} is empty")
    return text
