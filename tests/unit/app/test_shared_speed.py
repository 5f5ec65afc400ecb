"""Records of `edgekit calibrate --share`: what is in them, what is not, and the file that they are added to."""

from __future__ import annotations

import getpass
import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.machine.test_calibration import ENGINE, HOST, PACE
from tools.speed_points import points_of

from edgekit.app.open import open_named
from edgekit.app.shared_speed import (
    MAX_FILE_BYTES,
    NAMES,
    add_records,
    as_line,
    private_part,
    saved_records,
    shared_lines,
    speed_record,
    with_public_model,
)
from edgekit.engines.llamacpp.run.generated import Shape, shape_name
from edgekit.errors import OutputError, UsageError
from edgekit.machine.calibration import device_key, host_key
from edgekit.machine.devices import all_devices
from edgekit.machine.processors import all_processors
from edgekit.machine.types import Calibration, EngineMeasured, Machine
from edgekit.machine.what_if import what_if_machine
from edgekit.model import OpenModel
from edgekit.units import GIB

SHARED = replace(
    PACE, new_tokens=32, backend="cuda", model="qwen3-8b", quant="Q4_K_M", bandwidth_bytes_per_s=None
)  # fmt: skip


def on(*devices: str, ram: str = "64G") -> Machine:
    """This machine, with these devices."""
    described = what_if_machine(devices=devices, ram=ram, cpu="Ryzen 7 7700")
    return replace(described, what_if=False, processor="AMD Ryzen 7 7700 8-Core Processor")


def measured(machine: Machine, **pace: Any) -> EngineMeasured:
    speed = replace(SHARED, **pace)
    cards = () if speed.backend == "cpu" else machine.devices
    return replace(
        ENGINE, host=host_key(machine), device=device_key(machine, cards), pace=speed
    )  # fmt: skip


# -- what is in a record ---------------------------------------------------------------------


def test_record_of_a_card() -> None:
    machine = on("2x RTX 4090")
    record = speed_record(machine, HOST, measured(machine))
    assert tuple(record) == NAMES
    assert record == {
        "record": 1, "date": "2026-11-16", "edgekit": "0.1", "source": "edgekit calibrate", "licence": "CC0-1.0",
        "hardware": "RTX 4090", "gpu_count": 2, "vram_gb": 47, "ram_gb": 64, "host_gb_s": 18.0, "cores": 8,
        "cpu": "Ryzen 7 7700", "instructions": record["instructions"], "os": "linux", "engine": "llama.cpp",
        "engine_version": "xllamacpp 2026.10", "backend": "cuda", "model": "qwen3-8b", "quant": "Q4_K_M",
        "context_depth": 0, "users": 1, "prompt_tokens": 512, "gen_tokens": 32, "ubatch": 512, "ngl": None,
        "ncmoe": None, "placement": "full", "e2e": False, "pp_tok_s": 40.25, "tg_tok_s": 3.5,
    }  # fmt: skip
    assert "avx2" in record["instructions"].split()


def test_record_of_a_processor_and_a_generated_model_can_be_priced() -> None:
    machine = on()
    name = shape_name(Shape())
    row = measured(machine, backend="cpu", model=name, quant="Q4_K")
    record = speed_record(machine, None, row)
    assert (record["hardware"], record["gpu_count"], record["placement"]) == ("Ryzen 7 7700", 1, "cpu")  # fmt: skip
    assert (record["vram_gb"], record["host_gb_s"]) == (None, None)
    decoding, reading = points_of(json.loads(as_line(record)))
    # on average half of the 32 new tokens follow the prompt of 512
    assert (decoding.filled, reading.filled, reading.prompt_tokens) == (512 + 16, 0, 512)
    assert decoding.task.machine.instructions == machine.instructions
    assert len(decoding.task.model.geometry.layers) == Shape().layers


def test_record_of_a_mac_names_its_size() -> None:
    machine = replace(what_if_machine(devices=("M3 Max 64GB",)), what_if=False)
    record = speed_record(machine, HOST, measured(machine, backend="metal"))
    assert (record["hardware"], record["vram_gb"], record["ram_gb"]) == ("M3 Max 64GB", None, 64)


