"""`edgekit calibrate`, and the commands that use its results."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests import tiny_llama
from tests.documented import documented
from tests.patience import PATIENCE_S
from tests.runnable import write_chatting
from tests.thoroughness import costly
from tests.unit.cli.conftest import QUICK, RunEdgekit
from tests.unit.machine.test_calibration import DIFFERENCE, DISK, ENGINE, HOST, PACE

from edgekit.app import calibrate as app_calibrate
from edgekit.app.calibrate import Calibrated, calibrate
from edgekit.cli import main
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.generated import write_test_model
from edgekit.engines.speed_formula import constants_digest
from edgekit.machine import calibration
from edgekit.machine.calibration import (
    NAME,
    change_calibration,
    device_key,
    host_key,
    read_calibration,
)
from edgekit.machine.probes import detect
from edgekit.machine.types import Calibration
from edgekit.report.run import calibrated_text
from edgekit.units import MIB

LARGE_VOCABULARY = 100_000  # smallest vocabulary with which llama.cpp's overhead is saved
MEASURED = {"schema", "path", "host", "engine", "timed", "within", "parts", "notes"}
LISTED = {"schema", "path", "removed", "hosts", "engines", "differences", "problem"}


@pytest.fixture
def saves_small_vocabularies(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp's overhead is saved for a small model too, because that loads quickly."""
    monkeypatch.setattr(app_calibrate, "LEAST_VOCABULARY", QUICK.shape.vocabulary)


@pytest.fixture
def saved(data: Path, monkeypatch: pytest.MonkeyPatch) -> Calibration:
    """A hand-written calibration of this machine."""
    monkeypatch.setattr(calibration, "installed_version", lambda _: "2026.10")
    here = detect()
    key = host_key(here)
    result = Calibration(
        hosts=(replace(HOST, host=key),),
        engines=(replace(ENGINE, host=key, device=device_key(here)),),
        differences=(DIFFERENCE,),
    )
    change_calibration(lambda _: result)
    return result


def test_calibrate_measures_and_saves(
    data: Path, monkeypatch: pytest.MonkeyPatch, run_edgekit: RunEdgekit
) -> None:
    pytest.importorskip("xllamacpp")
    large = replace(QUICK, shape=replace(QUICK.shape, vocabulary=LARGE_VOCABULARY))
    monkeypatch.setattr("edgekit.cli.measure.calibrate", partial(calibrate, options=large))
    code, out, err = run_edgekit("calibrate")
    assert code == 0
    first, *_ = out.splitlines()
    assert re.fullmatch(r"Measured: memory bandwidth .* GB/s, llama\.cpp overhead .*", first)  # fmt: skip
    for label in ("\nMachine  ", "\nMemory   ", "\nEngine   llama.cpp (xllamacpp ", "\nEstimate "):  # fmt: skip
        assert label in out
    assert str(data / NAME) in "".join(out.split())
    assert [line.split(":")[0] for line in err.splitlines()] == ["edgekit"] * len(err.splitlines())
    assert "starting xllamacpp" in err
    assert read_calibration().calibration.engines


