"""Index files -> one index file, in which every model is as the newest file describes it.

A file may be a stranger's: its tables must be exactly those of tables.py (no views, triggers or virtual tables), and
every row is checked before it is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgekit.errors import HeaderError, check_limit
from edgekit.index.database import MAX_HEADER_BYTES
from edgekit.index.records import forms_of, is_id, read_header, read_sizes
from edgekit.index.repositories import Form
from edgekit.index.tables import (
    SCHEMA,
    SQLITE_NAME,
    TABLES,
    Cell,
    Row,
    Table,
    checked_row,
    schema_of,
    table_named,
    write_sqlite,
)
from edgekit.index.types import ModelPurpose
from edgekit.units import MIB, Basis

MAX_FILE_BYTES = 256 * MIB  # EdgeKit's own has 4 MB; it is read into memory when it is downloaded
MAX_ROWS = 2_000_000  # of one table; EdgeKit's own has 8,000 names
MAX_CELL_BYTES = MIB  # the longest of EdgeKit's own has 8,000
MAX_UNPACKED_BYTES = 1024 * MIB  # of all headers together, which are unpacked one at a time
MAX_TEXT_CHARS = 2_000
MAX_ITEMS = 4_096  # of a list or object in a cell
TOOL = "edgekit index update"

_DATE = re.compile(r"[0-9]{4}(?:-[0-9]{2}(?:-[0-9]{2})?)?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"  # no word of a command that begins with a dash
_HUB_ID = re.compile(rf"(?:{_PART}/)?{_PART}")
_TAG = re.compile(rf"{_PART}(?:/{_PART})*(?::{_PART})?")  # of Ollama's library
_QUANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")

Check = Callable[[Any], None]


def _require(is_valid: object) -> None:
    if not is_valid:
        raise ValueError


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _text(value: str) -> None:
    _require(len(value) <= MAX_TEXT_CHARS and value.isprintable())


def _match(pattern: re.Pattern[str]) -> Check:
    return lambda value: _require(pattern.fullmatch(value) is not None)


def _one_of(*values: object) -> Check:
    return lambda value: _require(value in values)


def _count(value: int) -> None:
    _require(0 <= value < 2**63)


def _finite(value: float) -> None:
    _require(math.isfinite(value))


def _kinds(value: str) -> None:
    purposes = {purpose.value for purpose in ModelPurpose}
    _require(all(kind in purposes for kind in value.split(",") if kind))


def _sources_by_fact(value: str) -> None:
    stated = json.loads(value)
    _require(isinstance(stated, dict) and len(stated) <= MAX_ITEMS)
    for key, facts in stated.items():
        _require(re.fullmatch(r"[0-9]{1,18}", key) is not None and isinstance(facts, list))
        _require(all(isinstance(fact, str) and fact.isidentifier() for fact in facts))


def _numbers(value: str) -> None:
    stated = json.loads(value)
    _require(isinstance(stated, list) and len(stated) <= MAX_ITEMS)
    _require(all(type(number) is int for number in stated))


def _quants(value: str) -> None:
    stated = json.loads(value)
    _require(isinstance(stated, dict) and len(stated) <= MAX_ITEMS)
    for tag, size in stated.items():
        _require(_QUANT.fullmatch(tag) is not None)
        _require(size is None or (type(size) is int and 0 <= size < 2**63))


def _sizes(value: str) -> None:
    read_sizes(json.loads(value))


# Of every column but geometries.header. read_rows has checked the types already.
_CHECKS: Mapping[str, Mapping[str, Check]] = {
    "models": {
        "id": lambda value: _require(is_id(value) and value == value.lower()),
        "repository": _optional(_match(_HUB_ID)),
        **dict.fromkeys(
            ("publisher", "family", "architecture", "licence"),
            _optional(_text),
        ),
        "kinds": _optional(_kinds),
        **dict.fromkeys(
            ("parameters", "active_parameters", "native_context", "vocabulary", "geometry"),
            _optional(_count),
        ),
        **dict.fromkeys(("released", "not_before"), _optional(_match(_DATE))),
        "base_model": _optional(_match(_HUB_ID)),
        "uses": _optional(_finite),
        "basis": _one_of(Basis.EXACT.value, Basis.ASSUMED.value),
        "sources": _optional(_sources_by_fact),
    },
    "geometries": {
        "id": _count,
        "fingerprint": _text,
        "sizes": _optional(_sizes),
        "forms": _one_of("", "gguf", "config", "gguf,config"),
    },
    "repositories": {
        "model": _text,
        "form": _one_of(*(form.value for form in Form)),
        "name": lambda value: _require(bool(_HUB_ID.fullmatch(value) or _TAG.fullmatch(value))),
        "quants": _optional(_quants),
        "listed": _optional(_one_of(0, 1)),
        "downloads": _optional(_count),
        "sources": _optional(_numbers),
    },
    "names": {
        "spelling": _text,
        "model": _text,
        "scheme": _optional(_text),
        "source": _optional(_count),
        "level": _one_of(0, 1, 2, 3),
    },
    "evidence": {
        **dict.fromkeys(("model", "benchmark"), _text),
        "score": _finite,
        **dict.fromkeys(("date", "setting", "measured_by"), _optional(_text)),
        "source": _optional(_count),
    },
    "losses": {
        **dict.fromkeys(("what", "measure"), _text),
        **dict.fromkeys(("scheme", "model", "corpus", "date"), _optional(_text)),
        "value": _finite,
        "error": _optional(_finite),
        "source": _optional(_count),
    },
    "sources": {
        "id": _count,
        "name": _text,
        **dict.fromkeys(("licence", "date"), _optional(_text)),
        "basis": _one_of(*(basis.value for basis in Basis)),
    },
    "meta": {"key": _text, "value": _optional(_text)},
}
_SOURCE = ("name", "licence", "date", "basis")
OF_A_MODEL = ("repositories", "names", "evidence")  # tables whose rows belong to a model


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedIndex:
    """An index file whose rows were all checked."""

    path: Path
    built: str  # "2026-11-18"
    models: Mapping[str, str] = field(repr=False)  # id -> its repository in lower case, or ""
    content: Mapping[str, int] = field(repr=False)  # id -> a hash of all its rows
    sources: Mapping[int, Row] = field(repr=False)  # number -> its columns of _SOURCE
    geometries: Mapping[int, str] = field(repr=False)  # number -> a hash of its content


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge changed, compared with the index that was used before."""

    added: tuple[str, ...]  # ids
    changed: tuple[str, ...]
    unchanged: int
    built: str

    @property
    def models(self) -> int:
        return len(self.added) + len(self.changed) + self.unchanged


