"""`edgekit embed`: texts on the command line, and jobs over files that can be resumed."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.documented import documented
from tests.embed_models import write_model
from tests.patience import PATIENCE_S, wait_until
from tests.thoroughness import LONG, costly, sampled

from edgekit.cli import main
from edgekit.embed import open_embedder
from edgekit.embed.bulk.rows import BulkStatus, ResumeMark
from edgekit.report.embed import progress_line

TINY: dict[str, Any] = {
    "layers": 1,
    "width": 64,
    "inner": 128,
    "heads": 2,
    "kv_heads": 2,
    "head_dim": 32,
}
BUDGET = ("--budget", "4G")  # for the whole process, which is pytest here
ROWS = 500


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", "bert", **TINY)


@pytest.fixture
def run_embed(
    capsys: pytest.CaptureFixture[str], model: Path
) -> Callable[..., tuple[int, str, str]]:
    def run(*argv: object) -> tuple[int, str, str]:
        code = main(("embed", str(model), *map(str, argv), *BUDGET))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def expected_vectors(model: Path, texts: list[str], **choices: Any) -> Any:
    with open_embedder(model, memory_budget="400M", **choices) as embedder:
        return embedder.embed(texts)


def write_rows(path: Path, count: int) -> Path:
    texts = ("one", "two words", "three words here", "and a somewhat longer text with more of them")
    rows = ({"id": f"r{i}", "text": f"{texts[i % 4]} {i % 97}"} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# --- a few texts


def test_text_shows_the_first_numbers_of_each_vector(run_embed: Any, model: Path) -> None:
    code, out, err = run_embed("hello world", "other text")
    assert (code, err) == (0, "")
    vectors = expected_vectors(model, ["hello world", "other text"])
    assert "64 dimensions, mean pooling" in out
    assert " ".join(f"{x:+.4f}" for x in vectors[0][:6]) in out
    assert f"cosine similarity to the first {vectors[0] @ vectors[1]:.4f}" in out
    assert "norm 1.0000" in out
    assert "\x1b" not in out


def test_json_has_all_numbers_of_a_vector(run_embed: Any, model: Path) -> None:
    code, out, _ = run_embed(
        "hello world", "--json", "--dimensions", "7", "--no-normalize", "--pooling", "cls"
    )
    answer = json.loads(out)
    assert code == 0
    assert (answer["dimensions"], answer["pooling"], answer["mode"]) == (7, "cls", "encoder")
    expected = expected_vectors(
        model, ["hello world"], dimensions=7, normalize=False, pooling="cls"
    )
    result = np.array([vector["vector"] for vector in answer["vectors"]], dtype=np.float32)
    assert result.tobytes() == expected.tobytes()
    assert answer["vectors"][0]["tokens"] > 2


def test_texts_may_be_mixed_with_options(run_embed: Any, model: Path) -> None:
    code, out, _ = run_embed("--prefix", "query: ", "one", "--json", "two")
    assert code == 0
    answer = json.loads(out)
    expected = expected_vectors(model, ["query: one", "query: two"])
    result = np.array([vector["vector"] for vector in answer["vectors"]], dtype=np.float32)
    assert result.tobytes() == expected.tobytes()
    assert answer["prefix"] == "query: "


def test_plan_shows_the_memory_without_embedding(run_embed: Any) -> None:
    code, out, _ = run_embed("--plan", "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["budget_bytes"] == 4 * 1024**3
    assert (
        plan["total_bytes"]
        == sum(line["size_bytes"] for line in plan["lines"])
        < plan["budget_bytes"]
    )
    code, out, _ = run_embed("--plan")
    assert code == 0
    assert re.match(r"[\d.]+ [MG]iB of memory, with a budget of 4.00 GiB\n", out)


def test_mode_tokens_gives_the_vectors_of_the_python_embedder(run_embed: Any, model: Path) -> None:
    _, out, _ = run_embed("hello world", "--json", "--mode", "tokens")
    result = json.loads(out)["vectors"][0]["vector"]
    assert (
        np.array(result, dtype=np.float32).tobytes()
        == expected_vectors(model, ["hello world"], mode="tokens").tobytes()
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "give texts on the command line, a file"),
        (("a", "--input", "x.txt"), "not both"),
        (("--input", "x.txt"), "--input needs an --output"),
        (("a", "--stdio"), "--stdio reads texts from requests"),
        (("--input", "x.txt", "--output", "-", "--json"), "standard output is used for the vectors"),
        (("a", "--ray", "local", "--output", "x.npy"), "--ray needs files"),
        (("--workers", "2", "a"), "--workers only works with --ray"),
        (("a", "--pooling", "max"), "--pooling: 'max' is not one of mean, cls, last"),
        (("a", "--threads", "0"), "--threads: must be at least 1 (got 0)"),
        (("a", "--max-file", "big"), "--max-file: 'big' is not a size"),
        (("a", "--batch", "many", "--output", "x.npy"), "--batch: 'many'"),
        (("a", "--format", "xml", "--output", "x.npy"), "--format: 'xml' is not one of txt"),
        (("a", "--output", "x.csv"), "choose one of the output formats"),
        (("a", "--output", "-", "--resume"), "leave out --resume"),
        (("a", "--query"), "the prefixes of "),
        (("a", "--dimensions", "65"), "for this model (got 65)"),
        (("a", " "), "text 2: it is empty"),
    ],
)  # fmt: skip
def test_usage_error_exits_with_2(run_embed: Any, argv: tuple[str, ...], message: str) -> None:
    code, out, err = run_embed(*argv)
    assert (code, out != "") == (2, "--json" in argv)
    assert err.startswith("edgekit: ")
    assert message in err


def test_small_budget_exits_with_3_and_small_max_file_with_5(
    capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    assert main(("embed", str(model), "a", "--budget", "1M")) == 3
    assert "too small" in capsys.readouterr().err
    assert main(("embed", str(model), "a", "--max-file", "1k")) == 5
    assert "over the limit" in capsys.readouterr().err


def test_missing_model_or_input_exits_with_4(
    capsys: pytest.CaptureFixture[str], run_embed: Any, tmp_path: Path
) -> None:
    assert main(("embed", str(tmp_path / "none.gguf"), "a", "--json")) == 4
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "NotFoundError"
    code, _, err = run_embed("--input", tmp_path / "none.txt", "--output", tmp_path / "out.npy")
    assert code == 4
    assert "none.txt cannot be read" in err
    assert list(tmp_path.iterdir()) == []


# --- jobs


def test_every_input_format_gives_the_same_vectors(
    run_embed: Any, model: Path, tmp_path: Path
) -> None:
    texts = [f"this is text {i}" for i in range(50)]
    (tmp_path / "in.txt").write_text("\n".join(texts), encoding="utf-8")
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "in.csv").write_text(
        "n,text\n" + "\n".join(f'{i},"{one}"' for i, one in enumerate(texts))
    )
    (tmp_path / "in.tsv").write_text(
        "text\tn\n" + "\n".join(f"{one}\t{i}" for i, one in enumerate(texts))
    )
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    for kind in ("txt", "jsonl", "csv", "tsv", "parquet"):
        out = tmp_path / f"{kind}.npy"
        code, answer, err = run_embed("--input", tmp_path / f"in.{kind}", "--output", out, "--json")
        assert (code, err) == (0, "")
        summary = json.loads(answer)
        assert (summary["rows"], summary["vectors"], summary["skipped"]) == (50, 50, 0)
        assert np.load(out).shape == (50, 64)
        assert out.read_bytes() == (tmp_path / "txt.npy").read_bytes()
    expected = expected_vectors(model, texts)
    assert np.abs(np.load(tmp_path / "txt.npy") - expected).max() < 1e-6


def test_every_output_format_holds_the_same_vectors(run_embed: Any, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 30)
    for kind in ("npy", "jsonl", "parquet"):
        ids = () if kind == "npy" else ("--id-field", "id")
        code, _, err = run_embed("--input", source, "--output", tmp_path / f"out.{kind}", *ids)
        assert (code, err) == (0, "")
    expected = np.load(tmp_path / "out.npy")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    table = pq.read_table(tmp_path / "out.parquet")
    assert [line["id"] for line in lines] == table["id"].to_pylist() == [f"r{i}" for i in range(30)]
    for result in ([line["vector"] for line in lines], table["vector"].to_pylist()):
        assert np.array(result, dtype=np.float32).tobytes() == expected.tobytes()


def test_output_file_is_replaced_only_with_overwrite(
    run_embed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would be broken into two lines
    code, out, err = run_embed("one", "two", "--output", "out.npy")
    assert (code, err) == (0, "")
    assert out.startswith("2 vectors of 64 dimensions in out.npy\n2 rows, ")
    assert np.load(tmp_path / "out.npy").shape == (2, 64)
    code, out, err = run_embed("one", "two", "--output", tmp_path / "out.npy", "-q")
    assert code == 2
    assert "exists: --overwrite" in err
    assert run_embed("one", "--output", tmp_path / "out.npy", "--overwrite", "-q") == (0, "", "")
    assert np.load(tmp_path / "out.npy").shape == (1, 64)


def test_counts_of_one_are_singular(
    run_embed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "one"}\n{"text": null}\n')
    argv = ("--input", source, "--output", "out.npy", "--skip-bad", "--dimensions", "1")
    code, out, err = run_embed(*argv)
    assert (code, err) == (0, "")
    assert out.startswith("1 vector of 1 dimension in out.npy\n1 row, ")
    assert "\n1 row could not be embedded" in out
    assert "1 dimension, mean pooling" in run_embed("one", "--dimensions", "1")[1]
    status = BulkStatus(
        mark=ResumeMark(number=1), begun=ResumeMark(), seconds=1, share=None, share_begun=None
    )
    assert progress_line(status, width=80).startswith("1 row  1.0 rows/s")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("--dimensions", "3.5"),
            "--dimensions: '3.5' is not a whole number (write for example 8 or 32k)",
        ),
        (("--dimensions", "0.01k"), "--dimensions: '0.01k' is not a whole number"),  # 10.24
        (("--batch", "1.5"), "--batch: '1.5' is not a whole number"),
    ],
)
def test_fractional_number_is_an_error(run_embed: Any, argv: tuple[str, ...], message: str) -> None:
    code, out, err = run_embed("one", *argv)
    assert (code, out) == (2, "")
    assert message in err


BAD = '{"text": "one"}\n{"text": null}\n{"text": "three"}\nnonsense\n{"text": "%s"}\n' % (
    "word " * 600
)


def test_bad_row_is_an_error_or_with_skip_bad_is_listed(run_embed: Any, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(BAD)
    out = tmp_path / "out.npy"
    code, answer, err = run_embed("--input", source, "--output", out)
    assert (code, answer) == (2, "")
    assert f"{source}, row 2: 'text' is null, not a string (--skip-bad skips such rows)" in err
    assert "0 vectors are saved; run the same command again to continue" in err
    assert not out.exists()
    code, answer, err = run_embed("--input", source, "--output", out, "--skip-bad", "--json")
    assert (code, err) == (0, "")
    summary = json.loads(answer)
    assert (summary["rows"], summary["vectors"], summary["skipped"]) == (5, 2, 3)
    assert summary["skipped_list"] == f"{out}.skipped.jsonl"
    listed = [json.loads(line) for line in Path(summary["skipped_list"]).read_text().splitlines()]
    assert [row["row"] for row in listed] == [2, 4, 5]
    assert "tokens" in listed[2]["reason"]
    assert np.load(out).shape == (2, 64)


def test_truncate_embeds_a_row_that_is_too_long(run_embed: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(BAD)
    _, answer, _ = run_embed("--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.npy", "--skip-bad",
                     "--truncate", "--json")  # fmt: skip
    assert json.loads(answer)["vectors"] == 3


@pytest.mark.parametrize("link", [None, "symlink", "hardlink"])
@pytest.mark.parametrize(
    "ending",
    ["", ".partial", ".partial.finished", ".skipped.partial", ".skipped.jsonl", ".journal"],
)
@pytest.mark.parametrize("argv", [(), ("--overwrite",)])
def test_output_that_is_the_input_is_an_error(
    run_embed: Any, tmp_path: Path, link: str | None, ending: str, argv: tuple[str, ...]
) -> None:
    out = tmp_path / "out.jsonl"
    same_file = tmp_path / f"out.jsonl{ending}"
    source = same_file if link is None else tmp_path / "in.jsonl"
    source.write_text('{"text": "precious"}\n')
    if link == "symlink":
        same_file.symlink_to(source)
    elif link == "hardlink":
        same_file.hardlink_to(source)
    before = {path.name for path in tmp_path.iterdir()}
    code, _, err = run_embed("--input", source, "--format", "jsonl", "--output", out, *argv)
    assert code == 2
    assert f"{same_file} is the input itself" in err
    assert source.read_text() == '{"text": "precious"}\n'
    assert {path.name for path in tmp_path.iterdir()} == before


def test_output_that_is_the_model_or_stdin_is_an_error(
    run_embed: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.npy"
    out.hardlink_to(model)
    code, _, err = run_embed("one", "--output", out, "--overwrite")
    assert code == 2
    assert f"{out} is the model itself" in err
    assert out.samefile(model)
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "precious"}\n')
    with source.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        code, _, err = run_embed(
            "--input", "-", "--format", "jsonl", "--output", source, "--overwrite"
        )
    assert code == 2
    assert "is the input itself" in err
    assert source.read_text() == '{"text": "precious"}\n'


def test_damaged_parquet_exits_with_4(run_embed: Any, tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_bytes(b"PAR1 this is not")
    code, _, err = run_embed("--input", tmp_path / "in.parquet", "--output", tmp_path / "out.npy")
    assert code == 4
    assert "in.parquet is not a Parquet file" in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_csv_record_over_the_limit_is_an_error_also_when_resumed(
    run_embed: Any, tmp_path: Path
) -> None:
    source = tmp_path / "in.csv"
    source.write_text('id,text\n1,first\n2,"' + ("spam," * 200 + "line\n") * 9_000 + '"\n3,third\n')
    argv = ("--input", source, "--output", tmp_path / "out.npy", "--skip-bad")
    for _ in range(2):  # the second time as a resumed job
        code, _, err = run_embed(*argv)
        assert code == 2
        assert "in.csv, row 2 (from byte 16 on): a record longer than 8,000,000 bytes" in err
        assert not (tmp_path / "out.npy").exists()


SMALL_BUDGET = "192M"
PRINT_PEAK_MEMORY = """
import sys
from edgekit.cli import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:
    print(*(line.split()[1] for line in status if line.startswith("VmHWM")))
