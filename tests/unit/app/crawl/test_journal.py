"""The journal of a crawl: whole batches, one job, one process."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edgekit.app.crawl.journal import NAME, SCHEMA, Journal, discard
from edgekit.app.crawl.types import (
    CrawledGeometry,
    FetchTask,
    GeometrySource,
    Listed,
    Outcome,
    Status,
    TaskKind,
)
from edgekit.errors import HeaderError, UsageError

ITEM = Listed(
    name="lab/Model",
    tags=("a",),
    bases=(("quantized", "x/y"),),
    dtypes=(("BF16", 2),),
    files=(("config.json", None),),
)
TASK = FetchTask(
    kind=TaskKind.GEOMETRY,
    name="lab/Model",
    candidates=(GeometrySource(repository="lab/Model", paths=("config.json",)),),
)


def outcome(status: Status) -> Outcome:
    return Outcome(kind=TASK.kind, name=TASK.name, status=status, detail="why\n")


def test_repository_is_read_back_as_it_was_listed(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / NAME, "job")) as journal:
        assert journal.add_page([ITEM], [], state=("step", "x"), limit=None) == 1
    with closing(Journal(tmp_path / NAME, "job")) as journal:
        assert list(journal.repositories()) == [ITEM]
        assert journal.listed("LAB/model") == ITEM
        assert journal.state("step") == "x"


def test_repository_that_is_listed_twice_counts_once(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / NAME, "job")) as journal:
        other = Listed(name="LAB/model")
        assert journal.add_page([ITEM, other], ["odd"], state=("step", "x"), limit=None) == 1
        assert journal.add_page([ITEM], [], state=("step", "y"), limit=None) == 0
        assert list(journal.repositories()) == [ITEM]
        assert [(name, status) for name, status, _ in journal.skipped()] == [("odd", "invalid")]


def test_page_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def page() -> Iterator[Listed]:
        yield ITEM
        raise InterruptedError

    with closing(Journal(tmp_path / NAME, "job")) as journal:
        with pytest.raises(InterruptedError):
            journal.add_page(page(), [], state=("step", "x"), limit=None)
        assert journal.count("listed") == 0
        assert journal.state("step") is None


def test_limit_cuts_the_last_page(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / NAME, "job")) as journal:
        page = [Listed(name=f"a/{i}") for i in range(5)]
        assert journal.add_page(page, [], state=("step", "x"), limit=3) == 3


def test_task_that_could_not_be_reached_stays_open(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / NAME, "job")) as journal:
        journal.add_tasks([TASK], state=("step", "planned"))
        assert list(journal.open_tasks(TASK.kind)) == [TASK]
        journal.add_outcomes([outcome(Status.UNREACHABLE)])
        assert list(journal.open_tasks(TASK.kind)) == [TASK]
        journal.add_outcomes([outcome(Status.GATED)])
        assert list(journal.open_tasks(TASK.kind)) == []
        stored = journal.outcome(TASK.kind, TASK.name)
        assert stored is not None
        assert (stored.status, stored.detail) == (Status.GATED, "why?")


def test_task_with_other_candidates_is_open_again(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / NAME, "job")) as journal:
        journal.add_tasks([TASK], state=("step", "planned"))
        journal.add_outcomes([outcome(Status.GATED)])
        journal.add_tasks([TASK], state=("step", "planned"))
        assert list(journal.open_tasks(TASK.kind)) == []
        changed = FetchTask(kind=TASK.kind, name=TASK.name)
        journal.add_tasks([changed], state=("step", "planned"))
        assert list(journal.open_tasks(TASK.kind)) == [changed]


def test_geometry_is_stored_once(tmp_path: Path) -> None:
    geometry = CrawledGeometry(fingerprint="f", header=b"h", facts='{"a":1}')
    with closing(Journal(tmp_path / NAME, "job")) as journal:
        for name in ("a/a", "b/b"):
            done = Outcome(kind=TASK.kind, name=name, status=Status.DONE, geometry=geometry)
            journal.add_outcomes([done])
        assert list(journal.geometries()) == [("f", b"h", {"a": 1})]


def test_models_come_with_all_their_repositories(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / NAME, "job")) as journal:
        items = [Listed(name=name) for name in ("b/b", "a/a", "c/c")]
        journal.add_page(items, [], state=("step", "x"), limit=None)
        journal.set_models([("b/b", "b/b"), ("a/a", "B/B"), ("c/c", "a/z")])
        groups = [
            (model, [item.name for item in group])
            for model, group in journal.repositories_of_models()
        ]
        assert groups == [("a/z", ["c/c"]), ("B/B", ["a/a", "b/b"])]


def test_journal_of_another_job_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / NAME, "job").close()
    with pytest.raises(UsageError, match="--restart"):
        Journal(tmp_path / NAME, "other")
    discard(tmp_path / NAME)
    Journal(tmp_path / NAME, "other").close()


def test_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / NAME, "job").close()
    with closing(sqlite3.connect(tmp_path / NAME)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    with pytest.raises(UsageError, match="written by another version: --restart"):
        Journal(tmp_path / NAME, "job")


def test_file_that_is_not_a_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("not a database, but long enough to be looked at\n" * 50)
    with pytest.raises(HeaderError, match="not a journal"):
        Journal(tmp_path / NAME, "job")


def test_second_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""
from pathlib import Path
from edgekit.app.crawl.journal import Journal
import sys
Journal(Path({str(tmp_path / NAME)!r}), "job")
print("open", flush=True)
sys.stdin.read()
"""
    monkeypatch.setattr("edgekit.app.crawl.journal.WAIT_S", 0.0)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(UsageError, match="another build"):
            Journal(tmp_path / NAME, "job")
        process.communicate()