@pytest.mark.parametrize(
    ("processor", "name"),
    [("Intel\u00ae Zeon\u2122 X9000", "Intel Zeon X9000"), ("", "unknown processor")],
)
def test_record_of_an_unknown_processor(processor: str, name: str) -> None:
    machine = replace(on(), processor=processor)
    record = speed_record(machine, HOST, measured(machine, backend="cpu"))
    assert (record["hardware"], record["cpu"]) == (name, name)


def test_ram_is_rounded_to_whole_gib() -> None:
    machine = on("RTX 4090")
    assert machine.host is not None
    machine = replace(machine, host=replace(machine.host, total_bytes=62 * GIB + GIB // 2 + 12_345))
    record = speed_record(machine, HOST, measured(machine))
    assert record["ram_gb"] == 63


def test_no_record_names_a_person_or_a_place() -> None:
    """The label, the folder of temporary files and the keys of machine and device are not in a record."""
    machine = on("RTX 4090")
    row = measured(machine, label="/home/ada/secret.gguf")
    disk = replace(HOST.disk, folder="/home/ada/tmp") if HOST.disk else None
    line = as_line(speed_record(machine, replace(HOST, disk=disk), row))
    words = ("ada", "secret", "/tmp", host_key(machine), platform.node() or "?", getpass.getuser())
    assert [word for word in words if word in line.split('"')] == []
    assert "ada" not in line
    assert "/" not in line


@pytest.mark.parametrize(
    ("pace", "message"),
    [
        ({"model": ""}, "a model is not in EdgeKit's index"),
        ({"new_tokens": 0}, "a model: measured by an earlier EdgeKit"),
        ({"backend": ""}, "a model: measured by an earlier EdgeKit"),
    ],
)
def test_speed_of_no_use_to_others_is_not_shared(pace: dict[str, Any], message: str) -> None:
    machine = on("RTX 4090")
    with pytest.raises(UsageError, match=message):
        speed_record(machine, HOST, measured(machine, **pace))


def test_nothing_measured_is_not_shared() -> None:
    machine = on("RTX 4090")
    for engine in (None, replace(measured(machine), pace=None)):
        with pytest.raises(UsageError, match="no speed was saved"):
            speed_record(machine, HOST, engine)


def test_different_or_replaced_cards_are_not_shared() -> None:
    both = on("RTX 4090", "RTX 3060 12GB")
    with pytest.raises(UsageError, match="cannot describe different GPUs: RTX 3060, RTX 4090"):
        speed_record(both, HOST, measured(both))
    with pytest.raises(UsageError, match="this machine has other devices now"):
        speed_record(on("RTX 4090"), HOST, measured(both))


def test_part_of_a_card_is_not_shared() -> None:
    machine = on("H100 80GB")
    (card,) = machine.devices
    machine = replace(machine, devices=(replace(card, partition="MIG 1g.10gb"),))
    with pytest.raises(UsageError, match=r"a part of a GPU: MIG 1g\.10gb"):
        speed_record(machine, HOST, measured(machine))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("/home/ada/cpu", "a path"),
        ("card of ada@example.org", "an e-mail address"),
        ("build.example.org", "a host name"),
        ("box at 192.168.0.7", "an IP address"),
    ],
)
def test_name_that_could_name_somebody_is_not_shared(name: str, kind: str) -> None:
    """No driver reports such a name; if one does, nothing is written."""
    machine = on()
    machine = replace(machine, processor=name)
    with pytest.raises(UsageError, match=f"not shared: hardware .* contains {kind}"):
        speed_record(machine, HOST, measured(machine, backend="cpu"))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (r"C:\Users\ada", "a path"),
        ("~/models", "a path"),
        ("model.gguf", "a path"),
        ("see https://example.org", "a web address"),
        ("fe80::1ff:fe23:4567:890a", "an IP address"),
        ("00:1a:2b:3c:4d:5e", "an IP address"),
        ("GPU-6f1b4a2e-0c7d-4e5f-8a9b-0c1d2e3f4a5b", "a serial number"),
        ("ada.local", "a host name"),
        ("tab\there", "characters that are not printable ASCII"),
        ("\u0430da", "characters that are not printable ASCII"),
    ],
)
def test_private_part(text: str, kind: str) -> None:
    assert private_part(text) == kind


