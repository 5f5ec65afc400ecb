"""A SQLite file of the user's own data, in the data folder.

A writer locks the file first (BEGIN IMMEDIATE) and waits for other writers, so no change is lost. A process that dies
leaves the state before its transaction.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.errors import HeaderError, SourceError, one_line
from edgekit.sources.folders import create_data_folder, data_folder

if TYPE_CHECKING:
    import sqlite3

WAIT_S = 20.0  # for another writer
WORK_S = 5.0  # reading or changing a valid file takes far less
_STEPS = 10_000  # instructions of SQLite's virtual machine between checks of the clock
_PRIVATE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDatabase:
    """What is in the file, and what to say if it is damaged."""

    name: str  # of the file
    purpose: str  # what it is for: "the index"
    contents: str  # "the list of your models"
    remedy: str  # after the damaged file was moved away: "add your models again"
    schema: int  # PRAGMA user_version
    tables: Mapping[str, tuple[str, ...]]  # name -> columns and constraints, as in CREATE TABLE
    checks_whole_file: bool = True  # read the whole file before each change

    @property
    def path(self) -> Path | None:
        """The file, if it exists."""
        folder = data_folder()
        path = None if folder is None else folder / self.name
        return path if path is not None and os.path.lexists(path) else None

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[sqlite3.Connection | None]:
        """A connection; None if nothing was ever written. Raises SourceError or HeaderError."""
        with self._connect(path, "rw") as database:
            yield database if self._version(database, path) else None

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection that holds the write lock; the block is committed unless it raises.

        A damaged file stays as it is.
        """
        path = create_data_folder(self.purpose) / self.name
        self._create(path)
        with self._connect(path, "rw") as database:
            database.execute("BEGIN IMMEDIATE")
            if self.checks_whole_file:
                (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
                if answer != "ok":
                    raise self.damaged(path, one_line(str(answer), 80))
            if not self._version(database, path):
                for table, declared in self.tables.items():
                    database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(declared)})")
                database.execute(f"PRAGMA user_version = {self.schema}")
            yield database
            database.execute("COMMIT")

    def damaged(self, path: Path, what: object) -> HeaderError:
        return HeaderError(
            f"{self.contents} is damaged ({what}): move the file away and {self.remedy}",
            file=str(path),
        )

    def _create(self, path: Path) -> None:
        """An empty file that only its owner can read, if there is none; one that others can read becomes private."""
        _require_regular(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _PRIVATE)
            try:
                if os.name == "posix" and stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
                    os.fchmod(descriptor, _PRIVATE)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise SourceError(
                f"{path} cannot be written ({error.strerror}): set EDGEKIT_DATA to another folder"
            ) from error

    def _version(self, database: sqlite3.Connection, path: Path) -> int:
        """The schema version of the file; 0: empty. Raises HeaderError for another kind of file."""
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > self.schema:
            raise HeaderError(
                f"created by a newer EdgeKit (schema {version}, this one supports {self.schema}): "
                "upgrade edgekit",
                file=str(path),
            )
        for table, declared in self.tables.items():
            query = "SELECT type FROM sqlite_schema WHERE name = ?"
            kind = database.execute(query, (table,)).fetchone()
            columns = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
            wanted = {words.split()[0] for words in declared if words[0].islower()}
            if version and (kind != ("table",) or not wanted <= columns):
                raise self.damaged(path, f"it has no table of {table}")
        return int(version)

    @contextlib.contextmanager
    def _connect(self, path: Path, mode: str) -> Iterator[sqlite3.Connection]:
        """A connection, closed at the end of the block, which rolls back an open transaction.

        Raises SourceError or HeaderError instead of SQLite's errors.
        """
        import sqlite3

        _require_regular(path)
        try:
            uri = f"{path.absolute().as_uri()}?mode={mode}"
            with contextlib.closing(
                sqlite3.connect(uri, uri=True, timeout=WAIT_S, isolation_level=None)
            ) as database:
                database.execute("PRAGMA trusted_schema = OFF")
                database.execute("PRAGMA foreign_keys = ON")
                database.execute("PRAGMA secure_delete = ON")  # what was deleted is gone
                database.text_factory = lambda raw: raw.decode("utf-8", "replace")
                deadline = time.monotonic() + WAIT_S + WORK_S
                database.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
                yield database
        except sqlite3.OperationalError as error:
            raise SourceError(f"{path} cannot be used ({error}): {_advice(error)}") from error
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise self.damaged(path, error) from error


def _require_regular(path: Path) -> None:
    if os.path.lexists(path) and not path.is_file():  # reading a pipe would never end
        raise SourceError(f"{path} is not a regular file: move it away")


def _advice(error: sqlite3.OperationalError) -> str:
    if "locked" in str(error):
        return "another program is using it; try again when it has finished"
    if "full" in str(error) or "I/O" in str(error):
        return "free some space on its disk, or check the disk"
    return "let it be read and written, or move it away"
