"""The tables of the index in SQLite and Parquet: same rows, same bytes, and rows that do not fit are refused."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from edgekit.errors import HeaderError, OutputError
from edgekit.index.tables import (
    TABLES,
    Cell,
    as_json,
    read_rows,
    table_named,
    write_checksums,
    write_parquet,
    write_sqlite,
)
from edgekit.index.types import SCHEMA

NAMES = [("qwen3:8b", "qwen3-8b", "ollama", 1, 0), ("gemma-3", "gemma-3-4b", None, 2, 1)]
GEOMETRIES = [
    (1, "00ff", b"\x00header", as_json({"Q8_0": [8, "exact"]}), "gguf"),
    (0, "00fe", b"", None, ""),
]


def test_rows_are_sorted_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    write_sqlite(path, {"names": NAMES, "geometries": GEOMETRIES})
    assert list(read_rows(path, table_named("names"))) == sorted(NAMES, key=str)
    assert list(read_rows(path, table_named("geometries"))) == GEOMETRIES[::-1]
    assert list(read_rows(path, table_named("models"))) == []
    assert [file.name for file in tmp_path.iterdir()] == ["index.sqlite"]


@pytest.mark.parametrize("suffix", ["sqlite", "parquet"])
def test_order_of_rows_does_not_change_the_bytes(tmp_path: Path, suffix: str) -> None:
    digests = []
    for number, step in enumerate((1, -1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "index.sqlite"
        write_sqlite(path, {"names": NAMES[::step], "geometries": GEOMETRIES[::step]})
        write_parquet(path, folder)
        files = sorted(folder.glob(f"*.{suffix}"))
        digests.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])
    assert digests[0] == digests[1]


def test_parquet_has_the_rows_of_every_table(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    write_sqlite(path, {"names": NAMES, "geometries": GEOMETRIES})
    files = write_parquet(path, tmp_path)
    assert [file.stem for file in files] == [table.name for table in TABLES]
    for table, file in zip(TABLES, files, strict=True):
        content = pq.read_table(file)
        assert content.column_names == [column.name for column in table.columns]
        rows = [tuple(row.values()) for row in content.to_pylist()]
        assert rows == list(read_rows(path, table))


def test_existing_index_stays_if_the_new_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    write_sqlite(path, {"names": NAMES})
    before = path.read_bytes()
    with pytest.raises(HeaderError, match=r"names\.source of a row is a str, not INTEGER"):
        write_sqlite(path, {"names": [*NAMES, ("a", "b", "c", "1", 0)]})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["index.sqlite"]


@pytest.mark.parametrize(
    ("table", "row", "message"),
    [
        ("names", ("a", "b", "c"), "3 cells, not 5"),
        ("names", (None, "b", "c", 1, 0), "names.spelling of a row is a NoneType"),
        ("meta", ("built", True), "meta.value of a row is a bool, not TEXT"),
        ("sources", (2**63, "name", None, None, "exact"), "too large"),
        ("sources", (1, "\ud800", None, None, "exact"), "surrogates not allowed"),
        (
            "sources",
            (True, "name", None, None, "exact"),
            "sources.id of a row is a bool, not INTEGER",
        ),
    ],
)
def test_row_that_does_not_fit_is_refused(
    tmp_path: Path, table: str, row: tuple[Cell, ...], message: str
) -> None:
    with pytest.raises(HeaderError, match=message):
        write_sqlite(tmp_path / "index.sqlite", {table: [row]})


def test_two_rows_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HeaderError, match="UNIQUE constraint failed"):
        write_sqlite(tmp_path / "index.sqlite", {"meta": [("built", "a"), ("built", "b")]})


def test_folder_that_does_not_exist_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_sqlite(tmp_path / "no" / "index.sqlite", {})


def test_file_that_is_not_an_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(HeaderError, match="not a readable index"):
        list(read_rows(path, table_named("models")))


def test_file_states_its_schema(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    write_sqlite(path, {})
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA,)


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("b", "a")]
    for path in paths:
        path.write_text(path.name)
    text = write_checksums(paths, tmp_path).read_text()
    assert text == f"{hashlib.sha256(b'a').hexdigest()}  a\n{hashlib.sha256(b'b').hexdigest()}  b\n"
