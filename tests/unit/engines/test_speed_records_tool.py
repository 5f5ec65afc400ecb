"""tools/merge_speed_records.py: records from strangers, checked and merged into a file of points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tools.merge_speed_records import CHECKS, RefusedError, check_record, main
from tools.score_speed import score
from tools.speed_rows import MAX_LINES, read_rows

from edgekit.app.shared_speed import MAX_FILE_BYTES, NAMES
from edgekit.engines.llamacpp.run.generated import Shape, shape_name

GOOD: dict[str, Any] = {
    "record": 1, "date": "2026-11-16", "edgekit": "0.1.0", "source": "edgekit calibrate", "licence": "CC0-1.0",
    "hardware": "RTX 4090", "gpu_count": 1, "vram_gb": 24, "ram_gb": 64, "host_gb_s": 61.5, "cores": 8,
    "cpu": "Ryzen 7 7700", "instructions": "avx avx2 f16c sse", "os": "linux", "engine": "llama.cpp",
    "engine_version": "xllamacpp 2026.10.11549", "backend": "cuda", "model": "llama-3.1-8b", "quant": "Q4_K_M",
    "context_depth": 0, "users": 1, "prompt_tokens": 512, "gen_tokens": 32, "ubatch": 512, "ngl": None,
    "ncmoe": None, "placement": "full", "e2e": False, "pp_tok_s": 9000.0, "tg_tok_s": 140.0,
}  # fmt: skip
GENERATED = {
    "hardware": "Ryzen 7 7700", "backend": "cpu", "placement": "cpu", "vram_gb": None, "model": shape_name(Shape()),
    "quant": "Q4_K", "pp_tok_s": 400.0, "tg_tok_s": 90.0,
}  # fmt: skip


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def test_every_field_is_checked() -> None:
    assert set(CHECKS) == set(NAMES) == set(GOOD)


def test_good_records_are_taken_by_the_scorer_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [GOOD, GOOD | GENERATED]
    path = write(tmp_path / "records.jsonl", *records, GOOD)
    into = tmp_path / "points.jsonl"
    assert main([str(path), "--into", str(into)]) == 0
    assert capsys.readouterr().out == f"2 added to {into}, 1 already there, 0 refused\n"
    assert read_rows(into) == records
    scored, unknown = score(read_rows(into))
    assert (len(scored), unknown.total()) == (4, 0)
    assert main([str(path), "--into", str(into)]) == 0
    assert read_rows(into) == records


def test_fields_in_another_order_are_the_same_record(tmp_path: Path) -> None:
    path = write(tmp_path / "records.jsonl", GOOD, dict(reversed(GOOD.items())))
    main([str(path), "--into", str(tmp_path / "points.jsonl")])
    assert len(read_rows(tmp_path / "points.jsonl")) == 1


def test_points_of_other_sources_in_the_file_are_kept(tmp_path: Path) -> None:
    older = {"hardware": "RTX 3090", "source": "a paper"}
    into = write(tmp_path / "points.jsonl", older)
    assert main([str(write(tmp_path / "records.jsonl", GOOD)), "--into", str(into)]) == 0
    assert read_rows(into) == [older, GOOD]


def test_unknown_device_is_welcome() -> None:
    new = GOOD | {"hardware": "RTX 9999 Titanium"}
    assert check_record(new) == new


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another format": ({"record": 2}, "record must be 1"),
    "true as the format": ({"record": True}, "record must be 1"),
    "no date": ({"date": "yesterday"}, "date must be a date"),
    "a number as date": ({"date": 20261116}, "date must be a date"),
    "before EdgeKit": ({"date": "1999-12-31"}, "date must not be before"),
    "in the future": ({"date": "9999-12-31"}, "date must not be"),
    "another licence": ({"licence": "MIT"}, "licence must be 'CC0-1.0'"),
    "another source": ({"source": "me"}, "source must be 'edgekit calibrate'"),
    "zero speed": ({"tg_tok_s": 0}, "tg_tok_s must be a number from 0.001"),
    "text as speed": ({"tg_tok_s": "140"}, "tg_tok_s must be a number"),
    "true as speed": ({"pp_tok_s": True}, "pp_tok_s must be a number"),
    "negative RAM": ({"ram_gb": -64}, "ram_gb must be a whole number from 1"),
    "exact RAM": ({"ram_gb": 62.49}, "ram_gb must be a whole number"),
    "too many cards": ({"gpu_count": 65}, "gpu_count must be a whole number from 1 to 64"),
    "another engine": ({"engine": "ollama"}, "engine must be 'llama.cpp'"),
    "another backend": ({"backend": "quantum"}, "backend must be"),
    "another user": ({"users": 2}, "users must be 1"),
    "layers in RAM": ({"ngl": 10}, "ngl must be None"),
    "instructions": ({"instructions": "avx avx2 mmx"}, "instructions must be known"),
    "path": ({"hardware": "card in /home/ada/pc"}, "hardware contains a path"),
    "host name": ({"cpu": "build.example.org"}, "cpu contains a host name"),
    "address": ({"cpu": "box 10.0.0.7"}, "cpu contains an IP address"),
    "e-mail address": ({"hardware": "card of ada@example"}, "hardware contains an e-mail address"),
    "UUID": ({"hardware": "GPU 6f1b4a2e-0c7d-4e5f-8a9b-0c1d2e3f4a5b"}, "a serial number"),
    "control characters": ({"hardware": "RTX\x1b[2J"}, "hardware must be the name"),
    "another alphabet": ({"hardware": "RTX 4\u04309"}, "hardware must be the name"),
    "a long name": ({"hardware": "R" * 97}, "of up to 96 characters"),
    "a file as model": ({"model": "pyproject.toml"}, "model is not in EdgeKit's own index"),
    "a folder as model": ({"model": "docs"}, "model is not in EdgeKit's own index"),
    "a path as model": ({"model": "../secret"}, "model must be the id"),
    "another spelling": ({"model": "llama-3.1-8b-instruct"}, "model is not in EdgeKit's own index"),
    "unknown quant": ({"quant": "Q9_Z"}, "unknown quantisation Q9_Z"),
    "a huge shape": (GENERATED | {"model": shape_name(Shape(layers=9999))}, "larger than any"),
    "a wrong shape": (GENERATED | {"model": "generated:layers=8"}, "is not the shape"),
    "a shape in parts": (GENERATED | {"model": shape_name(Shape(heads=7))}, "is not the shape"),
    "contradiction": ({"placement": "cpu"}, "backend and placement contradict each other"),
    "two devices": ({"hardware": "2x RTX 4090"}, "hardware must name one device"),
    "too fast": ({"tg_tok_s": 99_999}, "more than a factor of 10 off"),
    "too slow": ({"pp_tok_s": 1.0}, "more than a factor of 40 off"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_record_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusedError) as caught:
        check_record(GOOD | changes)
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_record_without_a_field_is_refused(name: str) -> None:
    with pytest.raises(RefusedError, match=f"missing: {name}"):
        check_record({key: value for key, value in GOOD.items() if key != name})


def test_unknown_field_is_refused() -> None:
    with pytest.raises(RefusedError, match="unknown: 'host'"):
        check_record(GOOD | {"host": "ada"})


def test_every_refused_line_is_reported_and_the_others_are_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "records.jsonl"
    lines = [
        json.dumps(GOOD),
        "my notes",
        "",
        "[1, 2]",
        json.dumps(GOOD).replace("140.0", "NaN"),
        json.dumps(GOOD).replace("140.0", "1e999"),
        json.dumps(GOOD).replace("140.0", "9" * 5000),
        json.dumps(GOOD)[:-1] + ', "users": 1}',
        "[" * 20_000,
    ]
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\n")
    into = tmp_path / "points.jsonl"
    assert main([str(path), "--into", str(into)]) == 1
    out, err = capsys.readouterr()
    assert out == f"1 added to {into}, 0 already there, 8 refused\n"
    assert [line.partition(": ")[2].partition(": ")[0] for line in err.splitlines()] == [
        f"{path}, line {number}" for number in (2, 4, 5, 6, 7, 8, 9, 10)
    ]
    for words in ("not JSON", "not an object", "NaN is not a number", "tg_tok_s must be a number", "appears twice"):  # fmt: skip
        assert words in err


def test_points_go_into_files_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = str(write(tmp_path / "records.jsonl", GOOD))
    assert main([records, "--into", str(tmp_path)]) == 2
    assert "is not a file" in capsys.readouterr().err
    into, link = write(tmp_path / "points.jsonl"), tmp_path / "link.jsonl"
    link.symlink_to(into)
    assert main([records, "--into", str(link)]) == 0
    assert link.is_symlink()
    assert read_rows(into) == [GOOD]


def test_names_that_no_table_has_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = GOOD | {"cpu": "the PC of Ada"}
    into = tmp_path / "points.jsonl"
    main([str(write(tmp_path / "records.jsonl", GOOD, new)), "--into", str(into)])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "not in EdgeKit's tables, read it before you publish the file: the PC of Ada"
    ]


STRANGE: dict[str, dict[str, Any]] = {
    "no bandwidth": {"host_gb_s": 1e-300, "backend": "cpu", "hardware": "Ryzen 7 7700"},
    "true as model": {"model": True},
    "a number as model": {"model": -1},
    "true as speed": {"tg_tok_s": True},
    "too fast": {"tg_tok_s": 1e308},
}  # fmt: skip


@pytest.mark.parametrize("changes", STRANGE.values(), ids=STRANGE.keys())
def test_scorer_counts_rows_that_cannot_be_read(changes: dict[str, Any]) -> None:
    scored, unknown = score([GOOD, GOOD | changes])
    assert len(scored) == 2
    assert unknown.total() == 2


def test_scorer_refuses_endless_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_bytes(b"\n" * (MAX_LINES + 1))
    with pytest.raises(ValueError, match="more than 100,000 lines"):
        read_rows(path)


def test_long_missing_and_other_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long, many = tmp_path / "long.jsonl", tmp_path / "many.jsonl"
    long.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    many.write_bytes(b"\n" * 1002)
    into = tmp_path / "points.jsonl"
    paths = [long, many, tmp_path / "nowhere.jsonl", tmp_path]
    assert main([*map(str, paths), "--into", str(into)]) == 1
    out, err = capsys.readouterr()
    assert out == f"0 added to {into}, 0 already there, 4 refused\n"
    assert err.count("longer than 65,536 bytes or 1,000 lines") == 2
    assert not into.exists()