def check_index(path: Path) -> CheckedIndex:
    """Read every row of an index file. Raises HeaderError that says what is wrong with it."""
    facts: dict[Cell, Cell] = {row[0]: row[1] for row in _rows(path, table_named("meta"))}
    if facts.get("schema") != str(SCHEMA):
        schema = str(facts.get("schema", "unknown"))[:20]
        raise HeaderError(
            f"schema {schema}; this version of EdgeKit reads {SCHEMA}", file=str(path)
        )
    built = facts.get("built")
    if not isinstance(built, str) or not _DAY.fullmatch(built):
        raise HeaderError("meta.built is not a date", file=str(path))
    columns = [column.name for column in table_named("sources").columns]
    sources: dict[int, Row] = {}
    for row in _rows(path, table_named("sources")):
        values = dict(zip(columns, row, strict=True))
        sources[_whole(values["id"])] = tuple(values[name] for name in _SOURCE)
    geometries = {_whole(row[0]): hashed for row, hashed in _geometries(path)}
    models: dict[str, str] = {}
    content: dict[str, int] = {}
    merger = _Renumbered(sources=sources, geometries=geometries, path=path)
    for table in ("models", *OF_A_MODEL):
        position = 0 if table == "models" else _column(table, "model")
        for row in _rows(path, table_named(table)):
            name = str(row[position])
            if table == "models":
                models[name] = str(row[_column(table, "repository")] or "").lower()
            if name not in models:
                raise HeaderError(f"a row of {table} is of an unknown model", file=str(path))
            text = repr((table, merger.described(table, row))).encode()
            digest = hashlib.blake2b(text, digest_size=8).digest()
            content[name] = content.get(name, 0) + int.from_bytes(digest)
    for row in _rows(path, table_named("losses")):
        merger.described("losses", row)
    return CheckedIndex(
        path=path,
        built=built,
        models=models,
        content=content,
        sources=sources,
        geometries=geometries,
    )


