"""The calibration file: stored, merged, removed, and never lost to damage or another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S
from tests.unit.machine.trees import machine, recorded

from edgekit.errors import SourceError
from edgekit.machine import calibration
from edgekit.machine.calibration import (
    LOCK,
    MAX_FILE_BYTES,
    MOST_DIFFERENCES,
    MOST_ENGINES,
    MOST_HOSTS,
    MOST_TEXT,
    NAME,
    Stored,
    change_calibration,
    device_key,
    forget_calibration,
    host_key,
    measured_on,
    read_calibration,
    with_differences,
    with_engine,
    with_host,
)
from edgekit.machine.probes import detect
from edgekit.machine.types import (
    Calibration,
    Difference,
    Disk,
    EngineMeasured,
    EngineSpeed,
    HostMeasured,
    Machine,
    Measured,
)
from edgekit.machine.what_if import what_if_machine
from edgekit.sources.local import try_lock
from edgekit.units import GIB, MIB

DAY = "2026-11-16"
DISK = Disk(folder="/tmp", read_bytes_per_s=2 * 10**9, write_bytes_per_s=10**9, date=DAY)
HOST = HostMeasured(host="a processor", date=DAY, bandwidth_bytes_per_s=18 * 10**9, disk=DISK)
PACE = EngineSpeed(
    label="a model",
    bytes_per_token=4 * GIB,
    prompt_tokens=512,
    decode_tokens_per_s=3.5,
    prefill_tokens_per_s=40.25,
    expected_decode=3.0,
    expected_prefill=None,
    bandwidth_bytes_per_s=18 * 10**9,
    edgekit="0.1",
    date=DAY,
)
ENGINE = EngineMeasured(
    engine="llama.cpp",
    through="xllamacpp",
    version="2026.10",
    host="a processor",
    device="a processor",
    date=DAY,
    overhead_bytes=90 * MIB,
    overhead_label="a model",
    samples=1,
    pace=PACE,
)
DIFFERENCE = Difference(
    label="a model",
    part="compute",
    predicted_bytes=10 * MIB,
    measured_bytes=20 * MIB,
    engine="llama.cpp",
    version="0.6.0",
    date=DAY,
)
ALL = Calibration(hosts=(HOST,), engines=(ENGINE,), differences=(DIFFERENCE,))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def plant(folder: Path, content: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / NAME).write_bytes(content)
    return folder / NAME


def test_reading_or_forgetting_creates_no_files(folder: Path) -> None:
    assert read_calibration() == Stored()
    assert forget_calibration() == Stored()
    assert not folder.exists()


def test_change_calibration_writes_what_read_calibration_returns(folder: Path) -> None:
    assert change_calibration(lambda _: ALL) == Stored(calibration=ALL)
    assert read_calibration() == Stored(calibration=ALL)
    assert sorted(path.name for path in folder.iterdir()) == [NAME, LOCK]


def test_forget_calibration_removes_the_file(folder: Path) -> None:
    change_calibration(lambda _: ALL)
    assert forget_calibration() == Stored(calibration=ALL)
    assert not (folder / NAME).exists()
    assert read_calibration() == Stored()


def test_file_of_an_earlier_version_is_read(folder: Path) -> None:
    """It lacks the fields that were added later; they have their defaults."""
    added = ("constants", "new_tokens", "backend", "model", "quant")
    change_calibration(lambda _: ALL)
    content = json.loads((folder / NAME).read_text())
    pace = content["engines"][0]["pace"]
    assert all(not pace.pop(name) for name in added)
    plant(folder, json.dumps(content).encode())
    assert read_calibration() == Stored(calibration=ALL)
    del pace["edgekit"]
    plant(folder, json.dumps(content).encode())
    assert "EngineSpeed: other names than" in read_calibration().problem


# -- damage ----------------------------------------------------------------------------------


def file_with_host(**values: object) -> bytes:
    """A file with a single host, with these values."""
    row = {
        "host": "x",
        "date": DAY,
        "bandwidth_bytes_per_s": 1,
        "disk": None,
        **values,
    }
    return json.dumps({"schema": 1, "hosts": [row], "engines": [], "differences": []}).encode()


DAMAGED = {
    "not JSON": b"my notes",
    "binary": bytes(range(256)),
    "empty": b"",
    "cut short": file_with_host()[:-9],
    "a list": b"[]",
    "no schema": b'{"hosts": []}',
    "no rows": b'{"schema": 1}',
    "number instead of rows": b'{"schema": 1, "hosts": 3, "engines": [], "differences": []}',
    "unknown field": file_with_host(more=1),
    "text instead of a number": file_with_host(bandwidth_bytes_per_s="fast"),
    "true instead of a number": file_with_host(bandwidth_bytes_per_s=True),
    "zero bandwidth": file_with_host(bandwidth_bytes_per_s=0),
    "negative bandwidth": file_with_host(bandwidth_bytes_per_s=-1),
    "impossible bandwidth": file_with_host(bandwidth_bytes_per_s=2**62),
    "not a date": file_with_host(date="yesterday"),
    "impossible date": file_with_host(date="2026-02-30"),
    "text too long": file_with_host(host="x" * (MOST_TEXT + 1)),
    "terminal control sequence": file_with_host(host="\x1b[2J"),
    "disk is a list": file_with_host(disk=[1]),
    "deeply nested list": b'{"schema": 1, "hosts": ' + b"[" * 100_000,
    "a long number": b'{"schema": ' + b"9" * 5000 + b"}",
    "too long": b" " * (MAX_FILE_BYTES + 1),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_file_is_reported_ignored_and_moved_aside(folder: Path, content: bytes) -> None:
    path = plant(folder, content)
    result = read_calibration()
    assert result.calibration == Calibration()
    assert result.problem.startswith(f"{path}: ")
    assert result.problem.endswith("; ignoring earlier measurements")
    assert result.problem.isprintable()
    assert path.read_bytes() == content
    after = change_calibration(lambda before: with_host(before, HOST))
    aside = folder / "calibration.damaged-1.json"
    assert after.problem.endswith(f": moved to {aside}")
    assert aside.read_bytes() == content
    assert read_calibration() == Stored(calibration=Calibration(hosts=(HOST,)))


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 0, -3.5, True, "3.5", 5e-324, 1e-10, 1e12, 10**400]
)
@pytest.mark.parametrize(
    "name",
    ["decode_tokens_per_s", "prefill_tokens_per_s", "expected_decode", "expected_prefill"],
)
def test_impossible_speed_is_reported(folder: Path, name: str, value: object) -> None:
    change_calibration(lambda _: ALL)
    content = json.loads((folder / NAME).read_bytes())
    content["engines"][0]["pace"][name] = value
    plant(folder, json.dumps(content).encode())
    assert name in read_calibration().problem


def test_every_damaged_file_is_moved_to_a_name_of_its_own(folder: Path) -> None:
    for number, content in enumerate((b"first", b"second"), 1):
        plant(folder, content)
        change_calibration(lambda before: before)
        assert (folder / f"calibration.damaged-{number}.json").read_bytes() == content


def test_forget_calibration_moves_a_damaged_file_aside(folder: Path) -> None:
    plant(folder, b"my notes")
    result = forget_calibration()
    assert "moved to" in result.problem
    assert (folder / "calibration.damaged-1.json").read_bytes() == b"my notes"
    assert not (folder / NAME).exists()


def test_file_of_a_newer_schema_is_neither_read_nor_written(folder: Path) -> None:
    path = plant(folder, b'{"schema": 2, "moons": []}')
    assert (
        "made by a newer EdgeKit (schema 2, this one knows 1): upgrade"
        in read_calibration().problem
    )
    with pytest.raises(SourceError, match="newer EdgeKit"):
        change_calibration(lambda _: ALL)
    with pytest.raises(SourceError, match="newer EdgeKit"):
        forget_calibration()
    assert path.read_bytes() == b'{"schema": 2, "moons": []}'


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_folder_or_pipe_in_place_of_the_file_is_an_error(
    folder: Path, make: Callable[[Path], None]
) -> None:
    folder.mkdir()
    make(folder / NAME)
    assert "is not a file: move it away" in read_calibration().problem
    with pytest.raises(SourceError, match="is not a file"):
        change_calibration(lambda _: ALL)


def test_data_folder_that_cannot_be_created_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEKIT_DATA", str(tmp_path / "file" / "data"))
    assert read_calibration() == Stored()
    with pytest.raises(SourceError, match="set EDGEKIT_DATA to another folder"):
        change_calibration(lambda _: ALL)


def test_full_disk_leaves_the_file_unchanged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_calibration(lambda _: ALL)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(SourceError, match=r"cannot be written \(No space left on device\)"):
            change_calibration(lambda _: Calibration())
    assert read_calibration() == Stored(calibration=ALL)
    assert sorted(path.name for path in folder.iterdir()) == [NAME, LOCK]


# -- concurrent writers ----------------------------------------------------------------------

WRITER = """
import sys
from edgekit.machine.calibration import change_calibration, with_differences
from edgekit.machine.types import Difference
for i in range(int(sys.argv[2])):
    row = Difference(label=f"{sys.argv[1]}-{i}", part="compute", predicted_bytes=1, measured_bytes=2,
        engine="llama.cpp", version="1", date="2026-11-16")
    change_calibration(lambda before: with_differences(before, [row]))
