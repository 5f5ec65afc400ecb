"""The tables of the index, as rows: written to SQLite and, one file per table, to Parquet.

Same rows, same bytes: rows are sorted, nothing is dated except by a row of `meta`, and each file is written in one
transaction. (A newer SQLite or pyarrow may write other bytes for the same rows.)
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.errors import HeaderError, MissingExtraError, OutputError
from edgekit.index.types import SCHEMA
from edgekit.units import MIB

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID = 0x45644B74  # "EdKt", so that `file` can tell it from other SQLite files
CHECKSUMS_NAME = "SHA256SUMS"
ROWS_PER_GROUP = 65_536  # of a Parquet file: about 10 MB of names in memory at once
# Headers are some 10 KB each, so a group by rows alone could need 600 MB.
MAX_GROUP_BYTES = 32 * MIB

Cell = str | int | float | bytes | None
Row = tuple[Cell, ...]


class Kind(enum.Enum):
    """The type of a column: SQLite's name for it."""

    TEXT = "TEXT"
    INT = "INTEGER"
    REAL = "REAL"
    BLOB = "BLOB"


_TYPES: dict[Kind, tuple[type, ...]] = {
    Kind.TEXT: (str,),
    Kind.INT: (int,),
    Kind.REAL: (float, int),
    Kind.BLOB: (bytes,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    kind: Kind
    required: bool = False
    unique: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, and the indexes it has besides those of its unique columns. Rows are sorted by all columns but blobs."""

    name: str
    columns: tuple[Column, ...]
    indexed: tuple[str, ...] = ()

    @property
    def order(self) -> str:
        """For ORDER BY. A table with a blob has a unique column before it."""
        return ", ".join(column.name for column in self.columns if column.kind is not Kind.BLOB)


def _table(name: str, columns: str, *, indexed: tuple[str, ...] = ()) -> Table:
    """The table of a text like "id:TEXT! model:TEXT* uses:REAL": `*` is required, `!` required and unique."""
    cells = (text.partition(":") for text in columns.split())
    return Table(
        name=name,
        columns=tuple(
            Column(
                name=column,
                kind=Kind[kind.rstrip("!*")],
                required=kind.endswith(("!", "*")),
                unique=kind.endswith("!"),
            )
            for column, _, kind in cells
        ),
        indexed=indexed,
    )


TABLES = (
    _table(
        "models",
        "id:TEXT! repository:TEXT publisher:TEXT family:TEXT kinds:TEXT architecture:TEXT parameters:INT"
        " active_parameters:INT native_context:INT vocabulary:INT licence:TEXT released:TEXT not_before:TEXT"
        " base_model:TEXT uses:REAL geometry:INT basis:TEXT sources:TEXT",
        indexed=("repository",),
    ),
    _table("geometries", "id:INT! fingerprint:TEXT! header:BLOB* sizes:TEXT forms:TEXT*"),
    _table(
        "repositories",
        "model:TEXT* form:TEXT* name:TEXT* quants:TEXT listed:INT downloads:INT sources:TEXT",
        indexed=("model", "name"),
    ),
    _table(
        "names",
        "spelling:TEXT* model:TEXT* scheme:TEXT source:INT level:INT*",
        indexed=("spelling",),
    ),
    _table(
        "evidence",
        "model:TEXT* benchmark:TEXT* score:REAL* date:TEXT setting:TEXT measured_by:TEXT source:INT",
        indexed=("model",),
    ),
    _table(
        "losses",
        "what:TEXT* scheme:TEXT* model:TEXT measure:TEXT* value:REAL* error:REAL corpus:TEXT date:TEXT source:INT",
    ),
    _table("sources", "id:INT! name:TEXT* licence:TEXT date:TEXT basis:TEXT*"),
    _table("meta", "key:TEXT! value:TEXT"),
)


def table_named(name: str) -> Table:
    return next(table for table in TABLES if table.name == name)


def write_sqlite(
    path: Path,
    rows: Mapping[str, Iterable[Sequence[Cell]]],
    *,
    tables: Sequence[Table] = TABLES,
) -> None:
    """Write the tables to a new file, which replaces `path` only when it is complete.

    `rows` are those of each table in any order, read once; a table without any is empty. HeaderError for a row that
    does not fit its table, OutputError if the file cannot be written.
    """
    import sqlite3

    partial = path.with_name(f"{path.name}.partial")
    with _output_errors(path):
        partial.unlink(missing_ok=True)
        try:
            with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as database:
                database.execute("PRAGMA journal_mode = OFF")  # the file is dropped on failure
                database.execute("PRAGMA synchronous = OFF")
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {SCHEMA}")
                database.execute("BEGIN")
                for table in tables:
                    _fill(database, table, rows.get(table.name, ()))
                database.execute("COMMIT")
            _sync(partial)
            partial.replace(path)
        except sqlite3.OperationalError as error:
            raise OutputError(f"{path}: cannot be written ({error})") from error
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise HeaderError(f"the rows do not make an index: {error}", file=path.name) from error
        finally:
            partial.unlink(missing_ok=True)


def _fill(database: sqlite3.Connection, table: Table, rows: Iterable[Sequence[Cell]]) -> None:
    """Create the table with these rows, sorted by SQLite, which uses the disk where they are many."""
    columns = ", ".join(map(_declaration, table.columns))
    names = ", ".join(column.name for column in table.columns)
    marks = ", ".join("?" * len(table.columns))
    unsorted = ", ".join(f"{column.name} {column.kind.value}" for column in table.columns)
    database.execute(f"CREATE TABLE {table.name} ({columns})")
    database.execute(f"CREATE TEMP TABLE unsorted_{table.name} ({unsorted})")
    checked = (checked_row(table, row) for row in rows)
    database.executemany(f"INSERT INTO unsorted_{table.name} VALUES ({marks})", checked)  # noqa: S608 - its names are in TABLES
    database.execute(
        f"INSERT INTO {table.name} SELECT {names} FROM unsorted_{table.name} ORDER BY {table.order}"  # noqa: S608 - our schema
    )
    database.execute(f"DROP TABLE unsorted_{table.name}")
    for column in table.indexed:
        database.execute(f"CREATE INDEX {table.name}_{column} ON {table.name} ({column})")


def schema_of(tables: Sequence[Table]) -> set[tuple[str, str, str | None]]:
    """The rows of sqlite_schema of a file with these tables: type, name and SQL."""
    rows: set[tuple[str, str, str | None]] = set()
    for table in tables:
        columns = ", ".join(map(_declaration, table.columns))
        rows.add(("table", table.name, f"CREATE TABLE {table.name} ({columns})"))
        unique = sum(column.unique for column in table.columns)
        rows |= {("index", f"sqlite_autoindex_{table.name}_{i + 1}", None) for i in range(unique)}
        for column in table.indexed:
            sql = f"CREATE INDEX {table.name}_{column} ON {table.name} ({column})"
            rows.add(("index", f"{table.name}_{column}", sql))
    return rows


def _declaration(column: Column) -> str:
    unique = " UNIQUE" if column.unique else ""
    return f"{column.name} {column.kind.value}{' NOT NULL' if column.required else ''}{unique}"


def checked_row(table: Table, row: Sequence[Cell]) -> Row:
    """The row. HeaderError unless each of its cells has the type of its column."""
    if len(row) != len(table.columns):
        raise HeaderError(f"a row of {table.name} has {len(row)} cells, not {len(table.columns)}")
    for column, cell in zip(table.columns, row, strict=True):
        is_valid = not column.required if cell is None else type(cell) in _TYPES[column.kind]
        if not is_valid:
            raise HeaderError(
                f"{table.name}.{column.name} of a row is a {type(cell).__name__}, not {column.kind.value}"
            )
    return tuple(row)


def read_rows(path: Path, table: Table) -> Iterator[Row]:
    """The rows of a table of an index, in the order of the file. HeaderError if it is not an index."""
    import sqlite3

    names = ", ".join(column.name for column in table.columns)
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            for row in database.execute(f"SELECT {names} FROM {table.name} ORDER BY rowid"):  # noqa: S608 - our schema
                yield checked_row(table, row)
    except sqlite3.Error as error:
        raise HeaderError(f"not a readable index ({error})", file=str(path)) from error


def import_pyarrow() -> tuple[Any, Any]:
    """Pyarrow and its Parquet part. Raises MissingExtraError."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        extra = "pip install 'edgekit-models[index]'"
        raise MissingExtraError(f"Parquet needs pyarrow: {extra}") from error
    return pa, pq


def write_parquet(
    source: Path, folder: Path, *, tables: Sequence[Table] = TABLES
) -> tuple[Path, ...]:
    """Write every table of an index in SQLite to a Parquet file of its own, in bounded memory. Returns their paths."""
    pa, pq = import_pyarrow()
    types = {
        Kind.TEXT: pa.string(),
        Kind.INT: pa.int64(),
        Kind.REAL: pa.float64(),
        Kind.BLOB: pa.binary(),
    }
    paths = []
    for table in tables:
        path = folder / f"{table.name}.parquet"
        partial = path.with_name(f"{path.name}.partial")
        schema = pa.schema(
            [
                pa.field(column.name, types[column.kind], nullable=not column.required)
                for column in table.columns
            ]
        )
        with _output_errors(path):
            with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
                for rows in _groups(read_rows(source, table)):
                    cells = zip(*rows, strict=True)
                    arrays = [
                        pa.array(column, field.type)
                        for column, field in zip(cells, schema, strict=True)
                    ]
                    writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            _sync(partial)
            partial.replace(path)
        paths.append(path)
    return tuple(paths)


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in groups of at most ROWS_PER_GROUP rows, and about MAX_GROUP_BYTES of text and blobs."""
    group: list[Row] = []
    group_bytes = 0
    for row in rows:
        group.append(row)
        group_bytes += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        if len(group) == ROWS_PER_GROUP or group_bytes >= MAX_GROUP_BYTES:
            yield group
            group, group_bytes = [], 0
    if group:
        yield group


def write_checksums(paths: Iterable[Path], folder: Path) -> Path:
    """SHA256SUMS of these files of the folder, as `sha256sum -c` reads it."""
    path = folder / CHECKSUMS_NAME
    with _output_errors(path):
        text = "".join(f"{sha256_of(file)}  {file.name}\n" for file in sorted(paths))
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(text, encoding="utf-8")
        _sync(partial)
        partial.replace(path)
    return path


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Wait until the file is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _output_errors(path: Path) -> Iterator[None]:
    """Raises OutputError where the system cannot write."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error


def as_json(value: Any) -> str:
    """The JSON text of a cell: compact, and the same for equal values."""
    import json

    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