def merge(files: Sequence[CheckedIndex], used: CheckedIndex, target: Path) -> Merged:
    """Write an index with every model of the files, each as the newest file has it; of files of the same day the first.

    A model is the same in two files if its id or its repository is. `used` is the index that the result is compared
    with. Raises OutputError if the target cannot be written.
    """
    ordered = sorted(files, key=lambda file: file.built, reverse=True)
    file_of: dict[str, CheckedIndex] = {}
    repositories: set[str] = set()
    for file in ordered:
        taken = {
            name: repository
            for name, repository in file.models.items()
            if name not in file_of and repository not in repositories
        }
        file_of |= dict.fromkeys(taken, file)
        repositories |= set(filter(None, taken.values()))
    built = ordered[0].built
    writer = _Writer(files=ordered, file_of=file_of)
    facts: list[Row] = [("built", built), ("schema", str(SCHEMA)), ("tool", TOOL)]
    tables: dict[str, Iterator[Row]] = {
        name: writer.rows_of_models(name) for name in ("models", *OF_A_MODEL)
    }
    tables |= {
        "geometries": writer.geometries(),
        "losses": writer.losses(),
        "sources": writer.sources(),  # after all tables that name them
        "meta": iter(facts),
    }
    write_sqlite(target, tables)
    added, changed = [], []
    for name, file in sorted(file_of.items()):
        if name not in used.models:
            added.append(name)
        elif file.content[name] != used.content[name]:
            changed.append(name)
    unchanged = len(file_of) - len(added) - len(changed)
    return Merged(added=tuple(added), changed=tuple(changed), unchanged=unchanged, built=built)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Renumbered:
    """Rows of one file with what their numbers stand for, so that they can be compared with rows of another file."""

    sources: Mapping[int, Row]
    geometries: Mapping[int, str]
    path: Path

    def described(self, table: str, row: Row) -> Row:
        """The row with sources and geometries instead of their numbers. HeaderError if there is no such number."""
        cells = list(row)
        try:
            for i, column in enumerate(table_named(table).columns):
                cell = cells[i]
                if cell is None:
                    continue
                if column.name == "geometry":
                    cells[i] = self.geometries[_whole(cell)]
                elif column.name == "source":
                    cells[i] = repr(self.sources[_whole(cell)])
                elif column.name == "sources" and table == "models":
                    stated = json.loads(str(cell)).items()
                    cells[i] = repr(sorted(repr((self.sources[int(n)], f)) for n, f in stated))
                elif column.name == "sources":
                    cells[i] = repr([self.sources[number] for number in json.loads(str(cell))])
        except KeyError as error:
            text = f"a row of {table} has the unknown source or geometry {error}"
            raise HeaderError(text, file=str(self.path)) from error
        return tuple(cells)


