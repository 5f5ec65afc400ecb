"""`app.calibrate` on this machine with a small model, and how later estimates use its results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import tiny_llama
from tests.unit.plan.machines import cards

from edgekit.app import calibrate as app_calibrate
from edgekit.app.calibrate import (
    calibrate,
    measure_memory,
    memory_bandwidth,
    read_bytes,
    remember_rows,
    worth_keeping,
)
from edgekit.app.fit import fit
from edgekit.app.open import open_named
from edgekit.app.plan import plan_model
from edgekit.bill.types import Component, MemoryEstimate, MemoryLine
from edgekit.engines.llamacpp.placements import measured_overhead
from edgekit.engines.llamacpp.run import binding
from edgekit.engines.llamacpp.run.generated import Shape, write_test_model
from edgekit.engines.llamacpp.speed import LEAST_READ_BYTES, fastest_tokens_per_s, measured_ratio
from edgekit.engines.llamacpp.types import LlamaCppSetup
from edgekit.engines.program import CalibrateOptions, ComparedRow, MeasuredBytes
from edgekit.engines.speed_formula import constants_digest
from edgekit.engines.speed_places import GB, host_speed
from edgekit.errors import EngineError, MissingExtraError, SourceError, UsageError
from edgekit.machine import calibration
from edgekit.machine.calibration import (
    change_calibration,
    device_key,
    forget_calibration,
    host_key,
    installed_version,
    read_calibration,
    watched,
)
from edgekit.machine.probes import detect
from edgekit.machine.types import (
    HOST,
    Calibration,
    EngineMeasured,
    EngineSpeed,
    HostMeasured,
    Machine,
    System,
)
from edgekit.models import model_preflight
from edgekit.request import Request, Session
from edgekit.sources.folders import data_folder
from edgekit.sources.types import Reach
from edgekit.units import GIB, MIB, Basis

DAY = "2026-11-16"
SMALL = Shape(layers=2, width=256, inner=512, heads=4, kv_heads=2, vocabulary=2048, context=256)
# busy_share=1.0: the results are saved whatever else runs on this machine.
QUICK = CalibrateOptions(
    read_bytes=16 * MIB, read_seconds=0.05, shape=SMALL, pace_seconds=0.2, busy_share=1.0
)
LARGE_VOCABULARY = 100_000  # the smallest vocabulary with which llama.cpp's overhead is saved
MODEL = "sample:qwen3-30b-a3b"


@pytest.fixture
def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    none = tuple(replace(method, is_here=lambda: False) for method in binding.METHODS)
    monkeypatch.setattr(binding, "METHODS", none)


# --- memory


def test_memory_bandwidth_is_plausible() -> None:
    assert 10**8 < memory_bandwidth(64 * MIB, 2, seconds=0.1) < 10**13


def test_read_bytes_depends_on_the_free_memory() -> None:
    assert read_bytes(None) == GIB
    assert read_bytes(64 * GIB) == GIB
    assert read_bytes(4 * GIB) == GIB // 2
    assert read_bytes(GIB // 2) == 64 * MIB
    assert read_bytes(GIB // 2 - 1) == 0


def test_memory_bandwidth_without_numpy_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'edgekit-models\[embed\]'"):
        memory_bandwidth(MIB, 1, seconds=0.1)


def test_memory_bandwidth_without_memory_is_an_error_and_no_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numpy as np

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "ones", full)
    with pytest.raises(MemoryError, match="not enough memory"):
        memory_bandwidth(MIB, 1, seconds=0.1)


def test_measure_memory_saves_the_bandwidth_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app_calibrate, "memory_bandwidth", lambda *_, **__: 18 * GB)
    monkeypatch.setattr(app_calibrate, "_quick_bytes", lambda _: 64 * MIB)
    options = CalibrateOptions(busy_share=1.0)  # whatever else runs during the test
    monkeypatch.setattr(app_calibrate, "CalibrateOptions", lambda **_: options)
    here = detect()
    measured = measure_memory(here)
    assert measured.host is not None
    assert measured.host.bandwidth_bytes_per_s == 18 * GB
    assert measured.host.bandwidth_basis is Basis.EXACT
    saved = read_calibration().calibration
    assert [(row.host, row.bandwidth_bytes_per_s, row.disk) for row in saved.hosts] == [
        (host_key(here), 18 * GB, None)
    ]
    assert saved.engines == ()


def test_measure_memory_with_too_little_free_memory_is_a_note() -> None:
    here = detect()
    assert here.host is not None
    full = replace(here, host=replace(here.host, free_bytes=MIB))
    assert "memory bandwidth was not measured" in measure_memory(full).notes[-1]
    assert read_calibration().calibration.hosts == ()


def test_watched_measures_the_cpu_time_of_other_programs() -> None:
    """A child process that is still running counts as another program."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other_program:
        with watched() as others:
            time.sleep(0.5)
        other_program.kill()
    assert 0.2 / (os.cpu_count() or 1) < others.share <= 1
    assert f"other programs used {others.share * 100:.0f} % of the CPU" in others.note


