"""`edgekit estimate --batch`: one answer for each row, also for a row with an error."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.calls import calls_of
from tests.patience import PATIENCE_S
from tests.recorded import options_of, rows
from tests.unit.cli.test_estimate import write_model

from edgekit.app.open import open_named
from edgekit.cli import estimate as batch
from edgekit.cli import main
from edgekit.cli.estimate import BatchModels, answer_line
from edgekit.sources.types import Reach

KEYS = {
    "model_bytes", "kv_bytes", "kv_swa_bytes", "recurrent_bytes", "output_bytes", "compute_bytes",
    "runtime_bytes", "total_bytes", "basis", "pools",
}  # fmt: skip
SAMPLE = {"model": "sample:gemma-3-27b", "engine": "llama.cpp", "options": {"n_ctx": 4096}}


def batch_answers(
    capsys: pytest.CaptureFixture[str], folder: Path, lines: list[Any]
) -> list[dict[str, Any]]:
    """The answers to these rows, which are written as JSON unless they are strings."""
    path = folder / "rows.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    assert main(["estimate", "--batch", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


def test_recorded_cpu_rows_are_answered_with_the_recorded_bytes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = {("gemma-3-4b", "Q8_0"), ("lfm2-1.2b", "Q4_K_M"), ("deepseek-v2-lite", "Q4_K_M")}
    recorded = [r for r in rows("llama_cpp_cpu.jsonl.gz") if (r["model"], r["quant"]) in names]
    paths = {key: write_model(tmp_path, *key) for key in names}
    requests = [
        {
            "id": i,
            "model": str(paths[row["model"], row["quant"]]),
            "engine": "llama.cpp",
            "backend": row["backend"],
            "options": row["options"],
        }
        for i, row in enumerate(recorded)
    ]
    result = batch_answers(capsys, tmp_path, requests)
    assert [answer["id"] for answer in result] == list(range(len(recorded)))
    for row, answer in zip(recorded, result, strict=True):
        actual = row["actual"]
        if "error" in actual:
            assert answer["type"] == "RefusedError"
            continue
        assert answer.keys() == KEYS | {"id", "ignored"}
        assert answer["ignored"] == ["threads"]  # it does not change the memory
        assert answer["model_bytes"] == actual["model_buffer_bytes"]
        for name in ("kv_bytes", "kv_swa_bytes", "recurrent_bytes", "output_bytes"):
            assert answer[name] == actual[name], (name, row)
        assert answer["pools"]["host"]["context"] == actual["context_bytes"]
        assert answer["total_bytes"] == sum(
            answer[name] for name in KEYS if name.endswith("_bytes") and name != "total_bytes"
        )


def test_recorded_gpu_rows_are_answered_with_the_recorded_bytes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_model(tmp_path, "qwen3-30b-a3b", "Q4_K_M")
    recorded = [
        row
        for row in rows("llama_cpp_cuda.jsonl.gz")
        if (row["model"], row["quant"]) == ("qwen3-30b-a3b", "Q4_K_M") and "breakdown" in row
    ]
    requests = [
        {"model": str(path), "engine": "llama.cpp", "backend": "cuda", "options": options_of(row)}
        for row in recorded
    ]
    assert len(requests) > 20
    for row, answer in zip(recorded, batch_answers(capsys, tmp_path, requests), strict=True):
        model, context, _ = row["breakdown"]["CUDA0"]
        assert answer["pools"]["device"]["model"] == model
        assert answer["pools"]["device"]["context"] == context


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("nonsense", "not valid JSON"),
        ("[1, 2]", "is a list, not an object"),
        ("12", "is a int"),
        ('{"model": ', "not valid JSON"),
        ("[" * 30_000, "not valid JSON"),
        ("1" * 6_000, "not valid JSON"),
        ('{"a": [' + "[]," * 40_000 + "1]}", "over the limit"),
        ({}, "neither a model"),
        ({"model": 7}, "neither a model"),
        ({"model": ""}, "neither a model"),
        ({"model": "no/such/folder/x.gguf"}, "x.gguf"),
        ({"model": "a\0b"}, ""),
        ({"config": [1]}, "config is not an object"),
        ({"config": {}, "engine": "vllm"}, ""),
        (SAMPLE | {"engine": "tgi"}, "unknown engine"),
        (SAMPLE | {"engine": ["vllm"]}, "must be names"),
        (SAMPLE | {"backend": {"a": 1}}, "must be names"),
        (SAMPLE | {"backend": "tpu"}, "tpu"),
        (SAMPLE | {"options": "n_ctx=4096"}, "options must be an object"),
        (SAMPLE | {"options": {"n_ctx": "many"}}, "n_ctx"),
        (SAMPLE | {"options": {"n_ctx": -1}}, "context -1"),
        (SAMPLE | {"options": {"n_ctx": 10**40}}, "n_ctx 1"),
        (SAMPLE | {"options": {"kv_unified": "false"}}, "neither true nor false"),
        (SAMPLE | {"options": {"tensor_split": "1,2"}}, "is not a list of up to 16 shares"),
        (SAMPLE | {"options": {"tensor_split": [1, "x"]}}, "is not a share"),
        (SAMPLE | {"options": {"n_devices": 10**9}}, "not between 1 and 16"),
        (SAMPLE | {"options": {"type_k": "q7"}}, "unknown cache type"),
        (SAMPLE | {"options": {"type_v": "q8_0", "flash_attn": "off"}}, "requires flash attention"),
        (SAMPLE | {"options": {"tensor_split": ["a"]}}, ""),
        (SAMPLE | {"context": 5}, "a row has no key 'context': the context is an option, n_ctx"),
        (SAMPLE | {"engine": "vllm", "context": 5}, "the context is an option, max_model_len"),
        (SAMPLE | {"enigne": "vllm"}, "a row has no key 'enigne': did you mean engine?"),
        (SAMPLE | {"zzz": 1}, "a row has no key 'zzz' (known keys: id, model, config,"),
        (SAMPLE | {"options": {"nctx": 5}}, "llama.cpp has no option 'nctx': did you mean n_ctx?"),
        (SAMPLE | {"options": {"context": 5}}, "llama.cpp has no option 'context': did you mean n_ctx?"),
        (SAMPLE | {"options": {"typek": "q8_0"}}, "llama.cpp has no option 'typek': did you mean type_k?"),
    ],
)  # fmt: skip
def test_failed_row_has_an_error(
    row: Any, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The rows before and after it are answered."""
    first, wrong, last = batch_answers(capsys, tmp_path, [SAMPLE, row, SAMPLE])
    assert message in wrong["error"]
    assert wrong["error"]
    assert wrong["type"]
    assert first == last
    assert first.keys() == KEYS


