"""`edgekit verify`: its text, JSON and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import tiny_llama
from tests.patience import PATIENCE_S, wait_until
from tests.thoroughness import costly, sampled

from edgekit.bill.types import Component, MemoryEstimate, MemoryLine
from edgekit.cli import main
from edgekit.engines.llamacpp import estimate as llamacpp
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.types import NEWEST, version_name
from edgekit.machine.types import HOST
from edgekit.units import MIB

pytest.importorskip("xllamacpp")

PARTS = ["weights", "kv cache", "sliding kv cache", "recurrent state", "output", "compute"]
FIELDS = {
    "schema", "model", "within", "rules_version", "engine", "facts", "parts", "total", "resident",
    "beside_bytes", "notes",
}  # fmt: skip
ROW_FIELDS = {
    "part", "predicted_bytes", "engine_bytes", "engine_low_bytes", "engine_high_bytes",
    "difference_bytes", "difference_share", "allowed_bytes", "within",
}  # fmt: skip


def verify(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(("verify", *arguments))
    out, err = capsys.readouterr()
    return code, out, err


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tiny_llama.write_model(tmp_path))


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the predicted compute buffer to another size."""
    estimate = llamacpp.estimate

    def set_to(size_bytes: int) -> None:
        def predict(*request: Any) -> MemoryEstimate:
            bill = estimate(*request)
            others = [line for line in bill.lines if line.component is not Component.COMPUTE]
            line = MemoryLine(component=Component.COMPUTE, size_bytes=size_bytes, pool=HOST)
            return replace(bill, lines=(*others, line))

        monkeypatch.setattr(llamacpp, "estimate", predict)

    return set_to


def engine_compute(capsys: pytest.CaptureFixture[str], model: str) -> int:
    _, out, _ = verify(capsys, model, "--json")
    size: int = json.loads(out)["parts"][-1]["engine_bytes"]
    return size


def test_exit_code_is_0_within_bounds_and_1_outside(
    capsys: pytest.CaptureFixture[str], model: str, compute: Any
) -> None:
    measured = engine_compute(capsys, model)
    assert measured < 40 * MIB  # a tenth of it is less than 4 MiB
    compute(measured + 3 * MIB)
    code, out, err = verify(capsys, model)
    assert (code, err) == (0, "")
    assert out.startswith("Within bounds")
    assert "predicted engine precision difference" in one_line(out)
    assert "compute within 10 %, or 4 MiB if that is more" in one_line(out)
    compute(measured + 5 * MIB)
    code, out, err = verify(capsys, model)
    assert (code, err) == (1, "")
    assert out.startswith("OUTSIDE BOUNDS: compute\n")


def test_large_compute_buffer_may_differ_by_a_tenth(
    capsys: pytest.CaptureFixture[str], compute: Any
) -> None:
    model = "sample:qwen3-30b-a3b"
    measured = engine_compute(capsys, model)
    assert measured > 40 * MIB
    compute(measured * 91 // 100)
    code, out, err = verify(capsys, model)
    assert (code, err) == (0, "")
    compute(measured * 88 // 100)
    code, out, err = verify(capsys, model)
    assert (code, err) == (1, "")
    assert out.startswith("OUTSIDE BOUNDS: compute\n")
    (line,) = (line for line in out.splitlines() if line.startswith("compute"))
    assert line.endswith("-12 %  outside")
    assert "may come from a change in that version" in one_line(out)


def test_sample_is_within_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = verify(capsys, "sample:qwen3-30b-a3b", "-c", "8k")
    assert (code, err) == (0, ""), out


def test_text_names_both_versions_and_every_part(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    _, out, _ = verify(capsys, model, "-c", "256", "-np", "1")
    text = one_line(out)
    assert f"predicted for llama.cpp {version_name(NEWEST, None)} · measured with xllamacpp" in text
    assert "256 tokens of context for 1 sequence" in text
    parts = [line.split("  ")[0] for line in out.split("difference\n")[1].splitlines()]
    assert parts[:5] == ["weights", "kv cache", "output", "compute", "total"]


def test_json_fields(capsys: pytest.CaptureFixture[str], model: str) -> None:
    _, out, _ = verify(capsys, model, "--json", "-c", "300", "-np", "2", "-no-kvu")
    result = json.loads(out)
    assert set(result) == FIELDS
    assert [row["part"] for row in result["parts"]] == PARTS
    assert all(set(row) == ROW_FIELDS for row in (*result["parts"], result["total"]))
    cache = result["parts"][1]
    # 2 sequences x 256 cells x 2 layers x (K 32 + V 32) x 2 bytes
    assert cache["predicted_bytes"] == 2 * 256 * 2 * (32 + 32) * 2
    assert cache["difference_bytes"] == 0
    assert cache["within"] is True
    assert result["engine"]["resolved"]["n_ctx_seq"] == "256"
    assert result["engine"]["mode"] == "server"
    total = sum(row["predicted_bytes"] for row in result["parts"])
    assert result["total"]["predicted_bytes"] == total
    assert result["within"] is all(row["within"] for row in result["parts"])


def test_load_shows_the_memory_of_the_process(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    _, out, _ = verify(capsys, model, "--json", "--load")
    steps = json.loads(out)["resident"]
    assert [step["when"] for step in steps][-1] == "8 tokens decoded"
    assert steps[-1]["resident_bytes"] > 10 * MIB
    _, out, _ = verify(capsys, model, "--load")
    assert "memory of the process" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["/nowhere.gguf"], 4, "no such file"),
        (["{}", "-ctv", "q8_0", "-fa", "off"], 2, "requires flash attention"),
        (["{}", "-c", "many"], 2, "-c"),
        (["{}", "--load", "--mode", "library"], 2, "only xllamacpp can load"),
        (["sample:gemma-3-27b", "--load"], 2, "not a file on this machine"),
        (["{}", "-ngl", "all"], 5, "finds no GPU on this machine"),
    ],
)
def test_exit_code_of_an_error(
    capsys: pytest.CaptureFixture[str], model: str, arguments: list[str], code: int, message: str
) -> None:
    if "GPU" in message and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU: what is tested is its absence")
    exit_code, out, err = verify(capsys, *(word.format(model) for word in arguments))
    assert (exit_code, out) == (code, "")
    assert message in err


def test_verify_without_an_engine_says_what_to_install(
    capsys: pytest.CaptureFixture[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tuple(replace(method, is_here=lambda: False) for method in binding.METHODS)
    monkeypatch.setattr(binding, "METHODS", missing)
    code, out, err = verify(capsys, model, "--json")
    assert code == 5
    assert "pip install 'edgekit-models[llama]'" in err
    assert json.loads(out)["error"]["type"] == "EngineError"


@costly
@pytest.mark.parametrize(
    ("number", "code"),
    sampled([(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], each=2),
)
def test_interrupted_verify_ends_the_engine_and_leaves_no_file(
    tmp_path: Path, model: str, number: signal.Signals, code: int
) -> None:
    tools, temporary = tmp_path / "bin", tmp_path / "tmp"
    tools.mkdir()
    temporary.mkdir()
    slow = tools / "llama-fit-params"
    slow.write_text(
        f"#!{sys.executable}\nimport os, time\nopen({str(tools / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    slow.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "edgekit", "verify", model, "--mode", "library"],
        env={**os.environ, "PATH": str(tools), "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: (tools / "pid").exists() and bool((tools / "pid").read_text()))
    assert list(temporary.iterdir())
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert list(temporary.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tools / "pid").read_text()), 0)