sys.exit(code)
"""


def long_text(number: int, size: int) -> str:
    """Mostly one byte per character in UTF-8, but four in memory."""
    return "\N{GRINNING FACE}" + (f"word{number} " * (size // 6))[:size]


def write_long_rows(path: Path, size: int, count: int = 6) -> Path:
    texts = [long_text(number, size) for number in range(count)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts * 3}), path, compression="zstd", write_batch_size=1)
    elif path.suffix == ".csv":
        path.write_text("text\n" + "".join(f"{text}\n" for text in texts), encoding="utf-8")
    else:
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@costly
@pytest.mark.parametrize(
    ("kind", "size"),
    sampled(tuple(product(("txt", "csv", "parquet"), (1_100_000, 3_000_000, 7_200_000))), each=4),
)
def test_long_rows_stay_within_the_memory_budget(
    model: Path, tmp_path: Path, kind: str, size: int
) -> None:
    """Rows below and above the row limit."""
    budget_mib = 320 if kind == "parquet" else 192  # Arrow alone may use 130 MiB
    source = write_long_rows(tmp_path / f"in.{kind}", size)
    argv = (
        "embed",
        model,
        "--input",
        source,
        "--output",
        tmp_path / "out.npy",
        "--skip-bad",
        "-q",
    )
    result = subprocess.run(
        [sys.executable, "-c", PRINT_PEAK_MEMORY, *map(str, argv), "--budget", f"{budget_mib}M"],
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) * 1024 < budget_mib * 1024**2
    listed = (tmp_path / "out.npy.skipped.jsonl").read_text().splitlines()
    assert len(listed) == (18 if kind == "parquet" else 6)
    over = f"the row limit for a budget of {budget_mib}.00 MiB"
    assert all((over in line) == (size > 2_700_000) for line in listed)


@pytest.mark.parametrize(("budget", "limit_bytes"), [("192M", 1_572_864), ("4G", 8_000_000)])
def test_parquet_page_far_over_the_limit_exits_with_2(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: str, limit_bytes: int
) -> None:
    """A few KB that would unpack to more than the limit are not unpacked at all."""
    source, most_bytes = tmp_path / "in.parquet", 3 * limit_bytes
    texts = ["fits", "a" * (most_bytes + 1)]
    pq.write_table(pa.table({"text": texts}), source, compression="zstd", row_group_size=1)
    del texts
    assert source.stat().st_size < 64 * 1024
    argv = ("--input", source, "--output", tmp_path / "out.npy", "--skip-bad", "--budget", budget)
    assert main(["embed", str(model), *map(str, argv)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(
        rf"in\.parquet: a page of row group 2 unpacks to {most_bytes // 10**6},\d{{3}},\d{{3}} bytes,"
        rf" but only {most_bytes:,} are allowed \(3 x {limit_bytes:,} bytes, the row limit for a budget of"
        r" [\d.]+ [MG]iB\): use a larger --budget, or write the file with smaller pages",
        err,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_resumed_job_keeps_its_row_limit(model: Path, tmp_path: Path) -> None:
    source, out = write_long_rows(tmp_path / "in.txt", 1_600_000, 2), tmp_path / "out.npy"
    run = [sys.executable, "-m", "edgekit", "embed", str(model), "--input", str(source)]
    run += ["--output", str(out), "-q"]
    first = subprocess.run([*run, "--budget", SMALL_BUDGET], capture_output=True, check=False)
    assert (first.returncode, b"row 1: a line longer than 1,572,864" in first.stderr) == (2, True)
    rest = subprocess.run([*run, "--skip-bad"], capture_output=True, check=False)
    assert (rest.returncode, rest.stderr) == (0, b"")
    listed = (tmp_path / "out.npy.skipped.jsonl").read_text()
    assert listed.count("a line longer than 1,572,864 bytes") == 2


# Saves a mark after every batch. Once a mark covers more rows than given, the job waits until it is killed.
HOLD_AFTER_ROWS = """
import sys, threading
from edgekit.cli import main
from edgekit.embed.bulk import output
output.MARK_EVERY_S = 0.0
most, save = int(sys.argv.pop(1)), output.FileOutput.save