def test_blank_lines_are_skipped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert len(batch_answers(capsys, tmp_path, ["", SAMPLE, "   ", "\t\r", SAMPLE, ""])) == 2


def test_too_long_row_is_skipped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "ROW_BYTES", 1000)
    long = SAMPLE | {"comment": "x" * 5000}
    result = batch_answers(capsys, tmp_path, [SAMPLE, long, SAMPLE])
    assert ["error" in answer for answer in result] == [False, True, False]
    assert "longer than 1,000 bytes" in result[1]["error"]


def test_row_ids_are_repeated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with_ids = [SAMPLE | {"id": name} for name in ("a", 7, 1.5, None, {"a": 1})]
    result = batch_answers(capsys, tmp_path, [*with_ids, {"id": "b"}])
    assert [answer.get("id") for answer in result] == ["a", 7, 1.5, None, None, "b"]


def test_default_engine_follows_the_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with_engine, default = batch_answers(
        capsys, tmp_path, [SAMPLE, {k: v for k, v in SAMPLE.items() if k != "engine"}]
    )
    assert with_engine == default


def test_row_may_name_a_catalog_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    row = {"model": "qwen3-8b", "options": {"n_ctx": 4096}}
    by_name, for_vllm = batch_answers(
        capsys, tmp_path, [row, row | {"engine": "vllm", "options": {"max_model_len": 4096}}]
    )
    assert by_name["model_bytes"] == 5_021_827_072  # its size at Q4_K_M in the catalog
    assert by_name["kv_bytes"] == 36 * 4096 * 2 * 8 * 128 * 2
    assert for_vllm["model_bytes"] > 3 * by_name["model_bytes"]  # as published, 16 bits