"""


def test_concurrent_writers_lose_nothing(folder: Path) -> None:
    """The file does not exist yet: the first writer creates it."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, f"writer{i}", "15"]) for i in range(3)
    ]
    assert [writer.wait(timeout=PATIENCE_S) for writer in writers] == [0] * 3
    result = read_calibration()
    assert result.problem == ""
    labels = {difference.label for difference in result.calibration.differences}
    assert labels == {f"writer{i}-{j}" for i in range(3) for j in range(15)}
    assert not list(folder.glob("*.part"))


def test_lock_held_too_long_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "WAIT_S", 0.1)
    folder.mkdir()
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        assert try_lock(descriptor)
        with pytest.raises(SourceError, match=r"has been locked by another edgekit for 0.1 s"):
            change_calibration(lambda _: ALL)
    finally:
        os.close(descriptor)
    change_calibration(lambda _: ALL)
    assert read_calibration().calibration == ALL


# -- rows ------------------------------------------------------------------------------------


def test_with_engine_keeps_the_largest_overhead_and_the_newest_pace() -> None:
    faster = replace(PACE, decode_tokens_per_s=4.0)
    smaller = replace(ENGINE, overhead_bytes=50 * MIB, overhead_label="small", pace=faster)
    (row,) = with_engine(Calibration(engines=(ENGINE,)), smaller).engines
    assert (row.overhead_bytes, row.overhead_label, row.samples) == (90 * MIB, "a model", 2)
    assert row.pace == faster
    larger = replace(ENGINE, overhead_bytes=95 * MIB, overhead_label="large", pace=None)
    (row,) = with_engine(Calibration(engines=(row,)), larger).engines
    assert (row.overhead_bytes, row.overhead_label, row.samples) == (95 * MIB, "large", 3)
    assert row.pace == faster
    unmeasured = replace(ENGINE, overhead_bytes=None, overhead_label="", samples=0)
    (row,) = with_engine(Calibration(engines=(row,)), unmeasured).engines
    assert (row.overhead_bytes, row.overhead_label, row.samples) == (95 * MIB, "large", 3)


