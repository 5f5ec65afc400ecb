"""--device, --ram and --vram."""

from __future__ import annotations

import argparse

import pytest

from edgekit.cli import join_counts
from edgekit.cli.options import add_device_options, machine_of_arguments
from edgekit.errors import UsageError
from edgekit.units import GIB


@pytest.mark.parametrize(
    ("words", "joined"),
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
def test_a_count_and_a_name_are_one_word(words: list[str], joined: list[str]) -> None:
    assert join_counts(words) == joined


def asked(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_device_options(parser)
    return parser.parse_args(join_counts(words))


def test_what_is_wished_for() -> None:
    found = machine_of_arguments(asked("--device", "2x", "RTX 3090", "--ram", "64G"))
    assert [one.name for one in found.devices] == ["RTX 3090"] * 2
    assert found.host is not None
    assert found.host.total_bytes == 64 * GIB
    assert found.what_if


def test_several_devices() -> None:
    found = machine_of_arguments(asked("--device", "RTX 3090", "--device", "RTX 4090"))
    assert [one.name for one in found.devices] == ["RTX 3090", "RTX 4090"]
    assert found.host is None


def test_memory_alone() -> None:
    found = machine_of_arguments(asked("--ram", "32G", "--vram", "24G,16G"))
    assert [one.total_bytes for one in found.devices] == [24 * GIB, 16 * GIB]


def test_without_a_wish_it_is_this_machine() -> None:
    found = machine_of_arguments(asked())
    assert not found.what_if
    assert found.host is not None
    assert found.host.total_bytes >= found.host.free_bytes > 0


@pytest.mark.parametrize(
    "words",
    [("--device", "no such card"), ("--device", "2x"), ("--device", ""), ("--ram", "1e99"), ("--ram", "0"),
     ("--vram", "24G,"), ("--ram", ""), ("--vram", "")],
)  # fmt: skip
def test_what_makes_no_sense_is_a_usage_error(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        machine_of_arguments(asked(*words))
