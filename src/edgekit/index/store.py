"""Index entries that the user added, as rows of a SQLite file in the user's data folder.

A writer locks the file first (BEGIN IMMEDIATE) and waits for other writers, so no update is lost. Reading never
raises: a damaged file or row becomes a sentence.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.errors import HeaderError, SourceError, UsageError, one_line
from edgekit.index.records import MAX_RECORD_CHARS, read_record, record_of
from edgekit.index.types import Entry
from edgekit.sources.folders import create_data_folder, data_folder

if TYPE_CHECKING:
    import sqlite3


SCHEMA = 1  # PRAGMA user_version
NAME = "catalog.db"
MAX_ROWS = 10_000
WAIT_S = 20.0  # for another writer
WORK_S = 5.0  # reading or changing a valid file takes far less
_STEPS = 10_000  # instructions of SQLite's virtual machine between checks of the clock
_TABLE = "CREATE TABLE IF NOT EXISTS entries (id TEXT PRIMARY KEY, entry TEXT NOT NULL)"


def stored_entries() -> Iterator[Entry | str]:
    """An entry for each row, a sentence for each one that cannot be read, or one for the whole file."""
    folder = data_folder()
    path = folder / NAME if folder is not None else None
    if path is None or not os.path.lexists(path):
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
    with _connect(path, "rw") as database:
        if not _version(database, path):
            return []  # created, but nothing written yet
        return database.execute(query).fetchall()


def save_entry(entry: Entry) -> bool:
    """Saves an entry, replacing one with the same id and reference. Returns whether it is new.

    UsageError if the id belongs to another reference; SourceError or HeaderError if it could not be written.
    """
    record = record_of(entry)
    if len(record) > MAX_RECORD_CHARS:
        raise HeaderError(f"{entry.id}: its header is too long to store")
    with _transaction() as database:
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
    folder = data_folder()
    if folder is None or not os.path.lexists(folder / NAME):
        return False
    with _transaction() as database:
        return database.execute("DELETE FROM entries WHERE id = ?", (name,)).rowcount > 0


@contextlib.contextmanager
def _transaction() -> Iterator[sqlite3.Connection]:
    """A connection that holds the write lock; the block is committed unless it raises.

    A damaged file stays as it is.
    """
    path = create_data_folder("the index") / NAME
    with _connect(path, "rwc") as database:
        database.execute("BEGIN IMMEDIATE")
        (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            raise _damaged(path, one_line(str(answer), 80))
        if not _version(database, path):
            database.execute(_TABLE)
            database.execute(f"PRAGMA user_version = {SCHEMA}")
        yield database
        database.execute("COMMIT")


def _version(database: sqlite3.Connection, path: Path) -> int:
    """The schema version of the file; 0: empty."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA:
        raise HeaderError(
            f"created by a newer EdgeKit (schema {version}, this one supports {SCHEMA}): "
            "upgrade edgekit",
            file=str(path),
        )
    kind = database.execute("SELECT type FROM sqlite_schema WHERE name = 'entries'").fetchone()
    columns = {row[1] for row in database.execute("PRAGMA table_info(entries)")}
    if version and (kind != ("table",) or not {"id", "entry"} <= columns):
        raise _damaged(path, "it has no table of models")
    return int(version)


def _advice(error: sqlite3.OperationalError) -> str:
    if "locked" in str(error):
        return "another program is using it; try again when it has finished"
    if "full" in str(error) or "I/O" in str(error):
        return "free some space on its disk, or check the disk"
    return "let it be read and written, or move it away"


def _damaged(path: Path, what: object) -> HeaderError:
    return HeaderError(
        f"the list of your models is damaged ({what}): move the file away and add your models again",
        file=str(path),
    )


@contextlib.contextmanager
def _connect(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """A connection, closed at the end of the block, which rolls back an open transaction.

    Raises SourceError or HeaderError instead of SQLite's errors.
    """
    import sqlite3

    if os.path.lexists(path) and not path.is_file():  # reading a pipe would never end
        raise SourceError(f"{path} is not a regular file: move it away")
    try:
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        with contextlib.closing(
            sqlite3.connect(uri, uri=True, timeout=WAIT_S, isolation_level=None)
        ) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            deadline = time.monotonic() + WAIT_S + WORK_S
            database.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            yield database
    except sqlite3.OperationalError as error:
        raise SourceError(f"{path} cannot be used ({error}): {_advice(error)}") from error
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise _damaged(path, error) from error