@pytest.mark.parametrize("field", ["engine", "through", "version", "host", "device"])
def test_with_engine_adds_a_row_for_another_engine_version_host_or_device(field: str) -> None:
    changes: dict[str, Any] = {field: "another"}
    other = replace(ENGINE, **changes)
    assert len(with_engine(Calibration(engines=(ENGINE,)), other).engines) == 2


def test_with_host_keeps_earlier_values_that_were_not_measured_again() -> None:
    later = HostMeasured(host="a processor", date="2026-12-01")
    assert with_host(Calibration(hosts=(HOST,)), later).hosts == (HOST,)
    again = replace(later, bandwidth_bytes_per_s=20 * 10**9)
    (row,) = with_host(Calibration(hosts=(HOST,)), again).hosts
    assert (row.bandwidth_bytes_per_s, row.date, row.disk) == (20 * 10**9, "2026-12-01", DISK)


def test_with_differences_replaces_a_row_of_the_same_version() -> None:
    again = replace(DIFFERENCE, measured_bytes=21 * MIB)
    assert with_differences(ALL, [again]).differences == (again,)
    newer = replace(DIFFERENCE, version="0.7.0")
    assert with_differences(ALL, [newer]).differences == (DIFFERENCE, newer)


def longest_rows() -> Calibration:
    """More rows than are stored, with the longest texts of four-byte characters."""
    text = "\N{GRINNING FACE}" * (MOST_TEXT - 3)
    result = Calibration()
    for i in range(max(MOST_HOSTS, MOST_ENGINES, MOST_DIFFERENCES) + 9):
        mark = f"{text}{i:03d}"
        texts: dict[str, Any] = dict.fromkeys(("engine", "through", "version", "device"), text)
        pace = replace(PACE, label=text, edgekit=text)
        row = replace(ENGINE, host=mark, overhead_label=text, pace=pace, **texts)
        result = with_host(result, replace(HOST, host=mark, disk=replace(DISK, folder=text)))
        result = with_engine(result, row)
        other = replace(DIFFERENCE, label=mark, part=text, engine=text, version=text)
        result = with_differences(result, [other])
    return result


