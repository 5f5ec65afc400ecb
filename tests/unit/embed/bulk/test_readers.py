"""Input formats of a bulk job, and bad rows."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.recorded import DATA
from tests.thoroughness import sampled

from edgekit.embed.bulk import parquet
from edgekit.embed.bulk import rows as rows_module
from edgekit.embed.bulk.parquet import PageError, largest_page_bytes, read_directory
from edgekit.embed.bulk.readers import format_of, open_source
from edgekit.embed.bulk.rows import BadRow, Fields, InputRow, ResumeMark, RowLimit
from edgekit.errors import HeaderError, NotFoundError, SourceError, TextError, UsageError

WITH_ID = Fields(text="text", id="id")


def read(
    path: Path,
    fields: Fields | None = None,
    form: str | None = None,
    start: ResumeMark | None = None,
    limit: RowLimit | None = None,
) -> list[tuple[int, Any]]:
    """(row number, text or (id, text)); for a bad row (row number, [reason])."""
    source = open_source(str(path), form=form, fields=fields or Fields(), limit=limit)
    try:
        return [_content(row) for row in source.rows(start or ResumeMark())]
    finally:
        source.close()


def _content(row: InputRow | BadRow) -> tuple[int, Any]:
    if isinstance(row, BadRow):
        return row.number, [row.reason]
    return row.number, row.text if row.id is None else (row.id, row.text)


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_txt_has_one_text_per_line(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"\xef\xbb\xbfone\r\ntwo \n\n\xff\xfe\nlast")
    assert read(path) == [
        (1, "one"),
        (2, "two "),
        (3, ["the text is empty"]),
        (4, ["not UTF-8 at byte 0 of the line"]),
        (5, "last"),
    ]


def test_jsonl_is_strict_about_types(tmp_path: Path) -> None:
    rows = [
        b'{"id": 7, "text": "fine", "more": [1]}',
        b"",
        b'{"id": "a", "text": "also"}',
        b'{"id": 1}',
        b'{"id": 1, "text": null}',
        b'{"id": 1, "text": 5}',
        b'{"id": 1, "text": ["a"]}',
        b'{"id": 1, "text": "  "}',
        b'{"id": 1, "text": "\\ud800"}',
        b'{"id": true, "text": "a"}',
        b'{"id": 1.5, "text": "a"}',
        b'{"id": 9223372036854775808, "text": "a"}',
        b'{"id": "", "text": "a"}',
        b'{"text": "a"}',
        b'["text"]',
        b'{"text": "cut',
        b'{"text": "\xff"}',
        b"[" * 100_000,
        b'{"id": 8, "text": "\\u00fc"}',
    ]
    path = write(tmp_path, "a.jsonl", b"\n".join(rows) + b"\n\n")
    expected = "not a string or a 64-bit integer"
    result = read(path, WITH_ID)
    assert result[:2] == [(1, (7, "fine")), (3, ("a", "also"))]
    assert result[2:13] == [
        (4, ["no field 'text'; it has 'id'"]),
        (5, ["'text' is null, not a string"]),
        (6, ["'text' is a number, not a string"]),
        (7, ["'text' is a list, not a string"]),
        (8, ["the text is empty"]),
        (9, ["text is not UTF-8 at character 0"]),
        (10, [f"'id' is true or false, {expected}"]),
        (11, [f"'id' is a number, {expected}"]),
        (12, [f"'id' is a number, {expected}"]),
        (13, ["the id is empty"]),
        (14, ["no field 'id'; it has 'text'"]),
    ]
    assert result[13] == (15, ["expected an object with fields, found a list"])
    assert result[14][1][0].startswith("not valid JSON: Unterminated string")
    assert result[15] == (17, ["not UTF-8 at byte 10 of the line"])
    assert result[16] == (18, ["not valid JSON: nested too deeply"])
    assert result[17] == (19, (8, "ü"))
    assert len(result) == 18


def test_jsonl_with_too_many_values(tmp_path: Path) -> None:
    lists = b'{"text": "a", "b": [' + b"[],"[:2] * 200_000 + b"]}"
    values = b'{"text": "a", "b": [' + b"1," * 1_000_001 + b"1]}"
    result = read(write(tmp_path, "a.jsonl", lists + b"\n" + values))
    assert result == [
        (1, ["up to 200,002 lists and objects; the limit is 200,000"]),
        (2, ["up to 1,000,002 values; the limit is 1,000,000"]),
    ]


def test_jsonl_nested_fields(tmp_path: Path) -> None:
    rows = [
        '{"a": {"b.c": 1, "b": {"c": "deep"}}}',
        '{"a.b.c": "plain", "a": 1}',
        '{"a": {"b": []}}',
    ]
    path = write(tmp_path, "a.jsonl", "\n".join(rows).encode())
    assert read(path, Fields(text="a.b.c")) == [
        (1, "deep"),
        (2, "plain"),
        (3, ["no field 'a.b.c'; it has 'a'"]),
    ]


CSV = (
    b"\xef\xbb\xbfid,text\r\n"
    b'1,"two\nlines"\n'
    b"\n"  # not a record, but counted
    b'3,"shut"open\n'
    b"4,a,b\n"
    b"5\n"
    b"6,\xff\n"
    b"7,\n"
    b',"no id"\n'
    b'9,"say ""hi"""\r\n'
    b'10,"never shut\n11,x\n'
)


