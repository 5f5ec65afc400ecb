"""Commands with a damaged index: those that do not need it work, and the others say once what to do."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.tiny_llama import write_model

from edgekit.app.index import add
from edgekit.app.index_update import update_index
from edgekit.cli import main
from edgekit.errors import HeaderError
from edgekit.index import index_problems
from edgekit.index.database import PACKAGED, index_file, index_problem
from edgekit.index.store import NAME, save_entry
from edgekit.index.types import SQLITE_NAME
from edgekit.sources.types import Reach

MACHINE = ("--device", "RTX 4090", "--ram", "64G")
SOURCE = """
import sys
from pathlib import Path
from edgekit.index import database
database.PACKAGED = Path(sys.argv[1])
from edgekit.cli import main
sys.exit(main(sys.argv[2:]))
"""


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 4)


def overwritten(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def torn(path: Path) -> None:
    """Still a database, whose tables cannot all be read."""
    raw = path.read_bytes()
    first = len(raw) // 20
    path.write_bytes(raw[:first] + b"\xff" * (len(raw) - first))


def with_own_index(packaged: Path, *argv: str) -> tuple[int, str, str]:
    """A command of an EdgeKit whose own index is this file."""
    done = subprocess.run(
        [sys.executable, "-c", SOURCE, str(packaged), *argv],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("damage", [truncated, overwritten, torn, Path.unlink])
def test_damaged_own_index_stops_only_commands_that_need_it(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    packaged = Path(shutil.copy(PACKAGED, tmp_path / "own.sqlite"))
    damage(packaged)
    model = write_model(tmp_path)
    code, out, err = with_own_index(packaged, "check", str(model), *MACHINE)
    assert (code, err) == (0, "")
    assert out.startswith("Runs fully on your RTX 4090")
    code, out, err = with_own_index(packaged, "check", "qwen3-8b", "--offline", *MACHINE)
    assert (code, out) == (5, "")
    assert err.count("the index cannot be read") == len(err.splitlines()) == 1
    code, out, err = with_own_index(packaged, "check", "acme/model", "--offline", *MACHINE)
    assert (code, out) == (4, "")
    assert "acme/model is not in the Hugging Face cache" in err
    assert "the index cannot be read" in err


def updated_copy(folder: Path) -> Path:
    """A copy of the index in the data folder, as `index update` writes it."""
    return Path(update_index(None, Reach(network=False)).path)


@pytest.mark.parametrize("damage", [truncated, overwritten, torn])
def test_damaged_copy_of_the_index_is_not_used_and_not_lost(
    damage: Callable[[Path], None], data_folder: Path
) -> None:
    copy = updated_copy(data_folder)
    assert index_file().path == copy
    damage(copy)
    left = copy.read_bytes()
    assert index_file().path == PACKAGED
    assert "move it away and run edgekit index update; EdgeKit's own index" in str(index_problem())
    update = update_index(None, Reach(network=False))
    assert update.moved_aside is not None
    assert update.moved_aside.read_bytes() == left
    assert index_file().path == copy
    assert index_problem() is None


def test_own_index_may_be_damaged_if_there_is_a_copy(data_folder: Path, tmp_path: Path) -> None:
    updated_copy(data_folder)
    code, out, _ = with_own_index(tmp_path / "gone.sqlite", "check", "qwen3-8b", *MACHINE)
    assert code == 0
    assert "reinstall EdgeKit; your copy of the index is used" in " ".join(out.split())


def test_pipe_in_place_of_the_copy_is_not_opened(data_folder: Path) -> None:
    data_folder.mkdir()
    os.mkfifo(data_folder / SQLITE_NAME)
    assert index_file().path == PACKAGED
    assert "not a regular file: move it away" in str(index_problem())


def replace_table(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE entries")
        database.execute(statement)
    database.close()


ENDLESS = (
    "CREATE VIEW entries AS WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r)"
    " SELECT i AS id, i AS entry FROM r"
)


@pytest.mark.parametrize("statement", ["CREATE TABLE entries (a)", ENDLESS])
def test_replaced_table_of_models_is_damage(
    statement: str, data_folder: Path, tmp_path: Path
) -> None:
    entry = add(str(write_model(tmp_path)), Reach(network=False), name="own")[0]
    replace_table(data_folder / NAME, statement)
    (problem,) = index_problems()
    assert "it has no table of entries): move the file away" in problem
    with pytest.raises(HeaderError, match="no table of entries"):
        save_entry(entry)


def test_row_that_is_not_text_leaves_the_others(data_folder: Path, tmp_path: Path) -> None:
    add(str(write_model(tmp_path)), Reach(network=False), name="own")
    with sqlite3.connect(data_folder / NAME) as database:
        database.execute(
            "INSERT INTO entries VALUES (CAST(x'ff' AS TEXT), CAST(x'fe' AS TEXT)), (7, 3.5)"
        )
    database.close()
    assert len(index_problems()) == 2
    assert main(["index", "show", "own"]) == 0


def test_models_are_not_added_to_a_file_with_a_damaged_page(
    data_folder: Path, tmp_path: Path
) -> None:
    model = write_model(tmp_path)
    for number in range(40):
        entry = add(str(model), Reach(network=False), name=f"own-{number}")[0]
    path = data_folder / NAME
    raw = bytearray(path.read_bytes())
    raw[-4096:] = b"\xff" * 4096
    path.write_bytes(raw)
    with pytest.raises(HeaderError, match="list of your models is damaged"):
        save_entry(entry)
    assert path.read_bytes() == raw


@pytest.mark.parametrize(
    "command", [("check", "qwen3-8b", *MACHINE), ("index", "show", "qwen3-8b"), ("index", "update")]
)
def test_damaged_list_of_models_is_said_once(
    command: tuple[str, ...], data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_folder.mkdir()
    (data_folder / NAME).write_bytes(b"not a database" * 100)
    assert main(command) == 0
    out, err = capsys.readouterr()
    text = " ".join((out + err).split())
    assert text.count("the list of your models is damaged") == 1
    assert "move the file away" in text


def test_unknown_name_with_a_damaged_list_of_models_says_why_it_may_be_missing(
    data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_folder.mkdir()
    (data_folder / NAME).write_bytes(b"not a database" * 100)
    assert main(["check", "my-own-model", "--offline"]) == 4
    assert "the list of your models is damaged" in capsys.readouterr().err


def test_full_disk_leaves_the_list_of_models_as_it_was(data_folder: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path)
    add(str(model), Reach(network=False), name="own")
    before = (data_folder / NAME).read_bytes()
    code = (
        "import resource, sys; from edgekit.cli import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "sys.exit(main(['index', 'add', sys.argv[1], '--id', 'second']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 4
    assert "free some space on its disk" in done.stderr
    assert (data_folder / NAME).read_bytes() == before
