"""Reads the index file: models, repositories, names and evidence (tables.py lists the columns).

The file is EdgeKit's own, or a newer one that `edgekit index update` stored in the user's data folder. It is opened at
the first question and read row by row: a look-up does not read the other models.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgekit.errors import HeaderError, one_line
from edgekit.index.records import read_header, read_sizes
from edgekit.index.types import SCHEMA, SQLITE_NAME, Entry, ModelPurpose, Size, Source, StoredHeader
from edgekit.sources.folders import data_folder
from edgekit.units import Basis

PACKAGED = Path(__file__).with_name(SQLITE_NAME)
MAX_HEADER_BYTES = 4 * 1024 * 1024  # of one unpacked header; the longest packaged one has 60 KB
CACHED_HEADERS = 64

_PURPOSES = {kind.value: kind for kind in ModelPurpose}
_SOURCE = "SELECT id, name, basis, licence, date FROM sources"
_ENTRY = """SELECT m.id, m.repository, m.publisher, m.family, m.architecture, m.parameters, m.active_parameters,
 m.native_context, m.vocabulary, m.kinds, m.licence, m.released, m.not_before, m.base_model, m.uses, m.basis,
 m.geometry, g.forms, g.sizes, m.sources FROM models m LEFT JOIN geometries g ON g.id = m.geometry"""


class IndexFile:
    """One index file, opened read-only. Threads may share it."""

    def __init__(self, path: Path) -> None:
        """Raises HeaderError if it cannot be opened or has another schema."""
        self.path = path
        self._sources: dict[int, Source] = {}  # read so far, by number
        self._lock = threading.Lock()
        try:
            # immutable: no lock files next to an installed package; a new file replaces the old one by name
            uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        except (sqlite3.Error, ValueError) as error:
            raise self._damaged(error) from error
        self.facts: Mapping[str, str] = dict(self.rows("SELECT key, value FROM meta LIMIT 100"))
        if self.facts.get("schema") != str(SCHEMA):
            schema = self.facts.get("schema", "unknown")
            raise HeaderError(
                f"schema {schema}; this version of EdgeKit reads {SCHEMA}", file=str(path)
            )

    def rows(self, query: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Raises HeaderError if the file is damaged."""
        try:
            with self._lock:
                return self._connection.execute(query, tuple(values)).fetchall()
        except (sqlite3.Error, UnicodeError, OverflowError) as error:
            raise self._damaged(error) from error

    def check_pages(self) -> None:
        """Read the whole file. Raises HeaderError if a page is damaged."""
        ((answer,),) = self.rows("PRAGMA quick_check(1)")
        if answer != "ok":
            raise self._damaged(ValueError(one_line(str(answer))))

    def _damaged(self, error: Exception) -> HeaderError:
        is_copy = self.path != PACKAGED
        advice = "move it away and run edgekit index update" if is_copy else "reinstall EdgeKit"
        return HeaderError(f"the index cannot be read ({error}): {advice}", file=str(self.path))

    def entries(self, condition: str = "", values: Iterable[Any] = ()) -> list[Entry]:
        """The models that meet an SQL condition. Raises HeaderError if a row is damaged."""
        if not condition:
            self.sources()  # all of them at once
        return [self._entry(row) for row in self.rows(f"{_ENTRY} {condition}", values)]

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        try:
            (
                name, repository, publisher, family, architecture, parameters, active, context, vocabulary, kinds,
                licence, released, not_before, base_model, uses, basis, geometry, forms, sizes, sources,
            ) = row  # fmt: skip
            return Entry(
                id=name,
                repository=repository,
                publisher=publisher,
                family=family,
                architecture=architecture or "",
                parameters=parameters,
                active_parameters=active,
                native_context=context,
                vocabulary=vocabulary,
                kinds=tuple(_PURPOSES[kind] for kind in kinds.split(",") if kind),
                licence=licence,
                released=released,
                not_before=not_before,
                base_model=base_model,
                uses=uses,
                sizes=_sizes(sizes) if sizes else (),
                basis=Basis(basis),
                forms=tuple(forms.split(",")) if forms else (),
                geometry=geometry if forms else None,
                sources=self._sources_of(sources),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._damaged(error) from error

    def _sources_of(self, text: str) -> Mapping[str, Source]:
        """'{"3": ["licence"]}' -> the source of every fact."""
        return MappingProxyType(
            {
                fact: self.source(int(key))
                for key, facts in json.loads(text).items()
                for fact in facts
            }
        )

    def source(self, number: int) -> Source:
        """The source of this number. Raises KeyError if there is none."""
        if number not in self._sources:
            self._read_sources("WHERE id = ?", (number,))
        return self._sources[number]

    def sources(self) -> Mapping[int, Source]:
        """All sources by number."""
        self._read_sources()
        return self._sources

    def _read_sources(self, condition: str = "", values: Iterable[Any] = ()) -> None:
        for number, *fields in self.rows(f"{_SOURCE} {condition}", values):
            name, basis, licence, date = fields
            try:
                known = Basis(basis)
            except ValueError as error:
                raise self._damaged(error) from error
            self._sources[number] = Source(text=name, basis=known, licence=licence, date=date)

    @lru_cache(maxsize=CACHED_HEADERS)  # noqa: B019
    def header(self, geometry: int) -> StoredHeader:
        """The header of this number. Raises HeaderError if there is none, or it is damaged."""
        rows = self.rows("SELECT header FROM geometries WHERE id = ?", (geometry,))
        try:
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(rows[0][0], MAX_HEADER_BYTES)
            return read_header(json.loads(text if unpacker.eof else b""))  # cut off, or too long
        except (ValueError, TypeError, IndexError, zlib.error, RecursionError) as error:
            raise HeaderError(f"header {geometry}: {error}", file=str(self.path)) from error


@lru_cache(maxsize=4096)
def _sizes(text: str) -> tuple[Size, ...]:
    return read_sizes(json.loads(text))


@cache
def _open(path: str, _stamp: tuple[int, int]) -> IndexFile:
    """The index at this path; the stamp changes when the file is replaced."""
    return IndexFile(Path(path))


@cache
def _open_copy(path: str, stamp: tuple[int, int]) -> IndexFile:
    """The user's copy of the index. Every page is read once: what replaces EdgeKit's own has to be whole."""
    copy = _open(path, stamp)
    copy.check_pages()
    return copy


def packaged_file() -> IndexFile:
    """EdgeKit's own index. Raises HeaderError if it cannot be read."""
    return _open(str(PACKAGED), (0, 0))


def index_file() -> IndexFile:
    """The index that answers: the user's updated copy if it is newer than EdgeKit's own, else EdgeKit's own.

    Raises HeaderError if neither can be read.
    """
    global _last  # noqa: PLW0603 - looking for the user's copy takes 15 microseconds: too long for each of 2,000 models
    _last = _used()[0]
    return _last


def last_index_file() -> IndexFile:
    """What `index_file` returned when it was last called: the index that the entries were read from."""
    return _last or index_file()


_last: IndexFile | None = None


def index_problem() -> str | None:
    """Why one of the two indexes is not used; None if there is nothing to mend."""
    return _used()[1]


def _used() -> tuple[IndexFile, str | None]:
    folder = data_folder()
    path = None if folder is None else folder / SQLITE_NAME
    if path is None or not os.path.lexists(path):
        return packaged_file(), None
    if path.exists() and not path.is_file():  # opening a pipe would never end
        return (
            packaged_file(),
            f"{path} is not a regular file: move it away; EdgeKit's own index is used",
        )
    try:
        status = path.stat()
        updated = _open_copy(str(path), (status.st_size, status.st_mtime_ns))
    except OSError as error:
        return packaged_file(), f"{path}: {error.strerror}; EdgeKit's own index is used"
    except HeaderError as error:
        return packaged_file(), f"{error}; EdgeKit's own index is used"
    try:
        packaged = packaged_file()
    except HeaderError as error:
        return updated, f"{error}; your copy of the index is used"
    if updated.facts["built"] >= packaged.facts["built"]:
        return updated, None
    why = f"{path} is older than EdgeKit's own index, which is used: run edgekit index update"
    return packaged, why


def header_of(entry: Entry) -> StoredHeader:
    """What the model is rebuilt from. Raises HeaderError if it is damaged, or the entry has none."""
    if entry.header is not None:
        return entry.header
    if entry.geometry is None:
        raise HeaderError("no geometry is known", file=entry.id)
    return index_file().header(entry.geometry)