def test_csv_records(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a.csv", CSV), WITH_ID) == [
        (1, ("1", "two\nlines")),
        (3, ["not valid CSV: ',' expected after '\"'"]),
        (4, ["3 fields, but the header has 2"]),
        (5, ["1 field, but the header has 2"]),
        (6, ["the text is not UTF-8 at character 0"]),
        (7, ["the text is empty"]),
        (8, ["the id is empty"]),
        (9, ("9", 'say "hi"')),
        (10, ["not valid CSV: unexpected end of data"]),
    ]


def test_tsv_records(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a.tsv", b"text\tid\na, b\t1\n"), WITH_ID) == [(1, ("1", "a, b"))]


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"", "is empty"),
        (b"id,body\n", "no columns are named 'text'; it has 'id', 'body'"),
        (b"text,text\n", "2 columns are named 'text'"),
        (b'"text"x\n', "the first line is not a header"),
        (b",".join([b"text", *[b"x"] * 10_000]), "too many columns"),
    ],
)
def test_csv_refuses_invalid_headers(tmp_path: Path, head: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read(write(tmp_path, "a.csv", head))


SHORT = RowLimit(row_bytes=100, budget_bytes=6400)
LONG = "longer than 100 bytes, the row limit for a budget of 6.25 KiB"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_PIECE_BYTES", 16)


@pytest.mark.usefixtures("small_pieces")
def test_lines_over_the_limit_are_bad_rows(tmp_path: Path) -> None:
    data = b"x" * 99 + b"\n" + b"y" * 100 + b"\n" + b"y" * 1000 + b"\nz\n" + b"w" * 500
    assert read(write(tmp_path, "a.txt", data), limit=SHORT) == [
        (1, "x" * 99),
        (2, "y" * 100),
        (3, [f"a line {LONG}"]),
        (4, "z"),
        (5, [f"a line {LONG}"]),
    ]
    plain = b"id,text\n1," + b"a" * 200 + b"\n2,b\n"
    assert read(write(tmp_path, "a.csv", plain), WITH_ID, limit=SHORT) == [
        (1, [f"not valid CSV: a line {LONG}"]),
        (2, ("2", "b")),
    ]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "record",
    [
        b'2,"' + b"a\n" * 60 + b'"\n',  # too long in several lines
        b'2,"' + b"a" * 200 + b'\nb"\n',  # a single line that is too long
        b"2,"
        + b"a" * 200
        + b',"\n9,made up\n"\n',  # the quote is after the part of the line that is kept
        b'2,"\n' + b"a" * 200 + b'\n9,made up\n"\n',
    ],
)
def test_csv_record_with_an_open_quote_cannot_be_skipped(tmp_path: Path, record: bytes) -> None:
    path = write(tmp_path, "a.csv", b"id,text\n1,first\n" + record + b"3,third\n")
    source = open_source(str(path), form=None, fields=WITH_ID, limit=SHORT)
    rows = source.rows(ResumeMark())
    assert _content(next(rows)) == (1, ("1", "first"))
    with pytest.raises(TextError) as caught:
        next(rows)
    assert f"row 2 (from byte 16 on): a record {LONG}" in str(caught.value)
    source.close()