def hold(self, digest, *, now=False):
    save(self, digest, now=now)
    if self.mark.number > most and not now:  # now: the job is ending
        threading.Event().wait()

output.FileOutput.save = hold
sys.exit(main(sys.argv[1:]))
"""


def start(
    *argv: object, held_at_rows: int | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Starts a job in its own process."""
    program = (
        ("-m", "edgekit") if held_at_rows is None else ("-c", HOLD_AFTER_ROWS, str(held_at_rows))
    )
    return subprocess.Popen(
        [sys.executable, *program, "embed", *map(str, argv), *BUDGET],
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        **options,
    )


def finish(process: subprocess.Popen[bytes], data: bytes | None = None) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(data, timeout=PATIENCE_S)
    return process.returncode, out, err


def rows_marked(journal: Path) -> int:
    """The number of rows that the last complete mark of a running job covers."""
    try:
        lines = journal.read_bytes().split(b"\n")
    except FileNotFoundError:
        return 0
    return int(json.loads(lines[-2]).get("number", 0)) if len(lines) > 2 else 0


def wait_until_marked(process: subprocess.Popen[bytes], journal: Path, rows: int) -> int:
    wait_until(lambda: process.poll() is not None or rows_marked(journal) > rows)
    assert process.poll() is None, process.communicate()
    return rows_marked(journal)


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", ROWS)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
@pytest.mark.parametrize("kind", ["npy", "jsonl", "parquet"] if LONG else ["parquet"])
def test_job_killed_twice_writes_the_same_file_as_one_run(
    run_embed: Any, model: Path, rows_file: Path, tmp_path: Path, kind: str
) -> None:
    ids = () if kind == "npy" else ("--id-field", "id")
    argv = ("--input", rows_file, *ids, "--batch", "32")
    once, out = tmp_path / f"once.{kind}", tmp_path / f"out.{kind}"
    code, _, err = run_embed(*argv, "--output", once)
    assert (code, err) == (0, "")
    marked = 0
    for minimum_rows in (ROWS // 10, ROWS // 4):
        killed = start(model, *argv, "--output", out, held_at_rows=minimum_rows)
        marked = wait_until_marked(killed, tmp_path / f"out.{kind}.journal", minimum_rows)
        killed.kill()
        finish(killed)
        assert killed.returncode == -signal.SIGKILL
        assert minimum_rows < marked < ROWS
        assert not out.exists()
        assert (tmp_path / f"out.{kind}.partial").exists()
    code, answer, err = run_embed(*argv, "--output", out, "--json")
    assert (code, err) == (0, "")
    summary = json.loads(answer)
    assert marked <= summary["resumed_rows"] < ROWS
    assert (summary["rows"], summary["vectors"]) == (ROWS, ROWS)
    assert out.read_bytes() == once.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {once.name, out.name}
    if kind == "parquet":
        assert pq.read_table(out)["id"].to_pylist() == [f"r{i}" for i in range(ROWS)]


@pytest.mark.skipif(sys.platform == "win32", reason="other signals")
def test_interrupted_job_is_not_resumed_with_other_options_or_input(
    run_embed: Any, model: Path, rows_file: Path, tmp_path: Path
) -> None:
    out, journal = tmp_path / "out.npy", tmp_path / "out.npy.journal"
    source = tmp_path / "in.jsonl"
    source.write_bytes(rows_file.read_bytes())
    argv = ("--input", source, "--output", out, "--batch", "4")
    process = start(model, *argv, held_at_rows=0)
    wait_until_marked(process, journal, 0)
    code, _, err = run_embed(*argv)  # while the first one runs
    assert code == 2
    assert "another job is writing to" in err
    process.send_signal(signal.SIGINT)
    code, answer, err = finish(process)
    assert (code, answer) == (130, b"")
    assert re.fullmatch(
        rb"edgekit: interrupted\. [\d,]+ vectors are saved; run the same command again to continue\n",
        err,
    )
    for more, changed in (
        (("--prefix", "x"), "options prefix changed"),
        (("--truncate",), "options truncate changed"),
        (("--threads", "1"), "plan threads changed"),
        (("--mode", "tokens"), "options mode"),
    ):
        code, _, err = run_embed(*argv, *more)
        assert code == 2
        assert changed in err
        assert "start over with --overwrite" in err
    os.utime(source, ns=(0, 0))
    code, _, err = run_embed(*argv)
    assert code == 2
    assert "input modified ns changed" in err
    short = tmp_path / "short.jsonl"
    write_rows(short, 10)
    code, _, _ = run_embed("--input", short, "--output", out, "--overwrite")
    assert code == 0
    assert np.load(out).shape == (10, 64)
    assert not journal.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="other signals")