@dataclass(slots=True, kw_only=True)
class _Writer:
    """The rows of the merged file. Sources and geometries get their numbers when a row first uses them."""

    files: Sequence[CheckedIndex]
    file_of: Mapping[str, CheckedIndex]
    _sources: dict[Row, int] = field(default_factory=dict)
    _geometries: dict[str, int] = field(default_factory=dict)

    def rows_of_models(self, name: str) -> Iterator[Row]:
        """The rows of a table, of every model those of its file."""
        table = table_named(name)
        position = _column(name, "id" if name == "models" else "model")
        for file in self.files:
            for row in _rows(file.path, table):
                if self.file_of.get(str(row[position])) is file:
                    yield self._renumbered(table, row, file)

    def geometries(self) -> Iterator[Row]:
        """Those that models use. Their fingerprint is made again from their content."""
        written: set[str] = set()
        for file in self.files:
            for row, content in _geometries(file.path):
                if content in self._geometries and content not in written:
                    written.add(content)
                    yield (self._geometries[content], content, *row[2:])

    def losses(self) -> Iterator[Row]:
        """Those of the newest file that has any."""
        table = table_named("losses")
        for file in self.files:
            rows = [self._renumbered(table, row, file) for row in _rows(file.path, table)]
            if rows:
                yield from rows
                return

    def sources(self) -> Iterator[Row]:
        for (name, licence, date, basis), number in self._sources.items():
            yield (number, name, licence, date, basis)

    def _renumbered(self, table: Table, row: Row, file: CheckedIndex) -> Row:
        def number(source: object) -> int:
            return self._sources.setdefault(file.sources[_whole(source)], len(self._sources) + 1)

        cells = list(row)
        for i, column in enumerate(table.columns):
            cell = cells[i]
            if cell is None:
                continue
            if column.name == "geometry":
                content = file.geometries[_whole(cell)]
                cells[i] = self._geometries.setdefault(content, len(self._geometries) + 1)
            elif column.name == "source":
                cells[i] = number(cell)
            elif column.name == "sources" and table.name == "models":
                stated = json.loads(str(cell))
                cells[i] = _json({str(number(int(key))): facts for key, facts in stated.items()})
            elif column.name == "sources":
                cells[i] = _json([number(source) for source in json.loads(str(cell))])
        return tuple(cells)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _whole(value: object) -> int:
    if type(value) is not int:
        raise HeaderError(f"{value!r:.40} is not a whole number", file=SQLITE_NAME)
    return value


def _column(table: str, name: str) -> int:
    return [column.name for column in table_named(table).columns].index(name)


def _rows(path: Path, table: Table) -> Iterator[Row]:
    """The rows of a table, each of them checked. Raises HeaderError."""
    checks = _CHECKS[table.name]
    columns = [(i, c.name, checks[c.name]) for i, c in enumerate(table.columns) if c.name in checks]
    for number, row in enumerate(_read_rows(path, table), 1):
        for i, column, check in columns:
            try:
                check(row[i])
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                reason = f": {error}" if str(error) else ""
                raise HeaderError(
                    f"row {number:,} of {table.name}: {column} is {row[i]!r:.80}{reason}",
                    file=str(path),
                ) from error
        yield row


def _geometries(path: Path) -> Iterator[tuple[Row, str]]:
    """The rows of geometries, each with a hash of its content. Raises HeaderError if a header cannot be read."""
    unpacked_bytes = 0
    for row in _rows(path, table_named("geometries")):
        _, _, packed, sizes, forms = row
        try:
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(packed, MAX_HEADER_BYTES)  # type: ignore[arg-type]
            # cut off, or too long: not JSON
            header = read_header(json.loads(text if unpacker.eof else b""))
            _require(forms == ",".join(forms_of(header)))
        except (ValueError, TypeError, zlib.error, RecursionError) as error:
            reason = str(error) or "its forms are not those of its header"
            raise HeaderError(f"header of geometry {row[0]!r}: {reason}", file=str(path)) from error
        unpacked_bytes += len(text)
        check_limit("bytes of all headers", unpacked_bytes, MAX_UNPACKED_BYTES, file=str(path))
        yield row, hashlib.sha256(repr((text, sizes, forms)).encode()).hexdigest()


def _read_rows(path: Path, table: Table) -> Iterator[Row]:
    """The rows of a table in the order of the file. Raises HeaderError if the file is not an index, or too large."""
    import sqlite3

    names = ", ".join(column.name for column in table.columns)
    try:
        check_limit("bytes", path.stat().st_size, MAX_FILE_BYTES, file=str(path))
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL_BYTES)
            schema = database.execute("SELECT type, name, sql FROM sqlite_schema LIMIT 100")
            if set(schema) != schema_of(TABLES):
                raise HeaderError("its tables are not those of an index", file=str(path))
            query = f"SELECT {names} FROM {table.name} NOT INDEXED ORDER BY rowid"  # noqa: S608
            for number, row in enumerate(database.execute(query), 1):
                check_limit(f"rows of {table.name}", number, MAX_ROWS, file=str(path))
                yield checked_row(table, row)
    except OSError as error:
        raise HeaderError(f"cannot be read ({error.strerror})", file=str(path)) from error
    except (sqlite3.Error, UnicodeError) as error:
        raise HeaderError(f"not a readable index ({error})", file=str(path)) from error
