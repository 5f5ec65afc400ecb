"""Index entries that the user added, as rows of a SQLite file in the user's data folder.

Reading never raises: a damaged file or row becomes a sentence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from edgekit.errors import HeaderError, SourceError, UsageError
from edgekit.index.records import MAX_RECORD_CHARS, read_record, record_of
from edgekit.index.types import Entry
from edgekit.sources.user_database import UserDatabase

NAME = "catalog.db"
MAX_ROWS = 10_000
_FILE = UserDatabase(
    name=NAME,
    purpose="the index",
    contents="the list of your models",
    remedy="add your models again",
    schema=1,
    tables={"entries": ("id TEXT PRIMARY KEY", "entry TEXT NOT NULL")},
)


def stored_entries() -> Iterator[Entry | str]:
    """An entry for each row, a sentence for each one that cannot be read, or one for the whole file."""
    path = _FILE.path
    if path is None:
        return
    try:
        rows = _rows(path)
    except (HeaderError, SourceError) as error:
        yield f"{error}; the models you added are left out"
        return
    for name, record in rows:
        try:
            yield _read_row(name, record, path)
        except HeaderError as error:
            yield f"{error}; `edgekit index remove` deletes it"


def _read_row(name: object, record: object, path: Path) -> Entry:
    """The entry of a row. Raises HeaderError if it is damaged."""
    where = f"{path}, entry {str(name)[:60]!r}"
    if record is None:
        raise HeaderError(f"more than {MAX_RECORD_CHARS:,} characters", file=where)
    entry = read_record(record, where=where)
    if entry.id != name or not entry.reference:
        raise HeaderError("its row has a different name, or no source", file=where)
    return entry


def _rows(path: Path) -> list[tuple[object, object]]:
    """The id and record of every row; the record is None if it is too long."""
    query = f"SELECT id, CASE WHEN length(entry) <= {MAX_RECORD_CHARS} THEN entry END FROM entries ORDER BY id LIMIT {MAX_ROWS}"  # noqa: S608, E501
    with _FILE.reading(path) as database:
        return [] if database is None else database.execute(query).fetchall()


def save_entry(entry: Entry) -> bool:
    """Saves an entry, replacing one with the same id and reference. Returns whether it is new.

    UsageError if the id belongs to another reference; SourceError or HeaderError if it could not be written.
    """
    record = record_of(entry)
    if len(record) > MAX_RECORD_CHARS:
        raise HeaderError(f"{entry.id}: its header is too long to store")
    with _FILE.writing() as database:
        query = "SELECT id, entry FROM entries WHERE id = ?"
        old_row = database.execute(query, (entry.id,)).fetchone()
        old_entry = None
        if old_row is not None:
            with contextlib.suppress(HeaderError):  # a damaged entry may be replaced
                old_entry = _read_row(old_row[0], old_row[1], Path(NAME))
        if old_entry is not None and old_entry.reference != entry.reference:
            raise UsageError(
                f"{entry.id} already exists, from {old_entry.reference}: use --id to give this "
                "one another name"
            )
        database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (entry.id, record))
    return old_row is None


def forget_entry(name: str) -> bool:
    """Deletes an entry. Returns whether it existed."""
    if _FILE.path is None:
        return False
    with _FILE.writing() as database:
        return database.execute("DELETE FROM entries WHERE id = ?", (name,)).rowcount > 0