def test_gzip_is_read_and_resumed(tmp_path: Path) -> None:
    data = b"one\ntwo\nthree\n"
    path = write(tmp_path, "a.txt.gz", gzip.compress(data))
    assert read(path) == [(1, "one"), (2, "two"), (3, "three")]
    assert read(path, start=ResumeMark(number=2, position=8)) == [(3, "three")]
    cut = write(tmp_path, "b.txt.gz", gzip.compress(data * 1000)[:-20])
    with pytest.raises(SourceError, match=r"b\.txt\.gz failed: Compressed file ended"):
        read(cut)
    with pytest.raises(SourceError, match="failed: Not a gzipped file"):
        read(write(tmp_path, "c.txt.gz", b"plain text"))


TABLE = {
    "id": pa.array([1, 2, 3, None, 5, 6], pa.int32()),
    "text": ["one", None, "", "four", "five", "six"],
    "other": [[1]] * 6,
}


def test_parquet_is_read_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(TABLE), path, row_group_size=2)
    rows = [
        (1, (1, "one")),
        (2, ["the text is null"]),
        (3, ["the text is empty"]),
        (4, ["the id is null"]),
        (5, (5, "five")),
        (6, (6, "six")),
    ]
    assert read(path, WITH_ID) == rows
    for done in range(7):
        assert read(path, WITH_ID, start=ResumeMark(number=done, position=done)) == rows[done:]
    source = open_source(str(path), form=None, fields=WITH_ID)
    assert source.integer_ids
    assert source.share(3) == 0.5
    source.close()


def test_parquet_reads_every_string_type(tmp_path: Path) -> None:
    path = tmp_path / "a.pq"
    texts = pa.array(["a", "b", "a"])
    for column in (texts, texts.cast(pa.large_string()), texts.dictionary_encode()):
        pq.write_table(pa.table({"text": column}), path)
        assert read(path) == [(1, "a"), (2, "b"), (3, "a")]