def test_largest_calibration_that_is_written_can_be_read(folder: Path) -> None:
    most = longest_rows()
    assert (len(most.hosts), len(most.engines), len(most.differences)) == (32, 64, 64)
    assert most.hosts[-1].host.endswith("072")
    change_calibration(lambda _: most)
    assert read_calibration() == Stored(calibration=most)


# -- detect ------------------------------------------------------------------------------------


def this_machine(tmp_path: Path, stored: Stored) -> Machine:
    """The recorded machine without a card, with a calibration."""
    return detect(replace(machine(tmp_path, recorded("hybrid_tree")), calibration=lambda: stored))


def stored_here(tmp_path: Path, **engine: Any) -> Stored:
    plain = this_machine(tmp_path, Stored())
    key = host_key(plain)
    row = replace(ENGINE, **({"host": key, "device": device_key(plain)} | engine))
    return Stored(calibration=Calibration(hosts=(replace(HOST, host=key),), engines=(row,)))


def test_detect_includes_what_was_measured_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "installed_version", lambda _: "2026.10")
    stored = stored_here(tmp_path)
    result = this_machine(tmp_path, stored)
    assert result.host is not None
    assert result.host.bandwidth_bytes_per_s == 18 * 10**9
    assert result.host.bandwidth_because == f"measured here on {DAY}"
    assert result.measured == Measured(
        host=stored.calibration.hosts[0], engines=stored.calibration.engines
    )


@pytest.mark.parametrize(
    ("engine", "installed"),
    [({"version": "2026.9"}, "2026.10"), ({"host": "another"}, "2026.10"), ({}, None)],
)
def test_measured_on_ignores_other_versions_and_machines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: dict[str, str],
    installed: str | None,
) -> None:
    monkeypatch.setattr(calibration, "installed_version", lambda _: installed)
    stored = stored_here(tmp_path, **engine)
    result = measured_on(this_machine(tmp_path, Stored()), stored.calibration)
    assert result is not None
    assert result.engines == ()


def test_detect_ignores_the_calibration_of_another_machine(tmp_path: Path) -> None:
    result = this_machine(
        tmp_path, Stored(calibration=Calibration(hosts=(HOST,), engines=(ENGINE,)))
    )
    assert result.measured is None
    assert result.host is not None
    assert (result.host.bandwidth_bytes_per_s, result.host.bandwidth_because) == (None, "")


def test_detect_notes_a_damaged_calibration_file(folder: Path) -> None:
    plant(folder, b"my notes")
    result = detect()
    assert "ignoring earlier measurements" in result.notes[-1]
    assert result.measured is None


def test_detect_ignores_a_calibration_that_raises(tmp_path: Path) -> None:
    def broken() -> Stored:
        raise RuntimeError

    result = detect(replace(machine(tmp_path, recorded("hybrid_tree")), calibration=broken))
    assert (result.measured, result.notes) == (None, ())


def test_what_if_machine_has_no_calibration(folder: Path) -> None:
    plain = detect()
    change_calibration(lambda _: Calibration(hosts=(replace(HOST, host=host_key(plain)),)))
    assert detect().measured is not None
    what_if = what_if_machine(devices=(), ram="16G", vram=None)
    assert what_if.measured is None
    assert what_if.host is not None
    assert what_if.host.bandwidth_bytes_per_s is None


def test_host_key_differs_by_cores_and_processor() -> None:
    detected = detect()
    assert host_key(detected) == host_key(detect())
    assert host_key(replace(detected, cores=(detected.cores or 0) + 1)) != host_key(detected)
    assert host_key(replace(detected, processor="another")) != host_key(detected)
    assert host_key(replace(detected, processor="", host=None)).startswith("an unnamed processor")
