"""Output files of a bulk job: formats, journal, lock, resuming after a kill, and batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edgekit.embed.bulk import job as job_module
from edgekit.embed.bulk import output
from edgekit.embed.bulk.job import Terms, cut_batches
from edgekit.embed.bulk.output import FileOutput, Journal, form_of, output_format
from edgekit.embed.bulk.rows import (
    BadRow,
    Batch,
    InputRow,
    ResumeMark,
    RowLimit,
    row_bytes_for,
)
from edgekit.engines.native.kernels.types import Floats
from edgekit.errors import OutputError, TextError, UsageError

WIDTH = 5
FORMS = ("npy", "jsonl", "parquet")
JOB = {"model": {"size_bytes": 1}, "options": {"prefix": "a"}}


def rows_of(count: int, first: int = 1) -> tuple[InputRow, ...]:
    return tuple(
        InputRow(number=number, text="x", end=number * 10, id=f"id {number}")
        for number in range(first, first + count)
    )


def vectors_of(rows: tuple[InputRow, ...]) -> Floats:
    """Numbers with many digits: 1/3, tiny and large ones."""
    signs = np.array([1 / 3, -1e-30, 7.5, 3e30, 1e-45], dtype=np.float32)
    return np.array([signs * np.float32(row.number) for row in rows], dtype=np.float32)


def batch_of(count: int, first: int = 1, skipped: tuple[int, ...] = ()) -> Batch:
    rows = rows_of(count, first)
    last = max([row.number for row in rows] + list(skipped))
    bad = tuple(
        BadRow(number=number, reason=f"bad {number} é", end=number * 10) for number in skipped
    )
    return Batch(
        rows=rows,
        skipped=bad,
        tokens=count * 3,
        number=last,
        position=last * 10,
    )


def form(name: str, *, ids: bool | None = None) -> Any:
    return form_of(
        name, dimensions=WIDTH, ids=name != "npy" if ids is None else ids, integer_ids=False
    )


def open_output(path: Path, job: dict[str, Any] | None = None, **options: bool) -> FileOutput:
    return FileOutput(path, form(output_format(str(path))), JOB if job is None else job, **options)


def add(file: FileOutput, batch: Batch, *, save: bool = True) -> None:
    file.add(batch, vectors_of(batch.rows))
    if save:
        file.save(lambda _: None, now=True)


def last_mark(path: Path) -> ResumeMark:
    result = open_output(path)
    result.close()
    return result.mark


def finished(path: Path, *batches: Batch) -> Path:
    result = open_output(path)
    for batch in batches:
        add(result, batch)
    result.finish()
    return path


def read_back(path: Path) -> Floats:
    if path.suffix == ".npy":
        result: Floats = np.load(path)
        return result
    if path.suffix == ".jsonl":
        text = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert [row["id"] for row in text] == [f"id {row['row']}" for row in text]
        return np.array([row["vector"] for row in text], dtype=np.float32)
    table = pq.read_table(path)
    assert table.schema.field("vector").type == pa.list_(pa.float32(), WIDTH)
    assert table["id"].to_pylist() == [f"id {row}" for row in table["row"].to_pylist()]
    return np.array(table["vector"].to_pylist(), dtype=np.float32)


def file_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", FORMS)
def test_output_formats_read_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    path = finished(tmp_path / f"out.{name}", batch_of(3), batch_of(2, first=4))
    assert read_back(path).tobytes() == vectors_of(rows_of(5)).tobytes()
    assert file_names(tmp_path) == {path.name}


@pytest.mark.parametrize("name", FORMS)
def test_output_of_an_empty_input(tmp_path: Path, name: str) -> None:
    path = finished(tmp_path / f"out.{name}")
    assert len(read_back(path)) == 0


def test_jsonl_output_writes_the_shortest_numbers() -> None:
    rows = rows_of(1)
    line = form("jsonl", ids=False).encode(
        rows, np.array([[0.1, 1, 1e-5, -2.5e30, 16777216]], dtype=np.float32)
    )
    assert line == b'{"row":1,"vector":[0.1,1.0,1e-05,-2.5e+30,1.6777216e+07]}\n'


def test_parquet_output_with_integer_ids() -> None:
    parquet = form_of("parquet", dimensions=1, ids=True, integer_ids=True)
    rows = (InputRow(number=1, text="x", end=1, id=2**62),)
    stream = parquet.head() + parquet.encode(rows, np.zeros((1, 1), dtype=np.float32))
    assert pa.ipc.open_stream(stream).read_all()["id"].to_pylist() == [2**62]


def test_parquet_output_row_groups_have_one_size(tmp_path: Path) -> None:
    path = finished(
        tmp_path / "out.parquet", *(batch_of(1000, first=1 + 1000 * i) for i in range(9))
    )
    result = pq.ParquetFile(path)
    sizes = [result.metadata.row_group(i).num_rows for i in range(result.num_row_groups)]
    assert sizes == [4096, 4096, 9000 - 2 * 4096]
    assert result.read()["row"].to_pylist() == list(range(1, 9001))


def test_npy_output_refuses_ids() -> None:
    with pytest.raises(UsageError, match=r"cannot store ids: use \.jsonl or \.parquet"):
        form("npy", ids=True)


def test_output_format_refuses_unknown_suffixes() -> None:
    with pytest.raises(
        UsageError, match=r"out\.csv: choose one of the output formats \.npy, \.jsonl"
    ):
        output_format("out.csv")
    assert output_format("-") == "jsonl"


def test_output_lists_skipped_rows_in_a_second_file(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    finished(path, batch_of(2, skipped=(3, 4)), batch_of(1, first=5))
    assert len(read_back(path)) == 3
    skipped = (tmp_path / "out.npy.skipped.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in skipped] == [
        {"row": 3, "reason": "bad 3 é"},
        {"row": 4, "reason": "bad 4 é"},
    ]
    assert file_names(tmp_path) == {"out.npy", "out.npy.skipped.jsonl"}


@pytest.mark.parametrize("name", FORMS)
def test_resumed_output_has_the_same_bytes(tmp_path: Path, name: str) -> None:
    parts = [batch_of(3, skipped=(4,)), batch_of(2, first=5), batch_of(4, first=7, skipped=(11,))]
    once = finished(tmp_path / f"once.{name}", *parts)
    path = tmp_path / f"out.{name}"
    for done, part in enumerate(parts):
        result = open_output(path)
        assert result.mark.kept == sum(len(batch.rows) for batch in parts[:done])
        add(result, part)
        add(
            result, batch_of(50, first=900), save=False
        )  # lost in a kill, because no mark covers it
        result.close()
    assert not path.exists()
    result = open_output(path)
    result.finish()
    assert path.read_bytes() == once.read_bytes()
    lists = [tmp_path / f"{stem}.{name}.skipped.jsonl" for stem in ("once", "out")]
    assert lists[0].read_bytes() == lists[1].read_bytes()
    assert result.mark.tokens == 27


def test_output_writes_no_second_mark_before_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = open_output(tmp_path / "out.npy")
    result.add(batch_of(1), vectors_of(rows_of(1)))
    result.save(lambda _: "early")
    monkeypatch.setattr(output, "MARK_EVERY_S", 0.0)
    result.save(lambda position: f"at {position}")
    result.close()
    marks = [
        json.loads(line) for line in (tmp_path / "out.npy.journal").read_bytes().splitlines()[1:]
    ]
    assert [mark.get("digest") for mark in marks] == [None, "at 10"]
    assert last_mark(tmp_path / "out.npy").digest == "at 10"


def damaged_journals(data: bytes) -> Iterator[bytes]:
    yield from (data[:-1], data[:-20], data + b'{"number":99', data + b"\x00\xff")


def test_journal_ignores_a_truncated_mark(tmp_path: Path) -> None:
    path, journal = tmp_path / "out.npy", tmp_path / "out.npy.journal"
    result = open_output(path)
    add(result, batch_of(2))
    add(result, batch_of(2, first=3))
    result.close()
    data, partial = journal.read_bytes(), (tmp_path / "out.npy.partial").read_bytes()
    for cut, kept in zip(damaged_journals(data), (2, 2, 4, 4), strict=True):
        journal.write_bytes(cut)
        (tmp_path / "out.npy.partial").write_bytes(partial)
        result = open_output(path)
        assert result.mark.kept == kept
        add(
            result, batch_of(1, first=kept + 1)
        )  # the journal continues after the last complete mark
        result.close()
        assert last_mark(path).kept == kept + 1


def test_output_resumes_after_a_kill_before_the_first_mark(tmp_path: Path) -> None:
    path, journal = tmp_path / "out.npy", tmp_path / "out.npy.journal"
    open_output(path).close()
    first, _, _ = journal.read_bytes().partition(b"\n")
    for left in (b"", first + b"\n"):
        journal.write_bytes(left)
        (tmp_path / "out.npy.partial").unlink(missing_ok=True)
        result = open_output(path)
        assert result.mark == ResumeMark(output_bytes=128)
        result.close()


@pytest.mark.parametrize("name", FORMS)
def test_output_resumes_after_a_kill_in_finish(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = finished(tmp_path / f"once.{name}", batch_of(3, skipped=(4,)))

    class KilledError(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise KilledError

    real_replace = Path.replace
    for step in ("skipped", "final", "journal"):
        path = tmp_path / f"{step}.{name}"
        result = open_output(path)
        add(result, batch_of(3, skipped=(4,)))
        with monkeypatch.context() as patch:

            def replace(source: Path, to: Path, *, step: str = step) -> Path:
                if (step == "skipped") == to.name.endswith(".skipped.jsonl"):
                    raise KilledError
                return real_replace(source, to)

            if step == "journal":
                patch.setattr(Journal, "remove", kill)
            else:
                patch.setattr(Path, "replace", replace)
            with pytest.raises(KilledError):
                result.finish()
        result.close()
        resumed = open_output(path)
        assert resumed.mark.done
        resumed.finish()
        assert path.read_bytes() == once.read_bytes()
        assert (tmp_path / f"{path.name}.skipped.jsonl").exists()
    assert len(file_names(tmp_path)) == 8  # four outputs, four lists


def test_output_replaces_a_file_only_with_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    path.write_bytes(b"precious")
    with pytest.raises(UsageError, match=r"out\.npy already exists: --overwrite"):
        open_output(path)
    assert file_names(tmp_path) == {"out.npy"}
    result = open_output(path, overwrite=True)
    add(result, batch_of(1))
    assert path.read_bytes() == b"precious"  # until the new one is complete
    result.close()
    result = open_output(path)  # resumes, and may still replace it
    assert result.mark.kept == 1
    result.finish()
    assert len(read_back(path)) == 1


def test_output_refuses_an_existing_list_of_skipped_rows(tmp_path: Path) -> None:
    skipped = tmp_path / "out.npy.skipped.jsonl"
    skipped.write_bytes(b"precious")
    with pytest.raises(UsageError, match=r"skipped\.jsonl already exists"):
        open_output(tmp_path / "out.npy")
    result = open_output(tmp_path / "out.npy", overwrite=True)
    result.finish()
    assert not skipped.exists()


def test_output_refuses_a_file_created_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    result = open_output(path)
    add(result, batch_of(1))
    path.write_bytes(b"precious")
    with pytest.raises(UsageError, match="was created by something else in the meantime"):
        result.finish()
    result.close()
    assert path.read_bytes() == b"precious"
    path.unlink()
    result = open_output(path)
    result.finish()
    assert len(read_back(path)) == 1


def test_output_resume_needs_an_unfinished_job(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no unfinished job"):
        open_output(tmp_path / "out.npy", resume=True)
    assert file_names(tmp_path) == set()
    open_output(tmp_path / "out.npy").close()
    open_output(tmp_path / "out.npy", resume=True).close()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({**JOB, "options": {"prefix": "b"}}, "options prefix changed"),
        (
            {**JOB, "model": {"size_bytes": 2}, "options": {}},
            "model size bytes, options prefix changed",
        ),
        ({**JOB, "more": 1}, "more changed"),
    ],
)
def test_output_refuses_an_unfinished_job_with_other_settings(
    tmp_path: Path, job: dict[str, Any], message: str
) -> None:
    path = tmp_path / "out.npy"
    result = open_output(path)
    add(result, batch_of(2))
    result.close()
    with pytest.raises(UsageError, match=message):
        open_output(path, job)
    result = open_output(path, job, overwrite=True)
    assert result.mark.kept == 0
    result.close()


def test_journal_refuses_other_content(tmp_path: Path) -> None:
    path, journal = tmp_path / "out.npy", tmp_path / "out.npy.journal"
    open_output(path).close()
    job, mark = journal.read_bytes().splitlines(keepends=True)
    of_version_1 = b'{"journal":1,"replaces":false}\n{"number":3,"output_bytes":168}\n'
    for data in (b"hello\n", b"[]\n", of_version_1, job[:-5] + b"\n" + mark, job + b"nothing\n"):
        journal.write_bytes(data)
        with pytest.raises(UsageError, match="is damaged, or from another version of EdgeKit"):
            open_output(path)
    open_output(path, overwrite=True).close()


def test_journal_with_a_flipped_bit_in_the_last_mark_uses_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    result = open_output(path)
    add(result, batch_of(2))
    add(result, batch_of(2, first=3))
    result.close()
    data = (tmp_path / "out.npy.journal").read_bytes()
    first = data.rindex(b"\n", 0, -1) + 1
    for offset in range(first, len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << bit
            (tmp_path / "out.npy.journal").write_bytes(damaged)
            assert last_mark(path).kept == 2


def test_journal_refuses_a_flipped_bit_in_the_job(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    result = open_output(path)
    add(result, batch_of(2))
    result.close()
    data = (tmp_path / "out.npy.journal").read_bytes()
    for offset in range(data.index(b"\n") + 1):
        damaged = bytearray(data)
        damaged[offset] ^= 1 << offset % 8
        (tmp_path / "out.npy.journal").write_bytes(damaged)
        with pytest.raises(UsageError, match="is damaged"):
            last_mark(path)


def test_job_resumes_from_the_mark_before_a_damaged_one(tmp_path: Path) -> None:
    """Rows 3 and 4 are embedded again; their old vectors are cut off."""
    once = finished(tmp_path / "once.npy", batch_of(5))
    path, journal = tmp_path / "out.npy", tmp_path / "out.npy.journal"
    result = open_output(path)
    add(result, batch_of(2))
    add(result, batch_of(2, first=3))
    result.close()
    journal.write_bytes(journal.read_bytes().replace(b'"position":40', b'"position":90'))
    result = open_output(path)
    assert result.mark.kept == 2
    add(result, batch_of(3, first=3))
    result.finish()
    assert path.read_bytes() == once.read_bytes()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_journal_refuses_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out.npy.journal")
    with pytest.raises(OutputError, match="is not a regular file: move it away"):
        open_output(tmp_path / "out.npy")


def test_output_refuses_a_truncated_partial_file(tmp_path: Path) -> None:
    result = open_output(tmp_path / "out.npy")
    add(result, batch_of(2))
    result.close()
    os.truncate(tmp_path / "out.npy.partial", 130)
    with pytest.raises(UsageError, match=r"has 130 bytes, but its journal recorded 168"):
        open_output(tmp_path / "out.npy")


HOLD = """
import sys
from pathlib import Path
from edgekit.embed.bulk.output import Journal
journal = Journal(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_output_refuses_a_second_job(tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, f"{path}.journal"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(UsageError, match=r"another job is writing to .*out\.npy: wait"):
            open_output(path)
        other.kill()
    open_output(path).close()  # the lock has gone with its process


def test_output_refuses_unusable_paths(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist: create it first"):
        open_output(tmp_path / "nowhere" / "out.npy")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        open_output(tmp_path / "folder.npy")
    assert OutputError.exit_code == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no such devices")
def test_output_refuses_a_device() -> None:
    with pytest.raises(UsageError, match="use --output - for standard output"):
        FileOutput(Path("/dev/null"), form("npy"), JOB)


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere"
)
def test_output_refuses_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        open_output(tmp_path / "out.npy")


@pytest.mark.skipif(sys.platform == "win32", reason="links need privileges on Windows")
def test_output_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.npy").write_bytes(b"old")
    (tmp_path / "link.npy").symlink_to("real.npy")
    result = open_output(tmp_path / "link.npy", overwrite=True)
    result.finish()
    assert (tmp_path / "link.npy").is_symlink()
    assert len(read_back(tmp_path / "real.npy")) == 0


# --- batches


def rows_with(*words: str) -> list[InputRow]:
    return [
        InputRow(number=number, text=text, end=number * 10) for number, text in enumerate(words, 1)
    ]


def count(text: str) -> int:
    if text == "bad":
        raise TextError("it is bad", index=0)
    return int(text.partition(" ")[0])


def cut(rows: list[InputRow], terms: Terms) -> list[list[int]]:
    return [[row.number for row in batch.rows] for batch in cut_batches(rows, count, terms)]


def test_batches_hold_the_tokens_of_one_pass() -> None:
    rows = rows_with("3", "3", "4", "1", "10", "12", "1", "1")
    assert cut(rows, Terms(skip_bad=True, texts=100, tokens=10)) == [
        [1, 2, 3],
        [4],
        [5],
        [6],
        [7, 8],
    ]
    assert cut(rows, Terms(skip_bad=True, texts=2, tokens=10)) == [[1, 2], [3, 4], [5], [6], [7, 8]]
    assert cut(rows, Terms(skip_bad=True, texts=3)) == [[1, 2, 3], [4, 5, 6], [7, 8]]


def test_batches_limit_characters() -> None:
    rows = rows_with("1 abcd", "1 ab", "1", "1 " + "x" * 20, "1")
    assert cut(rows, Terms(texts=9, limit=RowLimit(row_bytes=20))) == [
        [1, 2],
        [3],
        [4],
        [5],
    ]


def test_batches_begin_where_the_last_one_ended() -> None:
    """This is why a resumed job gives the same bytes as one that was never interrupted."""
    words = ["3", "bad", "4", "2", "bad", "bad", "9", "1", "1", "1", "bad"] * 5
    rows, terms = rows_with(*words), Terms(skip_bad=True, texts=3, tokens=10)
    batches = list(cut_batches(rows, count, terms))
    assert sum(len(batch.skipped) for batch in batches) == 20
    for done, batch in enumerate(batches, 1):
        rest = [row for row in rows if row.number > batch.number]
        assert list(cut_batches(rest, count, terms)) == batches[done:]


def test_batches_limit_skipped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "MOST_SKIPPED", 3)
    result = list(cut_batches(rows_with(*["bad"] * 7, "1"), count, Terms(skip_bad=True, texts=9)))
    assert [(len(batch.rows), len(batch.skipped)) for batch in result] == [(0, 3), (0, 3), (1, 1)]


def test_row_limit_follows_the_budget() -> None:
    results = [row_bytes_for(budget) for budget in (None, 1, 128 * 2**20, 2**40)]
    assert results == [8_000_000, 256 * 1024, 2**20, 8_000_000]
    assert RowLimit.of(128 * 2**20).held_characters == 2**19
    assert str(RowLimit.of(128 * 2**20)) == (
        "1,048,576 bytes, the row limit for a budget of 128.00 MiB"
    )
    assert str(RowLimit()) == "8,000,000 bytes"


@pytest.mark.parametrize("ending", [".partial", ".skipped.partial"])
def test_output_refuses_a_partial_file_without_a_journal(tmp_path: Path, ending: str) -> None:
    path, strange = tmp_path / "out.npy", tmp_path / f"out.npy{ending}"
    strange.write_bytes(b"precious")
    with pytest.raises(UsageError, match="exists without a journal"):
        open_output(path)
    assert (file_names(tmp_path), strange.read_bytes()) == ({strange.name}, b"precious")
    result = open_output(path, overwrite=True)
    add(result, batch_of(1))
    assert result.saved_note.startswith(". 1 vector is saved")
    result.finish()
    assert file_names(tmp_path) == {"out.npy"}