def test_job_from_stdin_is_resumed_if_the_input_begins_the_same(
    run_embed: Any, model: Path, rows_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("--input", "-", "--format", "jsonl", "--batch", "32")
    once, out = tmp_path / "once.npy", tmp_path / "out.npy"
    data = rows_file.read_bytes()

    def run_with_stdin(stdin: bytes, *more: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        answer: tuple[int, str, str] = run_embed(*argv, *more)
        return answer

    assert run_with_stdin(data, "--output", once)[0] == 0
    with rows_file.open("rb") as rows:
        process = start(model, *argv, "--output", out, stdin=rows, held_at_rows=0)
        marked = wait_until_marked(process, tmp_path / "out.npy.journal", 0)
        process.kill()
        finish(process)
    code, _, err = run_with_stdin(b"x" + data, "--output", out)
    assert code == 4
    assert "differs from the input of the unfinished job" in err
    code, _, err = run_with_stdin(data[:1000], "--output", out)
    assert code == 4
    assert "standard input ends after 1,000 bytes" in err
    resumed = start(model, *argv, "--output", out, "--json", stdin=subprocess.PIPE)
    code, answer, _ = finish(resumed, data)
    assert code == 0
    assert marked <= json.loads(answer)["resumed_rows"] < ROWS
    assert out.read_bytes() == once.read_bytes()


def test_output_dash_writes_json_lines_to_stdout(model: Path, tmp_path: Path) -> None:
    data = b"one\n\ntwo\n"
    code, out, err = finish(
        start(model, "--input", "-", "--output", "-", "--skip-bad", stdin=subprocess.PIPE), data
    )
    assert code == 0
    assert [json.loads(line)["row"] for line in out.splitlines()] == [1, 3]
    assert b"row 2 skipped: the text is empty" in err
    assert b"2 vectors of 64 dimensions in standard output" in err


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes of this kind")
def test_closed_pipe_is_not_an_error(model: Path, rows_file: Path) -> None:
    process = start(model, "--input", rows_file, "--output", "-")
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["row"] == 1
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_behind_stdout_is_an_error(model: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        code, _, err = finish(start(model, "one", "--output", "-", stdout=full))
    assert code == 1
    assert err == b"edgekit: standard output cannot be written: No space left on device.\n"


LIMIT_FILE_SIZE = """
import resource, sys
from edgekit.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no RLIMIT_FSIZE")
def test_job_that_filled_the_disk_is_resumed(
    run_embed: Any, model: Path, rows_file: Path, tmp_path: Path
) -> None:
    """A limit of 100,000 bytes per file stands for the full disk: the write fails half-way."""
    once, out = tmp_path / "once.npy", tmp_path / "out.npy"
    argv = ("--input", str(rows_file), "--batch", "64", "--output")
    assert run_embed(*argv, once, "-q") == (0, "", "")
    full = subprocess.run(
        [
            sys.executable,
            "-c",
            LIMIT_FILE_SIZE,
            "100000",
            "embed",
            str(model),
            *BUDGET,
            *argv,
            str(out),
        ],
        capture_output=True,
        check=False,
    )
    assert full.returncode == 1
    assert re.search(
        rb"out\.npy cannot be written: File too large\. [\d,]+ vectors are saved: free some space",
        full.stderr,
    )
    assert not out.exists()
    assert run_embed(*argv, out, "-q") == (0, "", "")
    assert out.read_bytes() == once.read_bytes()


def test_unusable_output_is_an_error(run_embed: Any, tmp_path: Path) -> None:
    code, _, err = run_embed("one", "--output", tmp_path / "nowhere" / "out.npy")
    assert code == 1
    assert "does not exist: create it first" in err
    (tmp_path / "out.npy").mkdir()
    code, _, err = run_embed("one", "--output", tmp_path / "out.npy")
    assert code == 2
    assert "is a folder" in err
    code, _, err = run_embed(
        "--input",
        write_rows(tmp_path / "a.jsonl", 1),
        "--id-field",
        "id",
        "--output",
        tmp_path / "x.npy",
    )
    assert code == 2
    assert "cannot store ids" in err


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_progress_is_shown_on_a_terminal(model: Path, rows_file: Path, tmp_path: Path) -> None:
    import pty

    controller, terminal = pty.openpty()
    program = "import sys\nfrom edgekit.cli import embed, main\nembed.SHOW_EVERY_S = 0.0\nsys.exit(main())"
    argv = [
        sys.executable,
        "-c",
        program,
        "embed",
        str(model),
        "--input",
        str(rows_file),
        *BUDGET,
    ]
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    subprocess.run(
        [*argv, "--output", str(tmp_path / "out.npy"), "--batch", "16"],
        stderr=terminal, stdout=subprocess.DEVNULL, check=True, env=environment,
    )  # fmt: skip
    os.close(terminal)
    output = os.read(controller, 100_000).decode()
    os.close(controller)
    assert re.search(r"\[#+\.*\] \d+%  [\d,]+ rows  [\d,.]+ rows/s  [\d,]+ tokens/s  \d", output)
    assert re.search(r"[\d.]+ s left", output)
    assert output.endswith("\r\x1b[K")  # erased at the end


def test_json_keys_are_documented(run_embed: Any, tmp_path: Path) -> None:
    keys: set[str] = set()
    for argv in (
        ("a", "--json"),
        ("--plan", "--json"),
        ("a", "--json", "--output", tmp_path / "out.npy"),
    ):
        answer = json.loads(run_embed(*argv)[1])
        keys |= answer.keys() | {key for line in answer.get("lines", []) for key in line}
        keys |= {key for vector in answer["vectors"] for key in vector} if "lines" not in answer and isinstance(
            answer["vectors"], list) else set()  # fmt: skip
    assert keys == documented("embed", "embed --output", "embed --plan")