# --- calibrate


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, list[str]]:
    """One real calibration: its result, its data folder and its progress messages."""
    pytest.importorskip("xllamacpp")
    folder = tmp_path_factory.mktemp("calibrated")
    temporary = folder / "tmp"
    temporary.mkdir()
    messages: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEKIT_DATA", str(folder / "data"))
        options = replace(
            QUICK, folder=temporary, shape=replace(SMALL, vocabulary=LARGE_VOCABULARY)
        )
        result = calibrate(tell=messages.append, options=options)
    assert list(temporary.iterdir()) == []
    return result, folder / "data", messages


def test_calibrate_measures_the_machine_and_reports_progress(
    measured: tuple[Any, Path, list[str]],
) -> None:
    result, _, progress = measured
    assert result.host.host == host_key(detect())
    assert result.host.bandwidth_bytes_per_s > 10**8
    assert all(row.within for row in result.verification.rows if row.part != "compute")
    assert progress[0].startswith("reading 16.00 MiB of memory")
    assert progress[-2].startswith("writing a generated test model ")
    assert "with a generated test model on the CPU" in progress[-1]


def test_calibrate_measures_the_overhead_of_llama_cpp(
    measured: tuple[Any, Path, list[str]],
) -> None:
    """Python, its libraries and a vocabulary of 100,000 tokens: about 80 MiB, and less than the whole process."""
    result, _, _ = measured
    row = result.engine
    resident = result.verification.resident[-1]
    assert 40 * MIB < row.overhead_bytes < 400 * MIB
    assert row.overhead_bytes < resident.resident_bytes
    # the estimate and the overhead cover the whole process after it decoded a few tokens
    after = next(item for item in result.verification.resident if item.model_bytes is not None)
    used_bytes = after.resident_bytes + after.swapped_bytes
    assert used_bytes <= row.overhead_bytes + result.verification.estimate.total_bytes
    assert (row.engine, row.through, row.samples) == ("llama.cpp", "xllamacpp", 1)
    assert row.version == installed_version("xllamacpp")
    assert row.device == device_key(detect())


def test_calibrate_measures_the_speed_of_llama_cpp(measured: tuple[Any, Path, list[str]]) -> None:
    result, _, _ = measured
    pace = result.engine.pace
    assert pace.decode_tokens_per_s > 0.1
    assert pace.prefill_tokens_per_s > 0.1
    # 2 layers of 2 x 256 x 256 + 2 x 256 x 128 + 3 x 256 x 512, and the output: vocabulary x 256, at 4.5 bits; norms
    weights = 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512) + LARGE_VOCABULARY * 256
    assert pace.bytes_per_token == pytest.approx(weights * 4.5 / 8 + 5 * 256 * 4, rel=0.01)
    assert pace.bandwidth_bytes_per_s == result.host.bandwidth_bytes_per_s
    assert pace.expected_decode > 0
    assert pace.expected_prefill > 0
    assert pace.constants == constants_digest()


