"""Published indexes: what is taken from which file, and files of strangers."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgekit.errors import HeaderError
from edgekit.index.database import PACKAGED
from edgekit.index.merge import MAX_CELL_BYTES, CheckedIndex, check_index, merge
from edgekit.index.tables import Row, read_rows, table_named, write_sqlite

HEADER = {"keys": {}, "tensors": [], "config": {"model_type": "llama", "hidden_size": 64}}


def packed(header: object = HEADER) -> bytes:
    return zlib.compress(json.dumps(header).encode())


def rows_of(*models: str, built: str, layers: int = 2, source: int = 7) -> dict[str, list[Row]]:
    """A small index: each model has a repository, a name and a score, and all share one geometry."""
    sources = json.dumps({str(source): ["repository"]})
    return {
        "models": [
            (name, f"Org/{name}", "Org", "family", "chat", "llama", 10, 10, 4096, 1000, "mit", "2026-01-02", None,
             None, 1.0, 3, "exact", sources)
            for name in models
        ],
        "geometries": [(3, "f" * 64, packed({**HEADER, "config": {"layers": layers}}), "{}", "config")],
        "repositories": [
            (name, "gguf", f"maker/{name}-GGUF", '{"Q4_K_M":null}', 1, None, f"[{source}]") for name in models
        ],
        "names": [(f"{name} it", name, "short", source, 0) for name in models],
        "evidence": [(name, "MMLU", 61.5, "2026-01", "", "Org", source) for name in models],
        "sources": [(source, "org/repo@abc:README.md", "MIT", "2026-01-05", "exact")],
        "meta": [("schema", "1"), ("built", built), ("tool", "test")],
    }  # fmt: skip


def index_of(path: Path, rows: dict[str, list[Row]]) -> CheckedIndex:
    write_sqlite(path, rows)
    return check_index(path)


def cells(path: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    names = [column.name for column in table_named(table).columns]
    return [
        tuple(row[names.index(column)] for column in columns)
        for row in read_rows(path, table_named(table))
    ]


def test_newer_file_replaces_a_model_and_others_stay(tmp_path: Path) -> None:
    ours = index_of(tmp_path / "ours", rows_of("a", "b", built="2026-01-10"))
    theirs = rows_of("b", "c", built="2026-02-10", layers=5, source=1)
    published = index_of(tmp_path / "theirs", theirs)
    merged = merge([ours, published], ours, tmp_path / "new")
    assert (merged.added, merged.changed, merged.unchanged) == (("c",), ("b",), 1)
    assert merged.built == "2026-02-10"
    assert ("built", "2026-02-10") in cells(tmp_path / "new", "meta", "key", "value")
    # One source for both files, because they name the same; two geometries, because they differ.
    assert len(cells(tmp_path / "new", "sources", "id")) == 1
    numbers = dict(cells(tmp_path / "new", "models", "id", "geometry"))
    assert numbers["b"] == numbers["c"] != numbers["a"]
    headers = {
        number: json.loads(zlib.decompress(header))["config"]
        for number, header in cells(tmp_path / "new", "geometries", "id", "header")
    }
    assert [headers[numbers[name]] for name in "abc"] == [
        {"layers": 2}, {"layers": 5}, {"layers": 5},
    ]  # fmt: skip
    assert len(cells(tmp_path / "new", "repositories", "name")) == 3


def test_older_file_only_adds_models(tmp_path: Path) -> None:
    ours = index_of(tmp_path / "ours", rows_of("a", "b", built="2026-01-10"))
    older = index_of(tmp_path / "older", rows_of("b", "c", built="2025-12-31", layers=5))
    merged = merge([ours, older], ours, tmp_path / "new")
    assert (merged.added, merged.changed, merged.unchanged) == (("c",), (), 2)
    assert merged.built == "2026-01-10"


def with_facts(rows: dict[str, list[Row]], **facts: Any) -> dict[str, list[Row]]:
    """The rows with these facts in each model."""
    names = [column.name for column in table_named("models").columns]
    rows["models"] = [
        tuple((dict(zip(names, row, strict=True)) | facts)[name] for name in names)
        for row in rows["models"]
    ]
    return rows


def test_model_with_another_id_but_the_same_repository_keeps_the_known_id(tmp_path: Path) -> None:
    ours = index_of(tmp_path / "ours", rows_of("a", built="2026-01-10"))
    theirs = with_facts(rows_of("a-instruct", built="2026-02-10"), repository="org/A")
    published = index_of(tmp_path / "theirs", theirs)
    merged = merge([ours, published], ours, tmp_path / "new")
    assert (merged.added, merged.changed, merged.removed) == ((), ("a",), ())
    assert cells(tmp_path / "new", "models", "id") == [("a",)]
    assert {row[0] for row in cells(tmp_path / "new", "repositories", "model")} == {"a"}
    assert set(cells(tmp_path / "new", "names", "spelling", "model")) == {
        ("a it", "a"), ("a-instruct it", "a"),
    }  # fmt: skip


def test_known_id_of_another_repository_gets_the_owner_in_its_id(tmp_path: Path) -> None:
    ours = index_of(tmp_path / "ours", rows_of("a", built="2026-01-10"))
    theirs = with_facts(rows_of("a", built="2026-02-10"), repository="Other/A", licence="none")
    published = index_of(tmp_path / "theirs", theirs)
    merged = merge([ours, published], ours, tmp_path / "new")
    assert (merged.added, merged.changed, merged.removed) == (("a@other",), (), ())
    licences = dict(cells(tmp_path / "new", "models", "id", "licence"))
    assert licences == {"a": "mit", "a@other": "none"}


def test_fact_that_the_newer_index_lacks_stays_with_its_source(tmp_path: Path) -> None:
    sources = json.dumps({"7": ["licence", "released", "repository"]})
    ours = with_facts(rows_of("a", built="2026-01-10"), sources=sources, kinds="chat,code")
    theirs = rows_of("a", built="2026-02-10", source=9)
    theirs = with_facts(
        theirs, licence=None, released=None, kinds="", family="new", uses=7.5, sources='{"9":["family"]}'
    )  # fmt: skip
    theirs["sources"] = [(9, "another source", None, "2026-02-09", "exact")]
    theirs["evidence"] = []
    theirs["names"] = []
    theirs["repositories"] = [("a", "gguf", "MAKER/a-gguf", '{"Q8_0":5}', 1, 3, "[9]")]
    files = [index_of(tmp_path / "ours", ours), index_of(tmp_path / "theirs", theirs)]
    merged = merge(files, files[0], tmp_path / "new")
    assert (merged.changed, merged.removed) == (("a",), ())
    columns = ("licence", "released", "kinds", "family", "uses")
    assert cells(tmp_path / "new", "models", *columns) == [
        ("mit", "2026-01-02", "chat,code", "new", 7.5)
    ]
    texts = dict(cells(tmp_path / "new", "sources", "id", "name"))
    ((stated,),) = cells(tmp_path / "new", "models", "sources")
    assert {texts[int(n)]: facts for n, facts in json.loads(stated).items()} == {
        "org/repo@abc:README.md": [
            "licence",
            "released",
        ],  # of the repository none: the newer row has it
        "another source": ["family"],
    }
    assert cells(tmp_path / "new", "names", "spelling") == [("a it",)]
    assert cells(tmp_path / "new", "evidence", "benchmark", "score") == [("MMLU", 61.5)]
    assert cells(tmp_path / "new", "repositories", "name", "quants") == [
        ("MAKER/a-gguf", '{"Q8_0":5}')  # the same repository, so only the newer row
    ]


@pytest.mark.parametrize(("basis", "layers", "parameters"), [("assumed", 2, 10), ("exact", 5, 99)])
def test_exact_geometry_is_only_replaced_by_an_exact_one(
    tmp_path: Path, basis: str, layers: int, parameters: int
) -> None:
    ours = index_of(tmp_path / "ours", rows_of("a", built="2026-01-10"))
    theirs = with_facts(rows_of("a", built="2026-02-10", layers=5), basis=basis, parameters=99)
    published = index_of(tmp_path / "theirs", theirs)
    merge([ours, published], ours, tmp_path / "new")
    assert cells(tmp_path / "new", "models", "basis", "parameters") == [("exact", parameters)]
    ((header,),) = cells(tmp_path / "new", "geometries", "header")  # the other one has no model
    assert json.loads(zlib.decompress(header))["config"] == {"layers": layers}


def test_newer_score_replaces_that_of_the_same_measurement(tmp_path: Path) -> None:
    ours = index_of(tmp_path / "ours", rows_of("a", built="2026-01-10"))
    theirs = rows_of("a", built="2026-02-10")
    theirs["evidence"] = [("a", "MMLU", 70.0, "2026-01", "", "Org", 7), ("a", "IFEval", 50.0, None, None, None, 7)]  # fmt: skip
    published = index_of(tmp_path / "theirs", theirs)
    merge([ours, published], ours, tmp_path / "new")
    assert cells(tmp_path / "new", "evidence", "benchmark", "score") == [
        ("IFEval", 50.0), ("MMLU", 70.0),
    ]  # fmt: skip


def test_merging_the_same_file_again_changes_nothing(tmp_path: Path) -> None:
    ours = index_of(tmp_path / "ours", rows_of("a", "b", built="2026-01-10"))
    theirs = index_of(tmp_path / "theirs", rows_of("b", "c", built="2026-02-10", layers=5))
    merge([ours, theirs], ours, tmp_path / "first")
    first = check_index(tmp_path / "first")
    merged = merge([first, theirs], first, tmp_path / "second")
    assert (merged.added, merged.changed) == ((), ())
    assert check_index(tmp_path / "second").content == first.content


def test_geometry_of_another_file_with_the_same_fingerprint_is_not_used(tmp_path: Path) -> None:
    """A fingerprint is only what a file claims."""
    ours = index_of(tmp_path / "ours", rows_of("a", built="2026-01-10"))
    theirs = index_of(tmp_path / "theirs", rows_of("b", built="2026-02-10", layers=99))
    merge([ours, theirs], ours, tmp_path / "new")
    numbers = dict(cells(tmp_path / "new", "models", "id", "geometry"))
    assert numbers["a"] != numbers["b"]


def test_packaged_index_passes_its_own_checks(tmp_path: Path) -> None:
    ours = check_index(PACKAGED)
    merged = merge([ours], ours, tmp_path / "new")
    assert (merged.added, merged.changed) == ((), ())
    assert check_index(tmp_path / "new").content == ours.content


# --- files of strangers


def changed(table: str, column: str, value: object) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as database:
            database.execute(f"UPDATE {table} SET {column} = ?", (value,))

    return change


def script(sql: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as database:
            database.executescript(sql)

    return change


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


HOSTILE: list[tuple[Callable[[Path], object], str]] = [
    (script("ALTER TABLE names RENAME TO x; CREATE VIEW names AS SELECT * FROM x"), "its tables are not those"),
    (script("CREATE TRIGGER t AFTER INSERT ON names BEGIN DELETE FROM models; END"), "its tables are not those"),
    (script("CREATE TABLE more (a)"), "its tables are not those"),
    (script("DROP TABLE evidence"), "its tables are not those"),
    (script("DROP INDEX names_spelling; CREATE INDEX names_spelling ON names (lower(spelling))"), "its tables"),
    (changed("models", "id", "Upper"), "row 1 of models: id is 'Upper'"),
    (changed("models", "id", "a b; rm -rf"), "row 1 of models: id"),
    (changed("models", "repository", "--help/x"), "row 1 of models: repository"),
    (changed("models", "kinds", "chat,weapon"), "row 1 of models: kinds"),
    (changed("models", "licence", "mit\x1b[31m"), "row 1 of models: licence"),
    (changed("models", "parameters", -1), "row 1 of models: parameters"),
    (changed("models", "parameters", "many"), "models.parameters of a row is a str"),
    (changed("models", "uses", float("inf")), "row 1 of models: uses"),
    (changed("models", "uses", 21.0), "row 1 of models: uses"),
    (changed("models", "uses", -0.1), "row 1 of models: uses"),
    (changed("models", "released", "soon"), "row 1 of models: released"),
    (changed("models", "geometry", 4), "unknown source or geometry 4"),
    (changed("models", "sources", '{"8":["licence"]}'), "unknown source or geometry 8"),
    (changed("models", "sources", "[" * 100_000), "row 1 of models: sources"),
    (changed("models", "family", "x" * (MAX_CELL_BYTES + 1)), "not a readable index"),
    (changed("repositories", "name", "-o/x"), "row 1 of repositories: name"),
    (changed("repositories", "name", "a/b c"), "row 1 of repositories: name"),
    (changed("repositories", "form", "exe"), "row 1 of repositories: form"),
    (changed("repositories", "quants", '{"Q4 && x":null}'), "row 1 of repositories: quants"),
    (changed("repositories", "quants", '{"Q4_0":-1}'), "row 1 of repositories: quants"),
    (changed("repositories", "model", "unknown"), "a row of repositories is of an unknown model"),
    (changed("names", "level", 9), "row 1 of names: level"),
    (changed("evidence", "score", float("-inf")), "row 1 of evidence: score"),
    (changed("sources", "basis", "certain"), "row 1 of sources: basis"),
    (changed("geometries", "header", zlib.compress(b"0" * 64 * 2**20)), "header of geometry 3"),
    (changed("geometries", "header", packed()[:-5]), "header of geometry 3"),
    (changed("geometries", "header", b"not zlib"), "header of geometry 3"),
    (changed("geometries", "header", packed([1, 2])), "header of geometry 3"),
    (changed("geometries", "forms", "gguf"), "its forms are not those of its header"),
    (changed("geometries", "sizes", '{"Q4_K_M":[-5,"exact"]}'), "row 1 of geometries: sizes"),
    (script("UPDATE meta SET value = '2' WHERE key = 'schema'"), "schema 2"),
    (script("UPDATE meta SET value = 'today' WHERE key = 'built'"), "meta.built is not a date"),
    (script("UPDATE meta SET value = '2026-13-01' WHERE key = 'built'"), "meta.built is not a date"),
    (script("UPDATE meta SET value = '9999-12-31' WHERE key = 'built'"), "check this machine's clock"),
    (cut, "not a readable index"),
    (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\xff" * 9000), "not a readable index"),
    (lambda path: path.write_bytes(b""), "its tables are not those"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), HOSTILE)
def test_hostile_file_is_refused(
    change: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "index.sqlite"
    write_sqlite(path, rows_of("a", built="2026-01-10"))
    check_index(path)
    change(path)
    with pytest.raises(HeaderError) as caught:
        check_index(path)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600