def test_parquet_texts_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    offsets = pa.py_buffer(
        (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + (2).to_bytes(4, "little")
    )
    texts = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xff")])
    pq.write_table(pa.table({"text": texts}), path)
    assert read(path) == [(1, "a"), (2, ["not UTF-8 at byte 0"])]


@pytest.mark.parametrize(
    ("columns", "fields", "why"),
    [
        ({"body": ["a"]}, Fields(), "expected exactly one column named 'text'; it has 'body'"),
        ({"text": [1]}, Fields(), "the column 'text' holds int64, not text"),
        ({"text": ["a"], "id": [1.5]}, WITH_ID, "the column 'id' holds double"),
    ],
)
def test_parquet_refuses_unusable_columns(
    tmp_path: Path, columns: dict[str, Any], fields: Fields, why: str
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(UsageError, match=why):
        read(path, fields)


def test_parquet_refuses_other_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not a Parquet file"):
        read(write(tmp_path, "a.parquet", b"PAR1 this is not"))
    good = tmp_path / "b.parquet"
    pq.write_table(
        pa.table({"text": ["a" * 1000] * 1000}), good, compression="none", use_dictionary=False
    )
    raw = bytearray(good.read_bytes())
    raw[10:5000] = bytes(4990)
    with pytest.raises(HeaderError, match="reading it failed"):
        read(write(tmp_path, "c.parquet", bytes(raw)))


# The first file makes pyarrow abort the process when it reads a column's metadata; the second has a column name that is
# not UTF-8.
@pytest.mark.parametrize(("name", "rows"), [("histogram.parquet", 200), ("column_name.parquet", 0)])
def test_parquet_footer_with_damage_is_read_or_refused(name: str, rows: int) -> None:
    """In a separate process, because an abort cannot be caught."""
    process = subprocess.run(
        [sys.executable, "-c", READ_PARQUET, str(DATA / "parquet" / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    if rows:
        assert (process.returncode, process.stdout, process.stderr) == (0, f"{rows}\n", "")
    else:
        assert process.returncode == HeaderError.exit_code == 5
        assert "a row group has no column 'text'" in process.stderr
        assert process.stderr.strip().isprintable()


READ_PARQUET = """
import sys
from edgekit.embed.bulk.readers import open_source
from edgekit.embed.bulk.rows import Fields, ResumeMark
from edgekit.errors import EdgekitError

try:
    source = open_source(sys.argv[1], form=None, fields=Fields())
    print(sum(1 for _ in source.rows(ResumeMark())))
except EdgekitError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def test_parquet_footer_with_any_damaged_byte_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"text {number}" for number in range(20)]
    pq.write_table(pa.table({"id": list(range(20)), "text": texts}), path, row_group_size=8)
    raw = path.read_bytes()
    first = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    for offset in sampled(range(first, len(raw)), each=3):
        damaged = bytearray(raw)
        damaged[offset] ^= 1 << offset % 8
        with suppress(HeaderError, SourceError, UsageError):
            read(write(tmp_path, "b.parquet", bytes(damaged)), WITH_ID)


def test_parquet_footer_matches_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"id": list(range(20)), "text": ["a", "b"] * 10, "other": [{"text": 1}] * 20})
    pq.write_table(table, path, row_group_size=8, use_dictionary=["text"])
    with path.open("rb") as file:
        result = read_directory(file, frozenset({"id", "text", "other.text"}))
    metadata = pq.ParquetFile(path).metadata
    assert [group.rows for group in result] == [8, 8, 4]
    for number, group in enumerate(result):
        for column in range(3):
            chunk = metadata.row_group(number).column(column)
            begin = chunk.dictionary_page_offset or chunk.data_page_offset
            extent = (begin, begin + chunk.total_compressed_size)
            assert group.extents[chunk.path_in_schema] == extent


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
@pytest.mark.parametrize("name", ["a.parquet", "a.txt", "a.jsonl"])
def test_input_refuses_a_named_pipe_without_waiting(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match="is a pipe: pipe it in with --input -"):
        read(tmp_path / name)


def test_parquet_rows_over_the_limit_are_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array(["a" * 100, "b" * 101, "é" * 50, "é" * 51])
    for column in (texts, texts.cast(pa.large_string()), texts.dictionary_encode()):
        pq.write_table(pa.table({"text": column}), path, write_batch_size=1, data_page_size=1)
        limit = RowLimit(row_bytes=100)
        long = ["a row longer than 100 bytes"]
        assert read(path, limit=limit) == [(1, "a" * 100), (2, long), (3, "é" * 50), (4, long)]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_parquet_refuses_a_page_that_unpacks_to_more_than_the_budget(
    tmp_path: Path, version: str
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"other": ["x" * 10_000] * 9, "text": ["a" * 90, "b" * 90, "c" * 90] * 3})
    options: dict[str, Any] = {
        "data_page_version": version,
        "compression": "zstd",
        "row_group_size": 4,
    }
    pq.write_table(table, path, use_dictionary=False, **options)
    with pytest.raises(
        UsageError, match=r"a page of row group 1 unpacks to 3\d\d bytes, but only 300"
    ):
        read(path, limit=SHORT)
    assert len(read(path)) == 9  # without a budget
    pq.write_table(
        table, path, use_dictionary=False, write_batch_size=1, data_page_size=1, **options
    )
    assert [text for _, text in read(path, limit=SHORT)] == table["text"].to_pylist()


def test_parquet_reads_few_rows_if_pages_are_large(tmp_path: Path) -> None:
    """Every row may refer to the same dictionary value, which the file contains once."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a" * 90] * 500}), path)
    source = parquet.ParquetSource(str(path), Fields(), SHORT)
    assert {batch.num_rows for batch in source._batches(0)} <= {1, 2, 3}
    source.close()
    source = parquet.ParquetSource(str(path), Fields(), RowLimit())
    assert max(batch.num_rows for batch in source._batches(0)) == parquet.READ_ROWS
    source.close()


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x15\x00\x15",  # cut off
        b"\x00",  # without sizes
        b"\x15\x00\x15\x01\x15\x02\x00",  # a negative size
        b"\x1c" * 100,  # nested
        b"\x19\xfc\xff\xff\xff\x7f",  # a list of billions
        b"\x18\xff\xff\xff\x7f",  # a long string
        b"\x15" + b"\xff" * 20,  # a number that does not end
        b"\x1d",  # an unknown type
    ],
)
def test_parquet_refuses_a_damaged_page_header(head: bytes) -> None:
    with pytest.raises(PageError):
        largest_page_bytes(io.BytesIO(head), 0, 1000)


