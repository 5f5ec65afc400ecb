"""--device, --ram and --vram."""

from __future__ import annotations

import argparse

import pytest

from edgekit.cli import join_counts
from edgekit.cli.flags import DEVICES, add_options
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
