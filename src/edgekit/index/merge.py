"""Index files -> one index file, in which every fact is as the newest file states it.

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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from edgekit.errors import HeaderError, check_limit
from edgekit.index.database import MAX_HEADER_BYTES, packaged_file
from edgekit.index.records import forms_of, is_id, read_header, read_sizes
from edgekit.index.repositories import MAX_TAGS, Form, is_tag
from edgekit.index.tables import (
    TABLES,
    Cell,
    Row,
    Table,
    as_json,
    checked_row,
    schema_of,
    table_named,
    write_sqlite,
)
from edgekit.index.types import MAX_USES, SCHEMA, SQLITE_NAME, ModelPurpose
from edgekit.units import MIB, Basis

MAX_FILE_BYTES = 256 * MIB  # EdgeKit's own has 4 MB; checking one this large takes a minute
MAX_ROWS = 2_000_000  # of one table; EdgeKit's own has 8,000 names
MAX_CELL_BYTES = MIB  # the longest of EdgeKit's own has 8,000
MAX_UNPACKED_BYTES = 1024 * MIB  # of all headers together, which are unpacked one at a time
MAX_TEXT_CHARS = 2_000
MAX_SCORE = 100_000  # shares are up to 100, Elo ratings up to some thousands; text stays short
MAX_ITEMS = 4_096  # of a list or object in a cell
TOOL = "edgekit index update"

_DATE = re.compile(r"[0-9]{4}(?:-[0-9]{2}(?:-[0-9]{2})?)?")
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"  # no word of a command that begins with a dash
_HUB_ID = re.compile(rf"(?:{_PART}/)?{_PART}")
_TAG = re.compile(rf"{_PART}(?:/{_PART})*(?::{_PART})?")  # of Ollama's library

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


def _score(value: float) -> None:
    _require(abs(value) <= MAX_SCORE)


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
    _require(isinstance(stated, dict) and len(stated) <= MAX_TAGS)
    for tag, size in stated.items():
        _require(is_tag(tag))
        _require(size is None or (type(size) is int and 0 <= size < 2**63))


def _sizes(value: str) -> None:
    read_sizes(json.loads(value))


# Of every column but geometries.header. checked_row has checked the types already.
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
        "uses": _optional(lambda value: _require(0 <= value <= MAX_USES)),
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
        "score": _score,
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
# Tables whose rows belong to a model, with the columns that tell apart what they are about.
_KEYS = {
    "repositories": ("model", "form", "name"),
    "names": ("spelling", "model", "scheme", "level"),
    "evidence": ("model", "benchmark", "date", "setting", "measured_by"),
}
OF_A_MODEL = tuple(_KEYS)
_MODEL = {"models": "id", **dict.fromkeys(OF_A_MODEL, "model")}
# Facts of a model that its geometry implies.
FACTS_OF_GEOMETRY = (
    "architecture", "parameters", "active_parameters", "native_context", "vocabulary",
)  # fmt: skip


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
    removed: tuple[str, ...]
    unchanged: int
    built: str


def check_index(path: Path) -> CheckedIndex:
    """Read every row of an index file. Raises HeaderError that says what is wrong with it."""
    facts: dict[Cell, Cell] = {row[0]: row[1] for row in _rows(path, table_named("meta"))}
    if facts.get("schema") != str(SCHEMA):
        schema = str(facts.get("schema", "unknown"))[:20]
        raise HeaderError(
            f"schema {schema}; this version of EdgeKit reads {SCHEMA}", file=str(path)
        )
    built = facts.get("built")
    if not isinstance(built, str) or not is_day(built):
        raise HeaderError("meta.built is not a date", file=str(path))
    if built > (latest := _latest_day()):
        raise HeaderError(
            f"meta.built is {built}, after {latest}: check this machine's clock", file=str(path)
        )
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
        position = _column(table, _MODEL[table])
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


def is_day(text: str) -> bool:
    """Whether it is a date like 2026-11-18."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _latest_day() -> str:
    """Tomorrow: somewhere it is that day already. A later index would stay newer than all that are published.

    On a machine whose clock is behind, the day after EdgeKit's own index.
    """
    own = date.fromisoformat(packaged_file().facts["built"])
    return (max(datetime.now(tz=UTC).date(), own) + timedelta(days=1)).isoformat()


