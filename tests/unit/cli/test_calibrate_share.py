"""`edgekit calibrate --share`: records on standard output and in a file, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests import tiny_llama
from tests.unit.cli.conftest import QUICK, RunEdgekit
from tests.unit.machine.test_calibration import ENGINE, HOST, PACE
from tools.merge_speed_records import check_record

from edgekit.app.shared_speed import NAMES
from edgekit.engines.llamacpp.run.generated import Shape, shape_name
from edgekit.machine.calibration import (
    NAME,
    change_calibration,
    device_key,
    host_key,
    read_calibration,
)
from edgekit.machine.probes import detect
from edgekit.machine.types import Calibration


@pytest.fixture
def saved(data: Path) -> None:
    """A speed of this machine's processor with a generated model."""
    here = detect()
    pace = replace(
        PACE, new_tokens=32, backend="cpu", model=shape_name(Shape()), quant="Q4_K", edgekit="0.1.0"
    )  # fmt: skip
    row = replace(ENGINE, host=host_key(here), device=device_key(here), pace=pace)
    host = replace(HOST, host=host_key(here))
    change_calibration(lambda _: Calibration(hosts=(host,), engines=(row,)))


@pytest.mark.usefixtures("data")
def test_new_measurement_is_shared(tmp_path: Path, run_edgekit: RunEdgekit) -> None:
    pytest.importorskip("xllamacpp")
    path = tmp_path / "speeds.jsonl"
    code, out, err = run_edgekit("calibrate", "--share", str(path))
    assert code == 0
    assert out.startswith("Measured: ")
    (line,) = path.read_text().splitlines()
    record = json.loads(line)
    assert tuple(record) == NAMES
    assert record["model"] == shape_name(QUICK.shape)
    shown, added, given = [one for one in err.splitlines() if "record" in one]
    assert shown == f"edgekit: record: {line}"
    assert added == f"edgekit: 1 record added to {path}"
    assert "nothing was sent anywhere: to give the record to the project, attach it" in given
    (row,) = read_calibration().calibration.engines
    assert row.pace is not None
    assert record["tg_tok_s"] == row.pace.decode_tokens_per_s
    assert "generated" not in out.partition("Saved")[2]


@pytest.mark.usefixtures("saved")
def test_saved_speed_is_shared_on_standard_output(run_edgekit: RunEdgekit) -> None:
    code, out, err = run_edgekit("calibrate", "--list", "--share", "-")
    assert code == 0
    record = json.loads(out)
    assert (record["model"], record["gen_tokens"]) == (shape_name(Shape()), 32)
    assert err.count("\n") == 1
    assert "nothing was sent anywhere" in err
    # what is written passes the check of those who merge it
    assert check_record(record) == record


@pytest.mark.usefixtures("saved")
def test_saved_speed_is_added_to_a_file_once(tmp_path: Path, run_edgekit: RunEdgekit) -> None:
    path = tmp_path / "speeds.jsonl"
    code, out, err = run_edgekit("calibrate", "--list", "--share", str(path))
    assert (code, len(path.read_text().splitlines())) == (0, 1)
    assert out.startswith("1 machine, 1 engine")
    assert f"1 record added to {path}\n" in err
    _, out, err = run_edgekit("calibrate", "--list", "--share", str(path), "--json")
    assert len(json.loads(out)["engines"]) == 1
    assert f"0 records added to {path} (1 already there)" in err
    assert len(path.read_text().splitlines()) == 1


def test_nothing_saved_is_an_error(data: Path, tmp_path: Path, run_edgekit: RunEdgekit) -> None:
    path = tmp_path / "speeds.jsonl"
    code, out, err = run_edgekit("calibrate", "--list", "--share", str(path))
    assert (code, out) == (2, "")
    assert "nothing to share: no speed of this machine is saved: run `edgekit calibrate`" in err
    assert not path.exists()


@pytest.mark.usefixtures("data")
def test_model_that_is_not_public_is_measured_but_not_shared(
    tmp_path: Path, run_edgekit: RunEdgekit
) -> None:
    pytest.importorskip("xllamacpp")
    path = tmp_path / "speeds.jsonl"
    model = tiny_llama.write_model(tmp_path).rename(tmp_path / "my-secret.gguf")
    code, out, err = run_edgekit("calibrate", str(model), "--share", str(path))
    assert code == 2
    assert out.startswith("Measured: ")
    assert "nothing to share: my-secret.gguf is not in EdgeKit's index" in err
    assert not path.exists()
    assert read_calibration().calibration.engines


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("--remove", "--share", "-"), 2, "--remove has nothing to share"),
        (("--json", "--share", "-"), 2, "--json and --share - both write to standard output"),
        (("--share", ""), 2, "--share takes a path"),
        (("--share", "notes.txt"), 2, "notes.txt is not a file of speed records"),
        (("--share", "nowhere/speeds.jsonl"), 2, "there is no folder nowhere"),
    ],
)
def test_error_before_anything_is_measured(
    *,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_edgekit: RunEdgekit,
    argv: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("my notes")
    result, _, err = run_edgekit("calibrate", *argv)
    assert result == code
    assert message in err
    assert (tmp_path / "notes.txt").read_text() == "my notes"
    assert not (data / NAME).exists()
