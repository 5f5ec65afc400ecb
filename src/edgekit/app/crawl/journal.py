"""Everything a crawl has fetched, in one SQLite file of the output folder. A batch is in it whole or not at all.

SQLite's write-ahead log is what makes that true of a process that is killed at any moment. The other steps read the
journal, never what is in memory, so a continued crawl is the same as one that was not interrupted.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgekit.app.crawl.types import FetchTask, GeometrySource, Listed, Outcome, Status, TaskKind
from edgekit.errors import HeaderError, OutputError, UsageError
from edgekit.index.tables import as_json

NAME = "journal.sqlite"
SCHEMA = 1
WAIT_S = 5.0  # for the lock, if another crawl is writing: then it is an error
_READ_AT_ONCE = 1_000
_TABLES = """
CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE listed (name TEXT COLLATE NOCASE PRIMARY KEY, position INTEGER NOT NULL, model TEXT COLLATE NOCASE,
  record TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX listed_model ON listed (model);
CREATE TABLE skipped (name TEXT PRIMARY KEY, status TEXT NOT NULL, detail TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tasks (kind TEXT, name TEXT COLLATE NOCASE, candidates TEXT NOT NULL, status TEXT, detail TEXT, found TEXT,
  PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE TABLE geometries (fingerprint TEXT PRIMARY KEY, header BLOB NOT NULL, facts TEXT NOT NULL);
"""


class Journal:
    """The open journal of one folder. Only one process may use it."""

    def __init__(self, path: Path, job: str) -> None:
        """Raises UsageError if the journal is of another crawl or version, or in use."""
        self.path = path
        try:
            self._database = sqlite3.connect(
                path, timeout=WAIT_S, isolation_level=None, cached_statements=64
            )
            # Exclusive: a second process gets an error instead of half of this one's work.
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            with self._transaction():
                (version,) = self._database.execute("PRAGMA user_version").fetchone()
                if not version:
                    for statement in filter(str.strip, _TABLES.split(";")):
                        self._database.execute(statement)
                    self._database.execute(f"PRAGMA user_version = {SCHEMA}")
                    self._put("job", job)
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise UsageError(f"{path.parent}: another build is writing there") from error
            raise OutputError(f"{path}: cannot be written ({error})") from error
        except sqlite3.DatabaseError as error:
            raise HeaderError(
                f"not a journal of a crawl ({error}): give --restart", file=str(path)
            ) from error
        if version not in {0, SCHEMA}:
            self.close()
            raise UsageError(f"{path.parent} has a crawl written by another version: --restart")
        if self.state("job") != job:
            self.close()
            raise UsageError(
                f"{path.parent} has the crawl of another hub or selection: choose another --out, or "
                "discard it with --restart"
            )

    def close(self) -> None:
        self._database.close()

    def state(self, key: str) -> str | None:
        row = self._database.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_state(self, key: str, value: str) -> None:
        with self._transaction():
            self._put(key, value)

    def add_page(
        self,
        listed: Iterable[Listed],
        invalid: Iterable[str],
        *,
        state: tuple[str, str],
        limit: int | None,
    ) -> int:
        """Store a page of the listing together with the state after it. Returns how many repositories were new."""
        with self._transaction():
            (before,) = self._database.execute("SELECT count(*) FROM listed").fetchone()
            for position, item in enumerate(listed, before):
                if limit is not None and position >= limit:
                    break
                row = (item.name, position, as_json(asdict(item)))
                self._database.execute(
                    "INSERT OR IGNORE INTO listed (name, position, record) VALUES (?, ?, ?)", row
                )
            for name in invalid:
                self._skip(name, Status.INVALID, "the hub's entry is malformed")
            self._put(*state)
            (after,) = self._database.execute("SELECT count(*) FROM listed").fetchone()
        return int(after - before)

    def count(self, table: str, condition: str = "1") -> int:
        (number,) = self._database.execute(
            f"SELECT count(*) FROM {table} WHERE {condition}"  # noqa: S608 - constants of this package
        ).fetchone()
        return int(number)

    def repositories(self) -> Iterator[Listed]:
        """Every listed repository, by name; their files from the task that fetched them, if there was one."""
        query = """SELECT l.name, l.record, t.found FROM listed l LEFT JOIN tasks t
          ON t.kind = 'files' AND t.name = l.name AND t.status = 'done'"""
        for _, record, files in self._by_name(query, "l.name"):
            yield _read_listed(record, files)

    def repositories_of_models(self) -> Iterator[tuple[str, list[Listed]]]:
        """Every model with its repositories, both by name. Only after `set_models`."""
        query = """SELECT l.model, l.record, t.found FROM listed l LEFT JOIN tasks t
          ON t.kind = 'files' AND t.name = l.name AND t.status = 'done'
          WHERE l.model IS NOT NULL ORDER BY l.model, l.name"""
        model, group = None, list[Listed]()
        for name, record, files in self._database.execute(query):
            if group and name.lower() != str(model).lower():
                yield str(model), group
                group = []
            model = model if group else name
            group.append(_read_listed(record, files))
        if group:
            yield str(model), group

    def listed(self, name: str) -> Listed | None:
        row = self._database.execute("SELECT record FROM listed WHERE name = ?", (name,)).fetchone()
        return None if row is None else _read_listed(row[0], None)

    def add_tasks(self, tasks: Iterable[FetchTask], *, state: tuple[str, str]) -> None:
        """Store tasks together with the state after it."""
        with self._transaction():  # a task whose candidates have changed is open again
            for task in tasks:
                text = as_json([[item.repository, item.paths] for item in task.candidates])
                self._database.execute(
                    "INSERT INTO tasks (kind, name, candidates) VALUES (?, ?, ?) ON CONFLICT DO UPDATE "
                    "SET candidates = excluded.candidates, status = NULL WHERE candidates <> excluded.candidates",
                    (task.kind.value, task.name, text),
                )
            self._put(*state)

    def set_models(self, models: Iterable[tuple[str, str]]) -> None:
        """Store which model each repository belongs to."""
        with self._transaction():
            self._database.executemany(
                "UPDATE listed SET model = ? WHERE name = ?",
                ((model, name) for name, model in models),
            )

    def open_tasks(self, kind: TaskKind) -> Iterator[FetchTask]:
        """The tasks without an outcome, by name. More may be stored while this is read."""
        query = "SELECT t.name, t.candidates FROM tasks t WHERE t.kind = ? AND t.status IS NULL"
        for name, text in self._by_name(query, "t.name", kind.value):
            candidates = tuple(
                GeometrySource(repository=repository, paths=tuple(paths))
                for repository, paths in json.loads(text)
            )
            yield FetchTask(kind=kind, name=name, candidates=candidates)

    def add_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        """Store a batch. A task whose server could not be reached stays open."""
        with self._transaction():
            for outcome in outcomes:
                if outcome.geometry is not None:
                    geometry = outcome.geometry
                    self._database.execute(
                        "INSERT OR IGNORE INTO geometries VALUES (?, ?, ?)",
                        (geometry.fingerprint, geometry.header, geometry.facts),
                    )
                is_open = outcome.status is Status.UNREACHABLE
                self._database.execute(
                    "UPDATE tasks SET status = ?, detail = ?, found = ? WHERE kind = ? AND name = ?",
                    (
                        None if is_open else outcome.status.value,
                        _printable(outcome.detail),
                        outcome.found,
                        outcome.kind.value,
                        outcome.name,
                    ),
                )

    def outcome(self, kind: TaskKind, name: str) -> Outcome | None:
        """The outcome of a task; None if there is no such task. One without an answer is UNREACHABLE."""
        row = self._database.execute(
            "SELECT status, detail, found FROM tasks WHERE kind = ? AND name = ?",
            (kind.value, name),
        ).fetchone()
        if row is None:
            return None
        status = Status.UNREACHABLE if row[0] is None else Status(row[0])
        return Outcome(
            kind=kind, name=name, status=status, detail=row[1] or "", found=row[2] or "{}"
        )

    def geometries(self) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
        """Fingerprint, header and facts of each, by fingerprint."""
        query = "SELECT g.fingerprint, g.header, g.facts FROM geometries g WHERE 1"
        for fingerprint, header, facts in self._by_name(query, "g.fingerprint"):
            yield fingerprint, header, json.loads(facts)

    def facts(self, fingerprint: str) -> dict[str, Any]:
        query = "SELECT facts FROM geometries WHERE fingerprint = ?"
        facts: dict[str, Any] = json.loads(
            self._database.execute(query, (fingerprint,)).fetchone()[0]
        )
        return facts

    def skipped(self) -> Iterator[tuple[str, str, str]]:
        """Name, status and detail of each repository that has no part in the index, by name."""
        yield from self._by_name(
            "SELECT s.name, s.status, s.detail FROM skipped s WHERE 1", "s.name"
        )

    def _by_name(self, query: str, name: str, *values: str) -> Iterator[tuple[Any, ...]]:
        """The rows in the order of their first column, a thousand at a time: others may write in between."""
        if " WHERE " not in query:
            query += " WHERE 1"
        last = ""
        while True:
            page = f"{query} AND {name} > ? ORDER BY {name} LIMIT {_READ_AT_ONCE}"
            rows = self._database.execute(page, (*values, last)).fetchall()
            if not rows:
                return
            yield from rows
            last = rows[-1][0]

    def _skip(self, name: str, status: Status, detail: str) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO skipped VALUES (?, ?, ?)",
            (name, status.value, _printable(detail)),
        )

    def _put(self, key: str, value: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All that the block writes, or nothing. OutputError if the disk is full."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise
            raise OutputError(f"{self.path}: cannot be written ({error})") from error


def discard(path: Path) -> None:
    """Delete a journal and what SQLite keeps next to it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:500]


def _read_listed(record: str, files: str | None) -> Listed:
    """The repository of a record; with the files that were fetched for it."""
    raw = json.loads(record)
    pairs = raw["files"] if files is None else json.loads(files)
    return Listed(
        **{
            **raw,
            "tags": tuple(raw["tags"]),
            "bases": tuple(map(tuple, raw["bases"])),
            "dtypes": tuple(map(tuple, raw["dtypes"])),
            "files": None if pairs is None else tuple((path, size) for path, size in pairs),
        }
    )