def merge(files: Sequence[CheckedIndex], used: CheckedIndex, target: Path) -> Merged:
    """Write an index with every model of the files, each fact as the newest file that states it has it.

    A fact that a newer file does not state stays, with its source; of files of the same day the first counts as newer.
    `used` is the index that the result is compared with, and whose ids are kept. Raises OutputError if the target
    cannot be written.
    """
    ordered = sorted(files, key=lambda file: file.built, reverse=True)
    built = ordered[0].built
    ids = _common_ids([used, *(file for file in ordered if file is not used)])
    writer = _Writer(files=[(file, ids[file.path]) for file in ordered])
    facts: list[Row] = [("built", built), ("schema", str(SCHEMA)), ("tool", TOOL)]
    tables: dict[str, Iterator[Row]] = {"models": writer.models()}
    tables |= {name: writer.rows_of_models(name) for name in OF_A_MODEL}
    tables |= {
        "geometries": writer.geometries(),
        "losses": writer.losses(),
        "sources": writer.sources(),  # after all tables that name them
        "meta": iter(facts),
    }
    write_sqlite(target, tables)
    result = check_index(target)
    common = result.models.keys() & used.models.keys()
    changed = {name for name in common if result.content[name] != used.content[name]}
    return Merged(
        added=tuple(sorted(result.models.keys() - common)),
        changed=tuple(sorted(changed)),
        removed=tuple(sorted(used.models.keys() - common)),
        unchanged=len(common) - len(changed),
        built=built,
    )


def _common_ids(files: Sequence[CheckedIndex]) -> Mapping[Path, Mapping[str, str]]:
    """By file: the id of each of its models in the merged index, which is that of the first file with the model.

    A model is the same if its repository is. Its id decides only where a file states no repository: an id is made from
    the name alone, and a file may give a known one to another repository, which then gets an id with its owner.
    """
    ids: dict[Path, Mapping[str, str]] = {}
    repository_of: dict[str, str] = {}  # by id
    id_at: dict[str, str] = {}  # by repository

    def common_id(name: str, repository: str) -> str:
        known = repository_of.get(name)
        if known == repository:
            return name
        if repository in id_at:
            return id_at[repository]
        if not known or not repository:
            return name
        owner, _, base = repository.rpartition("/")
        return f"{base}@{owner}"

    for file in files:
        own = {name: common_id(name, repository) for name, repository in file.models.items()}
        for name, repository in file.models.items():
            repository_of[own[name]] = repository_of.get(own[name]) or repository
            if repository:
                id_at.setdefault(repository, own[name])
        ids[file.path] = own
    return ids


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
                    stated = _source_of_facts(cell)
                    cells[i] = repr(sorted((fact, self.sources[n]) for fact, n in stated.items()))
                elif column.name == "sources":
                    cells[i] = repr([self.sources[number] for number in json.loads(str(cell))])
        except KeyError as error:
            text = f"a row of {table} has the unknown source or geometry {error}"
            raise HeaderError(text, file=str(self.path)) from error
        return tuple(cells)


def _source_of_facts(cell: object) -> dict[str, int]:
    """'{"3":["licence"]}' -> {"licence": 3}"""
    stated = json.loads(str(cell or "{}"))
    return {fact: int(number) for number, facts in stated.items() for fact in facts}


