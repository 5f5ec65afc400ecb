"""`edgekit hardware`: this machine, described machines and the table of devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.programs import HANG, answering, write_program
from tests.thoroughness import sampled

from edgekit.app import programs
from edgekit.cli import main
from edgekit.machine.devices import all_devices, find_device
from edgekit.units import GIB, MIB


def run_hardware(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["hardware", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_text_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_hardware(capsys)
    assert (code, err) == (0, "")
    assert out.startswith("this machine: ")
    assert "\nUsable   llama.cpp  " in out


def test_json_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_hardware(capsys, "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert list(answer["engines"]) == ["llama.cpp", "vllm", "mlx", "stream"]
    assert answer["machine"]["host"]["total_bytes"] > 0


SERVER = answering(
    {
        "--version": "version: 9294 (0c1e570)",
        "--list-devices": "Available devices:\n  CUDA0: RTX 4090 (24080 MiB, 23650 MiB free)",
    }
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    monkeypatch.setattr(programs, "LIST_S", PATIENCE_S)
    return tmp_path


def test_programs_of_this_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_program(folder / "llama-server", SERVER)
    _, out, _ = run_hardware(capsys)
    assert (
        "llama-server b9294 (0c1e570), CUDA and CPU, finds CUDA0: RTX 4090, billed as b9294; "
        f"PATH: {path}"
    ) in " ".join(out.split())
    _, out, _ = run_hardware(capsys, "--json")
    found = json.loads(out)["programs"]
    assert {
        "engine": "llama.cpp",
        "program": "llama-server",
        "origin": "PATH",
        "path": str(path),
        "version": "b9294",
        "build": "0c1e570",
        "backends": ["CUDA", "CPU"],
        "devices": ["CUDA0: RTX 4090"],
        "rules_version": "b9294",
        "problem": None,
        "commands": ["run", "serve"],
        "told": f"llama-server b9294 (0c1e570), CUDA and CPU, finds CUDA0: RTX 4090, billed as b9294; PATH: {path}",
    } in found


def test_program_that_hangs_is_listed_with_its_problem(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "LIST_S", 0.5)
    write_program(folder / "llama-server", HANG)
    _, out, _ = run_hardware(capsys, "--json")
    (found,) = (item for item in json.loads(out)["programs"] if item["program"] == "llama-server")
    assert found["problem"] == "it does not answer within 0.5 s"
    assert found["commands"] == []


def test_described_machine_has_no_programs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_program(folder / "llama-server", SERVER)
    _, out, _ = run_hardware(capsys, "--ram", "32G")
    assert "llama-server" not in out
    _, out, _ = run_hardware(capsys, "--ram", "32G", "--json")
    assert "programs" not in json.loads(out)


def test_json_of_a_described_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_hardware(capsys, "--json", "--ram", "32G", "--vram", "24G,24G")
    answer = json.loads(out)["engines"]["llama.cpp"]
    assert code == 0
    assert [budget["available_bytes"] for budget in answer["budgets"]] == [
        23 * GIB,
        23 * GIB,
        31 * GIB,
    ]


def test_text_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = run_hardware(capsys, "--ram", "32G")
    assert max(map(len, out.splitlines())) <= 40


def test_unknown_device_is_one_line_with_similar_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run_hardware(capsys, "--device", "RTX 4091")
    assert (code, out) == (2, "")
    assert "RTX 4090" in err
    assert len(err.splitlines()) == 1


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["hardware", "--help"])
    assert caught.value.code == 0
    assert 'edgekit hardware --device 2x "RTX 3090" --ram 64G' in capsys.readouterr().out


def test_devices_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_hardware(capsys, "--devices")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith(f"{len(all_devices())} devices; the first ")
    assert any(line.startswith("RTX 4090 ") and " 1,008 GB/s " in line for line in lines)
    assert len(lines) == len(all_devices()) + 4  # a title, a header and two blank lines


def test_devices_table_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    _, out, _ = run_hardware(capsys, "--devices")
    assert max(map(len, out.splitlines())) <= 50
    assert "free when idle" in out


def test_devices_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_hardware(capsys, "--devices", "--json")
    devices = json.loads(out)["devices"]
    assert code == 0
    assert {item["name"] for item in devices} == {device.name for device in all_devices()}
    usual = [item["usual"] for item in devices]
    assert usual == sorted(usual, reverse=True)
    (card,) = [item for item in devices if item["name"] == "RTX 4090"]
    assert card["memory_bytes"] == 24_564 * MIB
    assert card["usable_bytes"] == 24_048 * MIB
    assert card["capability"] == [8, 9]
    assert card["bandwidth_bytes_per_s"] == 1_008_000_000_000


def test_every_device_of_the_table_is_found_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run_hardware(capsys, "--devices", "--json")
    for item in sampled(json.loads(out)["devices"], each=10, turn=3):
        assert find_device(item["name"]).name == item["name"]


def test_devices_with_a_described_machine_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_hardware(capsys, "--devices", "--ram", "32G")
    assert (code, out) == (2, "")
    assert "cannot be combined with" in err