def test_parquet_without_pyarrow_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'edgekit-models\[parquet\]'"):
        read(tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=r"edgekit-models\[parquet\]"):
        parquet.ParquetForm(4, ids=False, integer_ids=False)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.TXT", "txt"), ("a.ndjson", "jsonl"), ("a.csv.gz", "csv"), ("b.a.tsv", "tsv"), ("-", "txt"), ("x.pq", "parquet"),
    ],
)  # fmt: skip
def test_input_format_by_suffix(name: str, form: str) -> None:
    assert format_of(name) == form


def test_input_refuses_unusable_files_and_fields(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="add --format"):
        read(tmp_path / "a.json")
    with pytest.raises(NotFoundError, match="No such file"):
        read(tmp_path / "a.txt")
    (tmp_path / "b.txt").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        read(tmp_path / "b.txt")
    (tmp_path / "b.parquet").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        read(tmp_path / "b.parquet")
    with pytest.raises(UsageError, match="have no ids"):
        read(write(tmp_path, "c.txt", b"a"), WITH_ID)
    with pytest.raises(UsageError, match="needs a regular file"):
        open_source("-", form="parquet", fields=Fields())


@pytest.mark.skipif(sys.platform == "win32", reason="no such devices")
def test_input_refuses_a_device() -> None:
    with pytest.raises(UsageError, match="pipe it in with --input -"):
        open_source("/dev/null", form="txt", fields=Fields())


FILES: dict[str, bytes] = {
    "a.txt": b"one\n\xff\n\ntwo\nthree",
    "a.jsonl": b'{"text":"a"}\n\n{"text":1}\n{"text":"b"}\n',
    "a.csv": b'text\n"a\nb"\n\n"c"d\ne\n"f',
    "a.txt.gz": gzip.compress(b"one\ntwo\n\nthree\n"),
}


@pytest.mark.parametrize("name", FILES)
def test_rows_from_any_position_are_the_remaining_ones(tmp_path: Path, name: str) -> None:
    source = open_source(str(write(tmp_path, name, FILES[name])), form=None, fields=Fields())
    rows = list(source.rows(ResumeMark()))
    assert len(rows) >= 3
    for done, row in enumerate(rows, 1):
        start = ResumeMark(number=row.number, position=row.end)
        assert list(source.rows(start)) == rows[done:]
    source.close()


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes, form: str) -> Any:
    class Stdin:
        buffer = io.BytesIO(data)

    monkeypatch.setattr(sys, "stdin", Stdin())
    return open_source("-", form=form, fields=Fields())


def _row_of(rows: Iterable[InputRow | BadRow], number: int) -> InputRow | BadRow:
    return next(row for row in rows if row.number == number)


@pytest.mark.parametrize(
    ("form", "data"),
    [("txt", b"one\n\ntwo\nthree\nfour\n"), ("csv", b'text\n"a\nb"\n\nc\nd\n')],
)
def test_pipe_digest_identifies_the_part_already_read(
    monkeypatch: pytest.MonkeyPatch, form: str, data: bytes
) -> None:
    first = piped(monkeypatch, data, form)
    row = _row_of(first.rows(ResumeMark()), 3)
    digest = first.digest(row.end)
    start = ResumeMark(number=row.number, position=row.end)
    same = piped(monkeypatch, data, form)
    rest = same.rows(start)
    assert next(rest).number == 4
    assert same.digest(start.position) == digest
    assert [row.number for row in rest] == ([5] if form == "txt" else [])
    other = piped(monkeypatch, data.replace(b"o", b"0").replace(b"a", b"A"), form)
    next(other.rows(start))
    assert other.digest(start.position) != digest
    with pytest.raises(SourceError, match=r"ends after \d+ bytes"):
        next(piped(monkeypatch, data[: row.end - 2], form).rows(start))


def test_input_that_changes_while_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"one\n")
    source = open_source(str(path), form=None, fields=Fields())
    source.check_unchanged()
    path.write_bytes(b"one\ntwo\n")
    with pytest.raises(SourceError, match="changed while it was being read"):
        source.check_unchanged()
    source.close()


def test_jsonl_ids_are_unchanged(tmp_path: Path) -> None:
    rows = [{"id": value, "text": "a"} for value in (0, -5, "x", 2**63 - 1)]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)).encode())
    assert [content[0] for _, content in read(path, WITH_ID)] == [0, -5, "x", 2**63 - 1]