@dataclass(slots=True, kw_only=True)
class _Writer:
    """The rows of the merged file. Sources and geometries get their numbers when a row first uses them."""

    files: Sequence[tuple[CheckedIndex, Mapping[str, str]]]  # the newest first; id -> merged id
    _sources: dict[Row, int] = field(default_factory=dict)
    _geometries: dict[str, int] = field(default_factory=dict)

    def models(self) -> Iterator[Row]:
        """One row for each model. Rows of models that are in several files wait in memory for their last one."""
        table = table_named("models")
        columns = [column.name for column in table.columns]
        left = Counter(name for _, ids in self.files for name in ids.values())
        waiting: dict[str, list[dict[str, Any]]] = {}
        for file, ids in self.files:
            for row in _rows(file.path, table):
                record: dict[str, Any] = dict(zip(columns, row, strict=True))
                name = record["id"] = ids[record["id"]]
                if record["geometry"] is not None:
                    record["geometry"] = file.geometries[record["geometry"]]
                stated = _source_of_facts(record["sources"])
                record["sources"] = {fact: file.sources[n] for fact, n in stated.items()}
                waiting.setdefault(name, []).append(record)
                left[name] -= 1
                if not left[name]:
                    merged = _merged_model(waiting.pop(name))
                    if merged["geometry"] is not None:
                        merged["geometry"] = self._geometry(merged["geometry"])
                    merged["sources"] = self._facts_by_source(merged["sources"])
                    yield tuple(merged[column] for column in columns)

    def rows_of_models(self, name: str) -> Iterator[Row]:
        """The rows of a table that no newer file has with the same key."""
        table = table_named(name)
        position = _column(name, _MODEL[name])
        key = [_column(name, column) for column in _KEYS[name]]
        newer: set[int] = set()  # hashes, because two million keys would take a gigabyte
        for file, ids in self.files:
            own: set[int] = set()
            for row in _rows(file.path, table):
                renamed = (*row[:position], ids[str(row[position])], *row[position + 1 :])
                hashed = hash(tuple(str(renamed[i]).lower() for i in key))
                if hashed not in newer:
                    own.add(hashed)
                    yield self._renumbered(table, renamed, file)
            newer |= own

    def geometries(self) -> Iterator[Row]:
        """Those that models use. Their fingerprint is made again from their content."""
        written: set[str] = set()
        for file, _ in self.files:
            for row, content in _geometries(file.path):
                if content in self._geometries and content not in written:
                    written.add(content)
                    yield (self._geometries[content], content, *row[2:])

    def losses(self) -> Iterator[Row]:
        """Those of the newest file that has any."""
        table = table_named("losses")
        for file, _ in self.files:
            rows = [self._renumbered(table, row, file) for row in _rows(file.path, table)]
            if rows:
                yield from rows
                return

    def sources(self) -> Iterator[Row]:
        for source, number in self._sources.items():
            yield (number, *source)

    def _renumbered(self, table: Table, row: Row, file: CheckedIndex) -> Row:
        """The row of a table other than models."""
        cells = list(row)
        for i, column in enumerate(table.columns):
            cell = cells[i]
            if cell is not None and column.name == "source":
                cells[i] = self._source(file.sources[_whole(cell)])
            elif cell is not None and column.name == "sources":
                cells[i] = as_json([self._source(file.sources[n]) for n in json.loads(str(cell))])
        return tuple(cells)

    def _geometry(self, content: str) -> int:
        return self._geometries.setdefault(content, len(self._geometries) + 1)

    def _source(self, source: Row) -> int:
        return self._sources.setdefault(source, len(self._sources) + 1)

    def _facts_by_source(self, source_of: Mapping[str, Row]) -> str:
        facts: dict[str, list[str]] = {}
        for fact, source in sorted(source_of.items()):
            facts.setdefault(str(self._source(source)), []).append(fact)
        return as_json(facts)