def test_public_names_are_not_private() -> None:
    names = [device.name for device in all_devices()] + [one.name for one in all_processors()]
    names += ["Intel(R) Xeon(R) Processor @ 2.50GHz", "AMD Radeon Graphics (RADV GFX1151)"]
    assert len(names) > 500
    assert [name for name in names if private_part(name)] == []


# -- the model's name ------------------------------------------------------------------------


def opened(name: str, label: str) -> OpenModel:
    return replace(open_named(name).as_file("llama.cpp"), label=label)


def test_public_model_is_found_by_its_file() -> None:
    model = opened("qwen3-8b:Q4_K_M", "unsloth/Qwen3-8B-GGUF:Q4_K_M")
    pace = with_public_model(replace(SHARED, model="", quant=""), model)
    assert pace is not None
    assert (pace.model, pace.quant) == ("qwen3-8b", "Q4_K_M")


def test_another_model_with_the_name_of_a_public_one_has_no_name() -> None:
    model = opened("qwen3-4b:Q4_K_M", "Qwen3-8B-Q4_K_M.gguf")
    pace = replace(SHARED, model="", quant="")
    assert with_public_model(pace, model) == pace
    assert with_public_model(pace, replace(model, label="my secret model.gguf")) == pace
    assert with_public_model(pace, None) == pace
    assert with_public_model(None, model) is None


# -- saved speeds ----------------------------------------------------------------------------


def test_saved_records_are_those_of_this_machine() -> None:
    machine = on("RTX 4090")
    mine, unnamed = measured(machine), measured(machine, model="")
    other = replace(mine, host="another machine")
    stored = Calibration(
        hosts=(replace(HOST, host=host_key(machine)),), engines=(other, unnamed, mine)
    )
    (record,), (reason,) = saved_records(machine, stored)
    assert (record["hardware"], record["host_gb_s"]) == ("RTX 4090", 18.0)
    assert reason.startswith("a model is not in EdgeKit's index")
    with pytest.raises(UsageError, match="nothing to share: a model is not in EdgeKit's index"):
        saved_records(machine, replace(stored, engines=(other, unnamed)))
    with pytest.raises(UsageError, match="nothing to share: no speed of this machine is saved"):
        saved_records(machine, Calibration(engines=(other,)))


# -- the file --------------------------------------------------------------------------------


def record(**fields: Any) -> dict[str, Any]:
    machine = on("RTX 4090")
    return speed_record(machine, HOST, measured(machine)) | fields


def test_records_are_added_once(tmp_path: Path) -> None:
    path = tmp_path / "speeds.jsonl"
    first, second = record(), record(tg_tok_s=4.5)
    assert add_records(path, [first]) == 1
    assert add_records(path, [first, second]) == 1
    assert list(map(json.loads, path.read_text().splitlines())) == [first, second]
    assert [file.name for file in tmp_path.iterdir()] == ["speeds.jsonl"]


@pytest.mark.parametrize(
    "content",
    [
        b"my notes\n",
        b"[1, 2]\n",
        b'{"record": 1}\n',
        b"\xff\xfe",
        b"[" * 50_000,
        b" " * (MAX_FILE_BYTES + 1),
        b"9" * 5000,
    ],
)
def test_other_files_are_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a file of speed records"):
        add_records(path, [record()])
    assert path.read_bytes() == content


def test_full_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "speeds.jsonl"
    lines = [as_line(record(tg_tok_s=float(number))) for number in range(1, 200)]
    most = MAX_FILE_BYTES // (len(lines[-1]) + 1)
    path.write_text("".join(f"{line}\n" for line in lines[:most]))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is full"):
        add_records(path, [record(), record(tg_tok_s=0.5)])
    assert path.read_bytes() == before


def test_folder_and_missing_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file: give another name"):
        shared_lines(tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        shared_lines(tmp_path / "nowhere" / "speeds.jsonl")


def test_folder_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgekit.sources.local.mkstemp", full)
    with pytest.raises(OutputError, match="No space left"):
        add_records(tmp_path / "speeds.jsonl", [record()])