def test_calibrate_json(data: Path, tmp_path: Path, run_edgekit: RunEdgekit) -> None:
    pytest.importorskip("xllamacpp")
    code, out, err = run_edgekit("calibrate", str(tiny_llama.write_model(tmp_path)), "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert set(result) == MEASURED
    assert result["path"] == str(data / NAME)
    assert result["engine"]["overhead_bytes"] is None  # too small a vocabulary
    assert (
        "which was not saved: small.gguf has a vocabulary of only 260 tokens" in result["notes"][-1]
    )
    assert result["engine"]["pace"]["label"] == "small.gguf"
    assert result["within"] is all(row["within"] for row in result["parts"])
    assert result["parts"][0]["difference_bytes"] == 0
    assert result["timed"]["decode_tokens_per_s"] > 0
    assert has_documented_keys(result)


def has_documented_keys(answer: Any) -> bool:
    """Whether docs/data/json.tsv explains every name of the answer."""
    return keys_in(answer) <= documented("calibrate")


def keys_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {name for item in value.values() for name in keys_in(item)}
    return {name for item in value for name in keys_in(item)} if isinstance(value, list) else set()


def test_nothing_measured_is_not_reported_as_saved(
    data: Path, monkeypatch: pytest.MonkeyPatch, run_edgekit: RunEdgekit
) -> None:
    none = tuple(replace(method, is_here=lambda: False) for method in binding.METHODS)
    monkeypatch.setattr(binding, "METHODS", none)
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setattr(app_calibrate, "_filesystem", lambda _: "ext4")
    code, out, err = run_edgekit("calibrate")
    assert (code, err) == (0, "")
    assert out.startswith("Measured: nothing that can be saved\n")
    assert "\nSaved" not in out
    assert "No module named" not in out
    assert not data.exists()


def test_disk_speed_alone_is_a_result(data: Path) -> None:
    """Where the overhead was not saved, the speed of llama.cpp is in the first line instead."""
    result = Calibrated(host=replace(HOST, bandwidth_bytes_per_s=None))
    assert calibrated_text(result, "there").startswith("Measured: disk 2 GB/s\n")
    assert "\nSaved    there\n" in calibrated_text(result, "there")
    reported_speed = replace(result, engine=replace(ENGINE, overhead_bytes=None))
    first = calibrated_text(reported_speed, "there").splitlines()[0]
    assert first == "Measured: disk 2 GB/s, llama.cpp speed 3.5 tokens/s"


def test_list_text(saved: Calibration, data: Path, run_edgekit: RunEdgekit) -> None:
    code, out, err = run_edgekit("calibrate", "--list")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert text.startswith(f"1 machine, 1 engine, 1 difference in {data / NAME}")
    assert "18 GB/s with all cores, 2026-11-16" in text
    assert "/tmp: read 2 GB/s, write 1 GB/s" in text
    assert "90.00 MiB of RAM in addition to the estimate (1 run, 2026-11-16, highest with a model)" in text  # fmt: skip
    assert "3.5 tokens/s, 40.2 tokens/s for a prompt of 512 tokens: a model, 4.00 GiB per token" in text  # fmt: skip
    assert "a model: compute 10.00 MiB predicted, 20.00 MiB in llama.cpp 0.6.0" in text


@pytest.mark.parametrize("command", [("calibrate", "--list"), ("hardware",)])
@pytest.mark.parametrize(("constants", "notes"), [("", 1), (constants_digest(), 0)])
def test_speed_of_other_constants_is_noted(
    saved: Calibration,
    run_edgekit: RunEdgekit,
    command: tuple[str, ...],
    constants: str,
    notes: int,
) -> None:
    pace = replace(PACE, constants=constants)
    engines = tuple(replace(engine, pace=pace) for engine in saved.engines)
    change_calibration(lambda old: replace(old, engines=engines))
    out = " ".join(run_edgekit(*command)[1].split())
    assert "3.5 tokens/s" in out
    assert out.count("this speed is not used: the speed model has changed since") == notes


def test_list_json(saved: Calibration, run_edgekit: RunEdgekit) -> None:
    result = json.loads(run_edgekit("calibrate", "--list", "--json")[1])
    assert set(result) == LISTED
    assert (result["removed"], result["problem"]) == (False, None)
    assert result["engines"][0]["pace"]["expected_decode"] == PACE.expected_decode
    assert result["hosts"][0]["disk"]["read_bytes_per_s"] == DISK.read_bytes_per_s
    assert has_documented_keys(result)


def test_list_and_remove_without_a_calibration(data: Path, run_edgekit: RunEdgekit) -> None:
    code, out, err = run_edgekit("calibrate", "--list")
    assert (code, err) == (0, "")
    assert out == "Nothing measured yet: run `edgekit calibrate`\n"
    assert run_edgekit("calibrate", "--remove") == (0, "Nothing to remove\n", "")
    assert json.loads(run_edgekit("calibrate", "--remove", "--json")[1])["removed"] is False
    assert not data.exists()


def test_remove(saved: Calibration, data: Path, run_edgekit: RunEdgekit) -> None:
    code, out, _ = run_edgekit("calibrate", "--remove")
    assert code == 0
    assert out.startswith("Removed: 1 machine, 1 engine, 1 difference in ")
    assert not (data / NAME).exists()
    assert detect().measured is None


def test_remove_json(saved: Calibration, run_edgekit: RunEdgekit) -> None:
    result = json.loads(run_edgekit("calibrate", "--remove", "--json")[1])
    assert result["removed"] is True
    assert len(result["engines"]) == 1


def test_damaged_file_is_reported_by_every_command(data: Path, run_edgekit: RunEdgekit) -> None:
    data.mkdir()
    (data / NAME).write_text("my notes")
    assert "a damaged calibration" in " ".join(run_edgekit("calibrate", "--list")[1].split())
    assert "a damaged calibration" in " ".join(run_edgekit("hardware")[1].split())
    code, out, _ = run_edgekit("calibrate", "--remove")
    assert code == 0
    assert "moved to" in out
    assert (data / "calibration.damaged-1.json").read_text() == "my notes"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("model.gguf", "--list"), 2, "give only one of MODEL, --list and --remove"),
        (("--list", "--remove"), 2, "give only one of MODEL, --list and --remove"),
        (("/nowhere.gguf",), 4, "no such file"),
        (("sample:gemma-3-27b",), 2, "only a header, without weights"),
    ],
)
def test_error_message_and_exit_code(
    data: Path, run_edgekit: RunEdgekit, argv: tuple[str, ...], code: int, message: str
) -> None:
    pytest.importorskip("xllamacpp")
    result, out, err = run_edgekit("calibrate", *argv)
    assert (result, out) == (code, "")
    assert message in err
    assert not (data / NAME).exists()


