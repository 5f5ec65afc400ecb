"""--device, --ram and --vram."""

from __future__ import annotations

import argparse

import pytest

from edgekit.cli import join_counts, main
from edgekit.cli.flags import DEVICES, add_options
from edgekit.cli.parser import build_parser
from edgekit.cli.plan import plan_words
from edgekit.errors import UsageError
from edgekit.machine.types import Machine
from edgekit.request import Request
from edgekit.units import GIB


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--device", "2x", "RTX 3090"], ["--device", "2x RTX 3090"]),
        (["--device=2x", "RTX 3090"], ["--device=2x RTX 3090"]),
        (["--device", "4X", "h100", "m.gguf"], ["--device", "4X h100", "m.gguf"]),
        (["m.gguf", "--device", "2x", "a", "--device", "3x", "b"], ["m.gguf", "--device", "2x a", "--device", "3x b"]),
        (["--device", "2x RTX 3090", "m"], ["--device", "2x RTX 3090", "m"]),
        (["--device", "RTX 3090", "m"], ["--device", "RTX 3090", "m"]),
        (["--device", "2x", "--json"], ["--device", "2x", "--json"]),
        (["--device", "2x"], ["--device", "2x"]),
        (["--device", "x", "m"], ["--device", "x", "m"]),
        (["2x", "RTX 3090"], ["2x", "RTX 3090"]),
        (["--", "--device", "2x", "m"], ["--", "--device", "2x", "m"]),
        (["--devices", "2x", "m"], ["--devices", "2x", "m"]),
        ([], []),
    ],
)  # fmt: skip
def test_join_counts_joins_count_and_name(argv: list[str], expected: list[str]) -> None:
    assert join_counts(argv) == expected


def machine_for(*argv: str) -> Machine:
    parser = argparse.ArgumentParser()
    add_options(parser, DEVICES)
    return Request.from_argv(parser.parse_args(join_counts(argv))).find_machine()


def test_device_with_count_and_ram() -> None:
    result = machine_for("--device", "2x", "RTX 3090", "--ram", "64G")
    assert [device.name for device in result.devices] == ["RTX 3090"] * 2
    assert result.host is not None
    assert result.host.total_bytes == 64 * GIB
    assert result.what_if


def test_repeated_device_option() -> None:
    result = machine_for("--device", "RTX 3090", "--device", "RTX 4090")
    assert [device.name for device in result.devices] == ["RTX 3090", "RTX 4090"]
    assert result.host is None


def test_ram_and_vram_without_a_device() -> None:
    result = machine_for("--ram", "32G", "--vram", "24G,16G")
    assert [device.total_bytes for device in result.devices] == [24 * GIB, 16 * GIB]


def test_no_options_detect_this_machine() -> None:
    result = machine_for()
    assert not result.what_if
    assert result.host is not None
    assert result.host.total_bytes >= result.host.free_bytes > 0


@pytest.mark.parametrize(
    "argv",
    [("--device", "no such card"), ("--device", "2x"), ("--device", ""), ("--ram", "1e99"), ("--ram", "0"),
     ("--vram", "24G,"), ("--ram", ""), ("--vram", "")],
)  # fmt: skip
def test_invalid_device_or_size_is_a_usage_error(argv: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        machine_for(*argv)


def test_cpu_and_ram_with_its_speed() -> None:
    result = machine_for("--cpu", "i7-12700K", "--ram", "2x16G DDR5-5200")
    assert (result.processor, result.cores) == ("Core i7-12700K", 12)
    assert result.host is not None
    assert result.host.bandwidth_bytes_per_s == 2 * 5200 * 8 * 10**6


def test_next_command_repeats_cpu() -> None:
    arguments = build_parser("recommend").parse_args(
        ["recommend", "--cpu", "Ryzen 7 7700", "--ram", "32G DDR5-6000", "--engine", "llama.cpp"]
    )
    assert list(plan_words(arguments)) == ["--ram", "32G DDR5-6000", "--cpu", "Ryzen 7 7700"]


@pytest.mark.parametrize(
    "argv",
    [["--devices", "--measure"], ["--measure", "--ram", "32G"], ["--devices", "--cpu", "N100"]],
)
def test_hardware_flags_that_exclude_each_other(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hardware", *argv]) == 2
    assert "measure" in capsys.readouterr().err