def test_model_is_opened_again_only_when_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = open_named

    def open_and_record(reference: str, *more: Any) -> Any:
        opened.append(reference)
        return real(reference, *more)

    monkeypatch.setattr(batch, "open_named", open_and_record)
    batch_models = BatchModels(Reach(network=False))
    path = write_model(tmp_path, "lfm2-1.2b", "Q4_K_M")
    missing = str(tmp_path / "missing.gguf")
    for _ in range(3):
        for reference in (str(path), missing):
            answer_line(json.dumps({"model": reference}).encode(), batch_models)
    assert opened == [str(path), missing]
    os.utime(path, ns=(1, 1))  # as if it had been written again
    answer_line(json.dumps({"model": str(path)}).encode(), batch_models)
    assert opened[2:] == [str(path)]


def test_model_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_MODELS", 2)
    monkeypatch.setattr(batch, "ANSWERS_BEFORE_RESET", 2)
    batch_models = BatchModels(Reach(network=False))
    gemma, qwen = ({"model": f"sample:{name}"} for name in ("gemma-3-27b", "qwen3-30b-a3b"))
    _, first, _ = batch_models.of_row(gemma)
    _, second, _ = batch_models.of_row(gemma)
    assert second is not first  # the engines' caches for it are dropped
    assert second.header is first.header  # but its header is not read again
    batch_models.of_row(qwen)
    with pytest.raises(Exception, match="sample"):
        batch_models.of_row({"model": "sample:none"})
    assert batch_models.of_row(gemma)[1].header is not first.header  # it was the oldest of three


def test_internal_error_fails_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(batch, "sums_json", broken)
    answer = json.loads(answer_line(json.dumps(SAMPLE).encode(), BatchModels(Reach(network=False))))
    assert answer == {"error": "ZeroDivisionError: oh", "type": "InternalError"}


def test_rows_are_read_from_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(SAMPLE).encode())))
    assert main(["estimate", "--batch", "-"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == KEYS


def test_answers_are_written_before_all_rows_are_read() -> None:
    command = [sys.executable, "-m", "edgekit", "estimate", "--batch", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            process.stdin.write(json.dumps(SAMPLE).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()).keys() == KEYS
        process.stdin.close()
        assert process.wait(timeout=PATIENCE_S) == 0


def test_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text((json.dumps(SAMPLE) + "\n") * 2000, encoding="utf-8")
    command = f"{sys.executable} -m edgekit estimate --batch {path} | head -1"
    completed = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert len(completed.stdout.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_error_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(SAMPLE) + "\n", encoding="utf-8")
    command = f"{sys.executable} -m edgekit estimate --batch {path} > /dev/full"
    completed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert "could not be written" in completed.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no file size limits here")
def test_disk_that_fills_up_between_rows_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text((json.dumps(SAMPLE) + "\n") * 20, encoding="utf-8")
    command = f"{sys.executable} -m edgekit estimate --batch {path} > {tmp_path / 'answers'}"
    shell = f"trap '' XFSZ; ulimit -f 1; {command}"  # one block of 1,024 bytes, then EFBIG
    process = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert "could not be written" in process.stderr


def test_next_row_of_a_model_takes_few_calls(tmp_path: Path) -> None:
    """Over 200 rows a second on an idle machine, because the header is read once."""
    path = write_model(tmp_path, "gemma-3-4b", "Q8_0")
    lines = [
        json.dumps(
            {"model": str(path), "options": {"n_ctx": 256 * (i + 1), "n_seq_max": 1}}
        ).encode()
        for i in range(10)
    ]
    batch_models = BatchModels(Reach(network=False))
    answer_line(lines[0], batch_models)
    for line in lines[1:]:
        assert b'"error"' not in answer_line(line, batch_models).encode()
        assert calls_of(partial(answer_line, line, batch_models)) < 10_000