def test_calibrate_saves_what_detect_reads(
    measured: tuple[Any, Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, folder, _ = measured
    monkeypatch.setenv("EDGEKIT_DATA", str(folder))
    assert read_calibration().calibration == Calibration(
        hosts=(result.host,), engines=(result.engine,)
    )
    here = detect()
    assert here.measured is not None
    assert here.measured.engines == (result.engine,)
    assert here.host is not None
    assert here.host.bandwidth_bytes_per_s == result.host.bandwidth_bytes_per_s


def test_calibrate_on_a_busy_machine_saves_the_overhead_but_no_speeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(app_calibrate, "memory_bandwidth", lambda *_, **__: 18 * GB)
    path = tmp_path / "large.gguf"
    write_test_model(path, replace(SMALL, vocabulary=LARGE_VOCABULARY))
    options = replace(QUICK, busy_share=-1.0)
    result = calibrate(str(path), options=options)
    assert result.engine is not None
    assert result.engine.overhead_label == "large.gguf"
    # with busy_share=-1 the machine is never idle enough: speeds are reported, but not saved
    assert (result.host.bandwidth_bytes_per_s, result.engine.pace) == (None, None)
    assert (
        "memory bandwidth was 18.0 GB/s, which was not saved: other programs used"
        in result.notes[0]
    )
    assert "llama.cpp reached " in result.notes[1]
    assert read_calibration().calibration.engines == (result.engine,)


def test_overhead_with_a_small_vocabulary_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of the overhead is the vocabulary: with 260 tokens only the speed is saved."""
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(app_calibrate, "memory_bandwidth", lambda *_, **__: 18 * GB)
    path = str(tiny_llama.write_model(tmp_path))
    result = calibrate(path, options=QUICK)
    assert result.verification is not None
    assert result.verification.vocabulary == len(tiny_llama.TOKENS)
    assert result.verification.beside_bytes is not None
    assert "which was not saved: small.gguf has a vocabulary of only 260 tokens" in result.notes[-1]
    assert "`edgekit calibrate` without a model" in result.notes[-1]
    assert result.engine is not None
    assert (result.engine.overhead_bytes, result.engine.samples) == (None, 0)
    assert result.engine.pace is not None
    (row,) = read_calibration().calibration.engines
    assert row == result.engine
    assert measured_overhead(detect()) is None


def test_worth_keeping_needs_a_vocabulary_of_100_000_tokens(
    measured: tuple[Any, Path, list[str]],
) -> None:
    result, _, _ = measured
    assert result.verification.vocabulary == LARGE_VOCABULARY
    fewer = replace(result.verification, vocabulary=LARGE_VOCABULARY - 1)
    enough, too_few = worth_keeping(result.verification, HERE), worth_keeping(fewer, HERE)
    assert enough.engine is not None
    assert (enough.engine.overhead_bytes, enough.left_out) == (result.engine.overhead_bytes, "")
    assert too_few.engine is None
    assert "a vocabulary of only 99,999 tokens" in too_few.left_out


def test_calibrate_that_measures_nothing_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_engine: None
) -> None:
    """Without numpy neither memory nor disk is measured, and no step is announced."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setattr(app_calibrate, "_filesystem", lambda _: "ext4")
    messages: list[str] = []
    result = calibrate(tell=messages.append, options=replace(QUICK, folder=tmp_path))
    assert messages == []
    assert not result.has_results
    needed = "numpy is needed: pip install 'edgekit-models[embed]'"
    assert result.notes[:2] == (
        f"memory bandwidth was not measured: {needed}",
        f"disk speed was not measured: {needed}",
    )
    assert read_calibration() == calibration.Stored()
    assert not (data_folder() or tmp_path / "nowhere").exists()


def test_calibrate_notes_a_gpu_that_the_engine_does_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("needs a machine without a GPU")
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(app_calibrate, "memory_bandwidth", lambda *_, **__: 18 * GB)
    here = replace(detect(), devices=cards(24).devices)
    result = calibrate(str(tiny_llama.write_model(tmp_path)), machine=here, options=QUICK)
    assert result.engine is not None
    assert result.engine.device == device_key(here)
    assert "measured on the CPU only: the llama.cpp in xllamacpp finds no GPU" in result.notes[0]


def test_calibrate_without_an_engine_measures_the_machine(without_engine: None) -> None:
    result = calibrate(options=QUICK)
    assert result.host.bandwidth_bytes_per_s is not None
    assert result.engine is None
    assert "llama.cpp was not measured: no llama.cpp found on this machine" in result.notes[-1]
    assert read_calibration().calibration == Calibration(hosts=(result.host,))


def test_calibrate_with_a_model_but_no_engine_saves_nothing(
    tmp_path: Path, without_engine: None
) -> None:
    with pytest.raises(EngineError, match=r"pip install 'edgekit-models\[llama\]'"):
        calibrate(str(tiny_llama.write_model(tmp_path)), options=QUICK)
    assert read_calibration().calibration == Calibration()


@pytest.mark.parametrize(
    ("reference", "error", "message"),
    [
        ("/nowhere.gguf", SourceError, "no such file"),
        ("sample:gemma-3-27b", UsageError, "only a header, without weights"),
        ("nobody/nothing-GGUF", SourceError, "nobody/nothing-GGUF"),
    ],
)
def test_calibrate_with_a_missing_model_saves_nothing(
    reference: str, error: type[Exception], message: str
) -> None:
    pytest.importorskip("xllamacpp")
    with pytest.raises(error, match=message):
        calibrate(reference, options=QUICK)
    assert read_calibration().calibration == Calibration()


def test_calibrate_without_disk_space_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(app_calibrate, "memory_bandwidth", lambda *_, **__: 18 * GB)
    shape = Shape(vocabulary=300, layers=1, width=2**20, inner=2**30)
    result = calibrate(options=replace(QUICK, shape=shape, folder=tmp_path))
    assert result.engine is None
    assert "free, and the generated test model takes" in result.notes[-1]
    assert result.notes[-1].endswith("give a model to measure it with")
    assert list(tmp_path.iterdir()) == []


def test_calibrate_measures_the_disk(tmp_path: Path, without_engine: None) -> None:
    if app_calibrate._filesystem(tmp_path) in app_calibrate.IN_MEMORY:
        pytest.skip("temporary files are in RAM here")
    disk = calibrate(options=replace(QUICK, folder=tmp_path)).host.disk
    assert disk is not None
    assert disk.folder == str(tmp_path)
    assert 10**5 < disk.read_bytes_per_s < 10**12
    assert 10**5 < disk.write_bytes_per_s < 10**12
    assert list(tmp_path.iterdir()) == []


def test_calibrate_does_not_measure_a_folder_in_ram(
    monkeypatch: pytest.MonkeyPatch, without_engine: None
) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm here")
    result = calibrate(options=replace(QUICK, folder=Path("/dev/shm")))
    assert result.host.disk is None
    assert "is in RAM (tmpfs)" in result.notes[0]


def test_remember_rows_saves_a_difference_beyond_its_bound() -> None:
    measurement = MeasuredBytes(low_bytes=20 * MIB, high_bytes=20 * MIB)
    rows = [
        ComparedRow(
            part="weights", predicted_bytes=20 * MIB, measured=measurement, allowed_bytes=0
        ),
        ComparedRow(
            part="compute", predicted_bytes=17 * MIB, measured=measurement, allowed_bytes=2 * MIB
        ),
    ]
    (row,) = remember_rows("a\x1b model", rows, engine="llama.cpp", version="0.6.0")
    assert (row.label, row.part, row.predicted_bytes, row.measured_bytes) == ("a model", "compute", 17 * MIB, 20 * MIB)  # fmt: skip
    assert read_calibration().calibration.differences == (row,)
    assert remember_rows("a model", rows[:1], engine="llama.cpp", version="0.6.0") == ()


# --- later estimates

HERE = Machine(
    name="this machine",
    system=System.LINUX,
    processor="a processor",
    cores=8,
    host=cards(24).host,
)


def with_calibration(
    monkeypatch: pytest.MonkeyPatch, machine: Machine = HERE, **pace: Any
) -> Machine:
    """The machine as `detect` would find it after a calibration."""
    monkeypatch.setattr(calibration, "installed_version", lambda _: "2026.10")
    row = EngineMeasured(
        engine="llama.cpp",
        through="xllamacpp",
        version="2026.10",
        host=host_key(machine),
        device="a processor",
        date=DAY,
        overhead_bytes=123 * MIB,
        samples=1,
        pace=_pace(**pace) if pace else None,
    )
    host = HostMeasured(host=host_key(machine), date=DAY, bandwidth_bytes_per_s=60 * GB)
    change_calibration(lambda _: Calibration(hosts=(host,), engines=(row,)))
    result = calibration.measured_on(machine, read_calibration().calibration)
    assert machine.host is not None
    memory = replace(
        machine.host, bandwidth_bytes_per_s=60 * GB, bandwidth_because=f"measured here on {DAY}"
    )
    return replace(machine, host=memory, measured=result)


def _pace(**values: Any) -> EngineSpeed:
    usual: dict[str, Any] = {
        "label": "another model",
        "bytes_per_token": LEAST_READ_BYTES,
        "prompt_tokens": 512,
        "decode_tokens_per_s": 20.0,
        "prefill_tokens_per_s": 100.0,
        "expected_decode": 10.0,
        "expected_prefill": 200.0,
        "bandwidth_bytes_per_s": 60 * GB,
        "edgekit": "0.0",  # an older release with the same constants
        "date": DAY,
        "constants": constants_digest(),
    }
    return EngineSpeed(**(usual | values))


def runtime_lines(estimate: MemoryEstimate) -> list[MemoryLine]:
    return [line for line in estimate.lines if line.component is Component.RUNTIME]


def test_estimate_has_a_line_for_the_measured_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    before = model_preflight(MODEL, "llama.cpp", context=8192, machine=HERE)
    after = model_preflight(MODEL, "llama.cpp", context=8192, machine=with_calibration(monkeypatch))
    assert runtime_lines(before.estimate) == []
    (line,) = runtime_lines(after.estimate)
    assert (line.size_bytes, line.pool, line.basis, line.within) == (123 * MIB, HOST, Basis.MODELLED, 0.5)  # fmt: skip
    assert line.because == f"measured on this machine with xllamacpp 2026.10, {DAY}"
    assert after.required_bytes == before.required_bytes + 123 * MIB
    assert (before.estimate.basis, after.estimate.basis) == (Basis.EXACT, Basis.MODELLED)
    assert any("includes 123.00 MiB of RAM that llama.cpp needs" in note for note in after.estimate.notes)  # fmt: skip


def test_overhead_is_counted_once_with_a_gpu_and_with_a_drafter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = with_calibration(monkeypatch, replace(HERE, devices=cards(24).devices))
    result = model_preflight(MODEL, "llama.cpp", context=8192, machine=machine)
    host = [line for line in runtime_lines(result.estimate) if line.pool == HOST]
    assert [line.size_bytes for line in host] == [123 * MIB]
    assert "on the CPU only" in host[0].because  # a GPU's driver needs more
    plan = plan_model(open_named(MODEL), Request(machine=with_calibration(monkeypatch), engines=("llama.cpp",)))  # fmt: skip
    assert len(runtime_lines(plan.result.estimate)) == 1


def test_overhead_measured_with_a_gpu_is_used_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = with_calibration(monkeypatch, replace(HERE, devices=cards(24).devices))
    assert machine.measured is not None
    (row,) = machine.measured.engines
    card = replace(row, device="24 GiB card", overhead_bytes=400 * MIB)
    both = replace(machine, measured=replace(machine.measured, engines=(row, card)))
    result = measured_overhead(both, both.devices)
    assert result is not None
    assert (result.size_bytes, "alone" in result.because) == (400 * MIB, False)
    cpu_only = measured_overhead(both)
    assert cpu_only is not None
    assert cpu_only.size_bytes == 123 * MIB


def test_described_machine_does_not_use_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    with_calibration(monkeypatch)
    request: dict[str, Any] = {"context": 8192, "ram": "64G"}
    before = model_preflight(MODEL, "llama.cpp", **request)
    forget_calibration()
    after = model_preflight(MODEL, "llama.cpp", **request)
    assert before.estimate == after.estimate
    assert runtime_lines(before.estimate) == []
    described = replace(with_calibration(monkeypatch), what_if=True)
    assert measured_overhead(described) is None
    assert measured_ratio(described, LlamaCppSetup()) is None


def test_host_speed_uses_the_measured_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, result = host_speed(HERE), host_speed(with_calibration(monkeypatch))
    assert plain.basis is Basis.ASSUMED
    assert result.basis is Basis.MODELLED
    assert result.bandwidth == 60 * GB
    assert result.text == f"60 GB/s (measured here on {DAY})"


def test_fit_has_the_overhead_in_its_bars_and_in_its_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = Request(machine=with_calibration(monkeypatch), engines=("llama.cpp",), context=4096)
    result = fit(open_named(MODEL), request, Session(reach=Reach(network=False)))
    assert result.result is not None
    assert result.bill is not None
    assert any("measured on this machine" in line.because for line in result.bill.estimate.lines)
    total = result.bill.estimate.total_bytes
    assert sum(use.required_bytes for use in result.result.uses) == total


def speed_on(machine: Machine) -> Any:
    plan = plan_model(open_named(MODEL), Request(machine=machine, engines=("llama.cpp",), context=4096))  # fmt: skip
    assert plan.speed is not None
    return plan.speed


def test_plan_speed_uses_the_measured_bandwidth_and_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = speed_on(HERE)
    assert (plain.basis, "assumed" in plain.because) == (Basis.ASSUMED, True)
    memory = speed_on(with_calibration(monkeypatch))
    assert memory.basis is Basis.MODELLED
    assert f"from RAM at 60 GB/s (measured here on {DAY})" in memory.because
    assert memory.decode[1] / memory.decode[0] < plain.decode[1] / plain.decode[0]
    engine = speed_on(with_calibration(monkeypatch, decode_tokens_per_s=20.0))
    assert engine.basis is Basis.MODELLED
    assert engine.because.endswith(
        f"scaled to another model as measured here with xllamacpp 2026.10 on {DAY}"
    )
    assert engine.decode[1] / engine.decode[0] < memory.decode[1] / memory.decode[0]
    # twice the measured speed of the other model is twice the expected speed of this one
    slower = speed_on(with_calibration(monkeypatch, decode_tokens_per_s=10.0))
    assert engine.decode == pytest.approx([2 * item for item in slower.decode])


@pytest.mark.parametrize(
    "stale",
    [
        {"constants": ""},  # saved by a version that did not store them
        {"constants": "0" * 12},  # the constants were fitted again
        {"bandwidth_bytes_per_s": 50 * GB},  # the bandwidth has changed
        {"bandwidth_bytes_per_s": None},
        {"bytes_per_token": LEAST_READ_BYTES - 1},  # a CPU cache may have held the model
        {"expected_decode": None},
    ],
)
def test_outdated_speed_is_not_used(monkeypatch: pytest.MonkeyPatch, stale: dict[str, Any]) -> None:
    setup = LlamaCppSetup()
    assert measured_ratio(with_calibration(monkeypatch, label="another model"), setup)
    assert measured_ratio(with_calibration(monkeypatch, **stale), setup) is None


def test_speed_measured_on_the_cpu_is_not_used_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = with_calibration(monkeypatch, decode_tokens_per_s=20.0)
    with_card = replace(machine, devices=cards(24).devices)
    from edgekit.engines.llamacpp.types import Backend

    on_card = LlamaCppSetup(backend=Backend.CUDA)
    assert measured_ratio(with_card, on_card) is None
    assert machine.measured is not None
    (row,) = machine.measured.engines
    rows = (row, replace(row, device="24 GiB card"))
    both = replace(with_card, measured=replace(machine.measured, engines=rows))
    assert measured_ratio(both, on_card) is not None
    assert measured_ratio(both, replace(on_card, n_gpu_layers=9)) is None
    assert measured_ratio(both, replace(on_card, cpu_moe=True)) is None


def test_fastest_tokens_per_s_is_raised_by_a_faster_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a model that the measured machine could run fast enough is not skipped as too slow."""
    plain = fastest_tokens_per_s(GIB, GIB, with_calibration(monkeypatch))
    quick = fastest_tokens_per_s(GIB, GIB, with_calibration(monkeypatch, decode_tokens_per_s=30.0))  # fmt: skip
    slow = fastest_tokens_per_s(GIB, GIB, with_calibration(monkeypatch, decode_tokens_per_s=1.0))  # fmt: skip
    assert plain is not None
    assert quick == pytest.approx(3 * plain)
    assert slow == plain


def test_detect_imports_nothing_heavy() -> None:
    code = (
        "import sys; from edgekit.machine.probes import detect; detect();"
        "print([name for name in ('numpy', 'xllamacpp', 'edgekit.engines.llamacpp.run') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert json.loads(result.stdout) == []