def test_damaged_file_is_an_error(data: Path, tmp_path: Path, run_edgekit: RunEdgekit) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    code, out, err = run_edgekit("calibrate", str(path), "--json")
    assert code == 5
    assert json.loads(out)["error"]["message"] in err
    assert not (data / NAME).exists()


def test_truncated_file_is_an_error(data: Path, tmp_path: Path, run_edgekit: RunEdgekit) -> None:
    pytest.importorskip("xllamacpp")
    path = tiny_llama.write_model(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) - 4096])
    code, out, err = run_edgekit("calibrate", str(path))
    assert (code, out) == (5, "")
    assert "file is truncated: tensor " in err
    assert not (data / NAME).exists()


def test_model_that_only_the_engine_rejects_shows_its_last_output(
    data: Path, tmp_path: Path, run_edgekit: RunEdgekit
) -> None:
    pytest.importorskip("xllamacpp")
    path = write_chatting(tmp_path / "odd.gguf", keys={"tokenizer.ggml.pre": "no-such-pre"})
    code, out, err = run_edgekit("calibrate", str(path))
    assert (code, out) == (5, "")
    assert "no-such-pre" in err
    assert not (data / NAME).exists()


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["calibrate", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "edgekit calibrate model.gguf" in out
    assert "exit codes: 0 measured" in out


CALIBRATE_SLOWLY = f"""
import sys
from functools import partial
from edgekit.cli import main
from edgekit.app import calibrate as app_calibrate
from edgekit.engines.llamacpp.run.generated import Shape
from edgekit.engines.program import CalibrateOptions
slow = {replace(QUICK, pace_seconds=60.0)!r}
app_calibrate.calibrate = partial(app_calibrate.calibrate, options=slow)
sys.exit(main(["calibrate"]))
"""


@costly
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_leaves_no_files(tmp_path: Path, number: signal.Signals, code: int) -> None:
    pytest.importorskip("xllamacpp")
    temporary, data = tmp_path / "tmp", tmp_path / "data"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", CALIBRATE_SLOWLY],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TMPDIR": str(temporary), "EDGEKIT_DATA": str(data)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any(line.startswith("edgekit: starting") for line in process.stderr)
    assert list(temporary.iterdir())
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert list(temporary.iterdir()) == []
    assert not data.exists()


# --- other commands


def test_hardware_shows_the_calibration(saved: Calibration, run_edgekit: RunEdgekit) -> None:
    out = " ".join(run_edgekit("hardware")[1].split())
    assert "18 GB/s, measured here on 2026-11-16" in out
    assert "Measured llama.cpp (xllamacpp 2026.10) on" in out
    assert "90.00 MiB of RAM in addition to the estimate" in out
    assert "outside its bounds: a model: compute 10.00 MiB predicted" in out
    result = json.loads(run_edgekit("hardware", "--json")[1])["machine"]
    assert result["host"]["bandwidth_because"] == "measured here on 2026-11-16"
    assert result["calibration"]["engines"][0]["overhead_bytes"] == 90 * MIB
    assert has_documented_keys(result["calibration"])


def test_described_machine_has_no_calibration(saved: Calibration, run_edgekit: RunEdgekit) -> None:
    result = json.loads(run_edgekit("hardware", "--json", "--ram", "16G")[1])["machine"]
    assert (result["calibration"], result["host"]["bandwidth_because"]) == (None, None)
    assert "Measured" not in run_edgekit("hardware", "--ram", "16G")[1]


def test_check_counts_overhead_only_on_this_machine(
    saved: Calibration, tmp_path: Path, run_edgekit: RunEdgekit
) -> None:
    model = str(tiny_llama.write_model(tmp_path))

    def estimate(*argv: str) -> Any:
        return json.loads(run_edgekit("check", model, "--json", *argv)[1])["estimate"]

    assert estimate()["runtime_bytes"] == 90 * MIB
    assert estimate()["basis"] == "modelled"
    assert estimate("--ram", "16G")["runtime_bytes"] == 0
    run_edgekit("calibrate", "--remove")
    assert estimate()["runtime_bytes"] == 0
    assert estimate()["basis"] == "exact"


@pytest.mark.usefixtures("saves_small_vocabularies")
def test_verify_load_saves_overhead(data: Path, tmp_path: Path, run_edgekit: RunEdgekit) -> None:
    pytest.importorskip("xllamacpp")
    model = str(tmp_path / "large.gguf")
    write_test_model(Path(model), QUICK.shape)
    _, out, _ = run_edgekit("verify", model)
    assert "Saved for this machine" not in out
    assert not data.exists()
    _, out, _ = run_edgekit("verify", model, "--load")
    assert "Saved for this machine: " in out
    (row,) = read_calibration().calibration.engines
    assert (row.overhead_label, row.samples) == ("large.gguf", 1)
    result = json.loads(run_edgekit("verify", model, "--load", "--json")[1])
    assert result["beside_bytes"] > 10 * MIB
    assert any(note.startswith("Saved for this machine") for note in result["notes"])
    (row,) = read_calibration().calibration.engines
    assert row.samples == 2
    assert row.overhead_bytes is not None
    assert row.overhead_bytes >= result["beside_bytes"]


def test_verify_load_of_a_small_vocabulary_is_not_saved(
    data: Path, tmp_path: Path, run_edgekit: RunEdgekit
) -> None:
    pytest.importorskip("xllamacpp")
    _, out, _ = run_edgekit("verify", str(tiny_llama.write_model(tmp_path)), "--load")
    text = " ".join(out.split())
    assert "which was not saved: small.gguf has a vocabulary of only 260 tokens" in text
    assert "Saved for this machine" not in text
    assert not data.exists()


@pytest.mark.usefixtures("saves_small_vocabularies")
def test_verify_load_with_an_unwritable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_edgekit: RunEdgekit
) -> None:
    pytest.importorskip("xllamacpp")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "file" / "data"))
    model = tmp_path / "large.gguf"
    write_test_model(model, QUICK.shape)
    code, out, _ = run_edgekit("verify", str(model), "--load")
    assert code == 0
    assert "not saved for later estimates: " in " ".join(out.split())