def _merged_model(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One record of a model from those of several files, the newest first: each fact from the first that states it.

    An exact geometry comes before an assumed one, and the facts that are read from a geometry come with it.
    """
    newest = range(len(records))
    best = min(
        newest,
        key=lambda i: (records[i]["geometry"] is None, records[i]["basis"] != Basis.EXACT.value),
    )
    best_first = (best, *(i for i in newest if i != best))
    chosen = {"geometry": best, "basis": best, "sizes": best}  # fact -> the record it is taken from
    # a crawl knows only the downloads from its hub
    chosen["uses"] = max(newest, key=lambda i: records[i]["uses"] or 0.0)
    for fact in records[0].keys() - {*chosen, "sources"}:
        order = best_first if fact in FACTS_OF_GEOMETRY else newest
        chosen[fact] = next((i for i in order if records[i][fact] not in {None, ""}), order[0])
    merged = {fact: records[i][fact] for fact, i in chosen.items() if fact in records[i]}
    merged["sources"] = {
        fact: source
        for i in newest
        for fact, source in records[i]["sources"].items()
        if chosen.setdefault(fact, i) == i
    }
    return merged


def _whole(value: object) -> int:
    if type(value) is not int:
        raise HeaderError(f"{value!r:.40} is not a whole number", file=SQLITE_NAME)
    return value


def _column(table: str, name: str) -> int:
    return [column.name for column in table_named(table).columns].index(name)


def check_cells(table: str, cells: Mapping[str, Cell]) -> None:
    """Raises HeaderError that names the first of these cells of a row that `check_index` would refuse."""
    for column, cell in cells.items():
        try:
            _CHECKS[table][column](cell)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            reason = f": {error}" if str(error) else ""
            raise HeaderError(f"{column} is {cell!r:.80}{reason}") from error


def _rows(path: Path, table: Table) -> Iterator[Row]:
    """The rows of a table, each of them checked. Raises HeaderError."""
    columns = [(i, c.name) for i, c in enumerate(table.columns) if c.name in _CHECKS[table.name]]
    for number, row in enumerate(_untrusted_rows(path, table), 1):
        try:
            check_cells(table.name, {column: row[i] for i, column in columns})
        except HeaderError as error:
            text = f"row {number:,} of {table.name}: {error.what}"
            raise HeaderError(text, file=str(path)) from error
        yield row


def _geometries(path: Path) -> Iterator[tuple[Row, str]]:
    """The rows of geometries, each with a hash of its content. Raises HeaderError if a header cannot be read."""
    unpacked_bytes = 0
    for row in _rows(path, table_named("geometries")):
        number, _, packed, sizes, forms = row
        try:
            text = check_geometry(packed, forms)
        except HeaderError as error:
            raise HeaderError(
                f"header of geometry {number!r}: {error.what}", file=str(path)
            ) from error
        unpacked_bytes += len(text)
        check_limit("bytes of all headers", unpacked_bytes, MAX_UNPACKED_BYTES, file=str(path))
        yield row, hashlib.sha256(repr((text, sizes, forms)).encode()).hexdigest()


def check_geometry(packed: Any, forms: Cell) -> bytes:
    """The unpacked header of a row of geometries. HeaderError if it cannot be read, or is larger than readers allow."""
    try:
        check_limit("bytes", len(packed), MAX_CELL_BYTES)
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, MAX_HEADER_BYTES)
        if not unpacker.eof:
            raise HeaderError(f"cut off, or more than {MAX_HEADER_BYTES:,} bytes unpacked")
        header = read_header(json.loads(text))
    except (ValueError, TypeError, zlib.error, RecursionError) as error:
        raise HeaderError(str(error)) from error
    if forms != ",".join(forms_of(header)):
        raise HeaderError("its forms are not those of its header")
    return text


def _untrusted_rows(path: Path, table: Table) -> Iterator[Row]:
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
            query = f"SELECT {names} FROM {table.name} NOT INDEXED ORDER BY rowid"  # noqa: S608 - our schema
            for number, row in enumerate(database.execute(query), 1):
                check_limit(f"rows of {table.name}", number, MAX_ROWS, file=str(path))
                yield checked_row(table, row)
    except OSError as error:
        raise HeaderError(f"cannot be read ({error.strerror})", file=str(path)) from error
    except (sqlite3.Error, UnicodeError) as error:
        raise HeaderError(f"not a readable index ({error})", file=str(path)) from error
