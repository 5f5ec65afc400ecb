"""The user's own entries: concurrent writers, and files that are damaged, foreign or unreadable."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from edgekit.errors import EdgekitError, HeaderError, SourceError
from edgekit.index import index_entries, read_index
from edgekit.index.names import find_entry
from edgekit.index.records import MAX_RECORD_CHARS, record_of
from edgekit.index.store import NAME, forget_entry, save_entry
from edgekit.index.types import Entry, StoredHeader

PACKAGED = len(index_entries())
OWN = Entry(
    id="own",
    family="own",
    architecture="llama",
    forms=("config",),
    header=StoredHeader(config={"model_type": "llama"}),
    reference="./own.gguf",
)


def own_ids() -> list[str]:
    return [entry.id for entry in read_index().entries if entry.is_users]


def test_save_entry_adds_and_replaces_forget_entry_removes(data_folder: Path) -> None:
    assert save_entry(OWN)
    assert not save_entry(replace(OWN, parameters=7))
    assert find_entry("OWN").parameters == 7
    assert len(read_index().entries) == PACKAGED + 1
    assert forget_entry("own")
    assert not forget_entry("own")
    assert own_ids() == []


def test_user_entry_takes_precedence_over_the_packaged_one(data_folder: Path) -> None:
    save_entry(replace(OWN, id="qwen3-8b"))
    assert find_entry("qwen3-8b").is_users
    assert len(read_index().entries) == PACKAGED
    forget_entry("qwen3-8b")
    assert not find_entry("qwen3-8b").is_users


def test_reading_and_forgetting_create_no_folder(data_folder: Path) -> None:
    read_index()
    assert not forget_entry("own")
    assert not data_folder.exists()


WRITER = """
import sys
from edgekit.index.store import save_entry
from edgekit.index.types import Entry, StoredHeader
header = StoredHeader(config={"a": 1})
for i in range(int(sys.argv[2])):
    save_entry(Entry(id=f"{sys.argv[1]}-{i}", family="x", architecture="llama", header=header, reference="x"))
"""


def test_save_entry_from_several_processes_loses_nothing(data_folder: Path) -> None:
    """None of them finds the file: the first one creates it."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, f"writer{i}", "15"]) for i in range(4)
    ]
    assert [writer.wait(timeout=PATIENCE_S) for writer in writers] == [0] * 4
    assert len(own_ids()) == 4 * 15
    assert read_index().problems == ()


def test_reading_and_saving_wait_for_a_writer(data_folder: Path) -> None:
    save_entry(OWN)
    code = (
        "import sqlite3, sys, time; d = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "d.execute('BEGIN EXCLUSIVE'); print('held', flush=True); time.sleep(0.5); d.execute('COMMIT')"
    )
    arguments = [sys.executable, "-c", code, str(data_folder / NAME)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert own_ids() == ["own"]
        assert save_entry(replace(OWN, id="second"))


def problem_of_the_file(message: str) -> str:
    """The only problem of the catalog; the packaged entries are read all the same."""
    catalog = read_index()
    (problem,) = catalog.problems
    assert len(catalog.entries) == PACKAGED
    assert message in problem
    return problem


def test_file_that_is_not_a_database_is_damaged(data_folder: Path) -> None:
    data_folder.mkdir()
    (data_folder / NAME).write_bytes(b"my notes, not a database at all" * 100)
    problem = problem_of_the_file(
        "the list of your models is damaged (file is not a database): move the file away"
    )
    assert problem.startswith(str(data_folder / NAME))
    with pytest.raises(HeaderError, match="list of your models is damaged"):
        save_entry(OWN)
    with pytest.raises(HeaderError, match="list of your models is damaged"):
        forget_entry("own")


def test_database_with_a_torn_page_is_damaged(data_folder: Path) -> None:
    for i in range(60):
        save_entry(replace(OWN, id=f"own-{i}", repository="x" * 2000))
    path = data_folder / NAME
    pages = bytearray(path.read_bytes())
    pages[4096 : len(pages)] = b"\xff" * (len(pages) - 4096)
    path.write_bytes(pages)
    problem_of_the_file("list of your models is damaged")


def test_truncated_database_is_a_problem(data_folder: Path) -> None:
    for i in range(60):
        save_entry(replace(OWN, id=f"own-{i}", repository="x" * 2000))
    path = data_folder / NAME
    os.truncate(path, 5000)
    assert read_index().problems
    assert len([e for e in read_index().entries if not e.is_users]) == PACKAGED


def test_newer_schema_is_neither_read_nor_written(data_folder: Path) -> None:
    save_entry(OWN)
    with sqlite3.connect(data_folder / NAME) as database:
        database.execute("PRAGMA user_version = 2")
    database.close()
    problem_of_the_file("created by a newer EdgeKit (schema 2, this one supports 1): upgrade")
    with pytest.raises(HeaderError, match="newer EdgeKit"):
        save_entry(OWN)


def test_database_of_another_program_has_no_entries_table(data_folder: Path) -> None:
    data_folder.mkdir()
    with sqlite3.connect(data_folder / NAME) as database:
        database.execute("CREATE TABLE songs (title)")
        database.execute("PRAGMA user_version = 1")
    database.close()
    problem_of_the_file("it has no table of entries")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("own", "{"), "not JSON"),
        (("own", b"\x00\xff"), "not a line of text"),
        (("own", 7), "7 is not an object"),
        (("own", "x" * (MAX_RECORD_CHARS + 1)), "more than 1,048,576 characters"),
        (("other", None), "its row has a different name"),
        ((b"own", "{}"), "id: None is not a name"),
        (("own\x1b[2J", "{}"), "id: None is not a name"),
    ],
)
def test_damaged_row_is_reported_and_the_others_are_read(
    row: tuple[object, object], message: str, data_folder: Path
) -> None:
    save_entry(replace(OWN, id="fine"))
    name, record = row
    record = record_of(OWN) if record is None else record
    with sqlite3.connect(data_folder / NAME) as database:
        database.execute("INSERT INTO entries VALUES (?, ?)", (name, record))
    database.close()
    catalog = read_index()
    (problem,) = catalog.problems
    assert message in problem
    assert "\x1b" not in problem
    assert own_ids() == ["fine"]
    assert len(catalog.entries) == PACKAGED + 1


def test_folder_or_pipe_instead_of_the_file_is_not_opened(data_folder: Path) -> None:
    (data_folder / NAME).mkdir(parents=True)
    problem_of_the_file("is not a regular file: move it away")
    (data_folder / NAME).rmdir()
    os.mkfifo(data_folder / NAME)
    problem_of_the_file("is not a regular file: move it away")
    with pytest.raises(SourceError, match="is not a regular file"):
        save_entry(OWN)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read and write every file")
def test_file_without_read_permission_is_a_problem(data_folder: Path) -> None:
    save_entry(OWN)
    (data_folder / NAME).chmod(0)
    problem_of_the_file("unable to open database file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read and write every file")
def test_read_only_folder_can_be_read_and_not_saved_to(data_folder: Path) -> None:
    save_entry(OWN)
    (data_folder / NAME).chmod(0o400)
    data_folder.chmod(0o500)
    assert own_ids() == ["own"]
    with pytest.raises(EdgekitError, match="readonly"):
        save_entry(replace(OWN, id="second"))
    data_folder.chmod(0o700)


def test_folder_that_cannot_be_created_is_an_error_only_for_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "file" / "data"))
    assert own_ids() == []
    with pytest.raises(SourceError, match="set EDGEKIT_DATA to another folder"):
        save_entry(OWN)
