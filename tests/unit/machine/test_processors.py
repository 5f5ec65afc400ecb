"""Processors by name, and RAM as described by --ram."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG

from edgekit.errors import UsageError
from edgekit.machine.devices import table_lines
from edgekit.machine.processors import (
    FILE,
    HostBandwidth,
    all_processors,
    described_bandwidth,
    find_processor,
    memory_of,
    processor_like,
)
from edgekit.units import GIB, Basis

X86 = {"sse", "avx", "f16c", "avx2", "avx_vnni", "avx512", "avx512_vnni", "amx"}
ARM = {"neon", "dotprod", "i8mm", "sve"}


def test_every_row_is_plausible() -> None:
    for processor in all_processors():
        assert 1 <= processor.cores <= 192, processor.name
        assert processor.channels in {0.5, 1, 2, 4, 6, 8, 12, 16}, processor.name
        assert all(400 <= memory.mt_per_s <= 11_000 for memory in processor.memory), processor.name
        assert processor.instructions <= (ARM if processor.arm else X86), processor.name
        assert re.fullmatch(r"20[0-9]{2}-[0-9]{2}", processor.released), processor.name
        assert processor.source, processor.name
        clocks = [clock for clock in (processor.base_ghz, processor.boost_ghz) if clock]
        assert clocks == sorted(clocks), processor.name
        assert all(0.8 <= clock <= 6.5 for clock in clocks), processor.name


def test_every_name_finds_its_own_row_and_no_other() -> None:
    for processor in all_processors():
        for name in (processor.name, *processor.also):
            assert find_processor(name) == processor, name


def test_heading_has_the_columns_of_the_rows() -> None:
    assert {line.count("\t") for line in table_lines(FILE)} == {12}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ryzen 7 7700", "Ryzen 7 7700"),
        ("AMD Ryzen 7700", "Ryzen 7 7700"),
        ("7700X", "Ryzen 7 7700X"),
        ("7700K", "Core i7-7700K"),
        ("Ryzen 7 5700G", "Ryzen 7 5700G"),
        ("i7 12700k", "Core i7-12700K"),
        ("intel core i7-12700KF", "Core i7-12700K"),
        ("Xeon 6230", "Xeon Gold 6230"),
        ("e5-2680v4", "Xeon E5-2680 v4"),
        ("9654", "EPYC 9654"),
        ("threadripper 7970x", "Ryzen Threadripper 7970X"),
        ("HX 370", "Ryzen AI 9 HX 370"),
        ("Raspberry Pi 5", "Raspberry Pi 5"),
        ("rk3588", "RK3588"),
        ("n100", "N100"),
    ],
)
def test_find_processor_by_what_people_type(text: str, name: str) -> None:
    assert find_processor(text).name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("AMD Ryzen 7 7700 8-Core Processor", "Ryzen 7 7700"),
        ("AMD Ryzen 5 2600 Six-Core Processor", "Ryzen 5 2600"),
        ("AMD Ryzen 7 5700G with Radeon Graphics", "Ryzen 7 5700G"),
        ("AMD Ryzen 7 PRO 7840U w/ Radeon 780M Graphics", "Ryzen 7 7840U"),
        ("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", "Ryzen AI 9 HX 370"),
        ("AMD Ryzen Threadripper PRO 5975WX 32-Cores", "Ryzen Threadripper PRO 5975WX"),
        ("AMD EPYC 9654 96-Core Processor", "EPYC 9654"),
        ("12th Gen Intel(R) Core(TM) i7-12700K", "Core i7-12700K"),
        ("Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", "Core i7-8700"),
        ("Intel(R) Core(TM) Ultra 7 155H", "Core Ultra 7 155H"),
        ("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", "Xeon E5-2690 v4"),
        ("INTEL(R) XEON(R) PLATINUM 8592+", "Xeon Platinum 8592+"),
        ("Intel(R) N100", "N100"),
        ("Raspberry Pi 5 Model B Rev 1.0", "Raspberry Pi 5"),
        ("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU", "Snapdragon X Elite"),
    ],
)
def test_processor_like_reads_the_names_that_systems_give(text: str, name: str) -> None:
    found = processor_like(text)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "name",
    ["", "x86_64", "aarch64", "Intel(R) Xeon(R) Processor @ 2.10GHz", "Apple M3 Max", "7700"],
)
def test_processor_like_without_a_row_is_none(name: str) -> None:
    assert processor_like(name) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("7700", "may be one of several processors: Core i7-7700, Ryzen 7 7700"),
        ("Ryzen 7 7701", "unknown processor 'Ryzen 7 7701'; did you mean"),
        ("m3-max-64", "is not a processor: give --device m3-max-64"),
        ("rtx 4090", "is not a processor: give --device rtx-4090"),
        ("", "unknown processor ''; for example"),
        ("\0\t\u202e(((", "unknown processor"),
        ("x" * 10_000, "unknown processor"),
    ],
)
def test_unknown_processor_is_a_usage_error(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_processor(text)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 300


@settings(max_examples=500 if LONG else 60)
@given(st.text(max_size=200))
def test_any_text_is_a_processor_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert find_processor(text).name


def bandwidth(ram: str, cpu: str | None = None) -> HostBandwidth | None:
    return described_bandwidth(memory_of(ram), None if cpu is None else find_processor(cpu))


@pytest.mark.parametrize(
    ("ram", "cpu", "expected"),
    [
        ("2x16G DDR5-6000", "Ryzen 7 7700", (2 * 6000 * 8, "2 channels of DDR5-6000, --ram", Basis.MODELLED)),
        ("16G DDR5-6000", "Ryzen 7 7700", (2 * 6000 * 8, "2 channels of DDR5-6000, --ram", Basis.MODELLED)),
        ("1x16G DDR5-6000", "Ryzen 7 7700", (6000 * 8, "1 channel of DDR5-6000, --ram", Basis.MODELLED)),
        ("4x16G DDR5-3600", "Ryzen 7 7700", (2 * 3600 * 8, "2 channels of DDR5-3600, --ram", Basis.MODELLED)),
        ("768G", "EPYC 9654", (12 * 4800 * 8, "12 channels (assumed) of DDR5-4800, assumed: the fastest that EPYC 9654 officially takes", Basis.ASSUMED)),
        ("24x32G DDR5-4800 24 channels", "EPYC 9654", (24 * 4800 * 8, "24 channels of DDR5-4800, --ram", Basis.MODELLED)),
        ("8G", "Raspberry Pi 5", (17_100, "official figure for Raspberry Pi 5", Basis.MODELLED)),
        ("32G DDR5-6000", None, (2 * 6000 * 8, "2 channels (assumed) of DDR5-6000, --ram", Basis.ASSUMED)),
        ("8x32G DDR4-3200", None, (8 * 3200 * 8, "8 channels of DDR4-3200, --ram", Basis.MODELLED)),
        ("4x16G DDR4-3200", None, (2 * 3200 * 8, "2 channels (assumed) of DDR4-3200, --ram", Basis.ASSUMED)),
        ("32G DDR5", None, (2 * 5600 * 8, "2 channels (assumed) of DDR5-5600, assumed: a usual speed", Basis.ASSUMED)),
        ("32G", None, None),
    ],
)  # fmt: skip
def test_bandwidth_of_described_memory(
    ram: str, cpu: str | None, expected: tuple[int, str, Basis] | None
) -> None:
    found = bandwidth(ram, cpu)
    if expected is None:
        assert found is None
    else:
        mb_per_s, because, basis = expected
        assert found == (mb_per_s * 10**6, because, basis)


@pytest.mark.parametrize("text", ["2x EPYC 9654", "EPYC 9654, EPYC 9654"])
def test_two_processors_are_not_taken_for_one(text: str) -> None:
    with pytest.raises(UsageError, match="name one processor; for two sockets give --ram"):
        find_processor(text)


def test_memory_that_the_processor_does_not_take_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="Ryzen 7 7700 takes DDR5, not DDR4"):
        bandwidth("32G DDR4-3200", "Ryzen 7 7700")


@pytest.mark.parametrize(("cpu", "most", "kind"), [("Ryzen 7 7700", 2, "DDR5"), ("EPYC 9654", 24, "DDR5"), ("Threadripper 7970X", 4, "DDR5"), ("Raspberry Pi 5", 0.5, "LPDDR4X")])  # fmt: skip
def test_more_channels_than_the_processor_has_are_a_usage_error(
    cpu: str, most: float, kind: str
) -> None:
    with pytest.raises(UsageError, match=f"{cpu} has at most {most:g} memory channels of 64 bits"):
        bandwidth(f"32G {kind}-4267 {int(most) + 1} channels", cpu)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("32G", (32, "", None, None, None)),
        ("64GB DDR4 3200", (64, "DDR4", 3200, None, None)),
        ("32 GiB, ddr5-6000 MT/s", (32, "DDR5", 6000, None, None)),
        ("32G 6000MHz", (32, "", 6000, None, None)),
        ("2 x 16G", (32, "", None, 2, None)),
        ("2\u00d716G DDR4-2666", (32, "DDR4", 2666, 2, None)),
        ("16G LPDDR5X-8533", (16, "LPDDR5X", 8533, None, None)),
        ("96G DDR5-5600 2 channels", (96, "DDR5", 5600, None, 2)),
        ("16G DDR4-3200 single channel", (16, "DDR4", 3200, None, 1)),
    ],
)
def test_memory_of_reads_size_kind_speed_and_channels(
    text: str, expected: tuple[int, str, int | None, int | None, int | None]
) -> None:
    memory = memory_of(text)
    size_gib, kind, mt_per_s, modules, channels = expected
    assert memory.size_bytes == size_gib * GIB
    assert (memory.kind, memory.mt_per_s) == (kind, mt_per_s)
    assert (memory.modules, memory.channels) == (modules, channels)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("32G DDR9", "unknown kind of memory DDR9"),
        ("32G foo", "is not RAM such as 32G"),
        ("32G DDR5-99999", "99999 MT/s is not a speed of memory"),
        ("0x16G", "the number of modules must be 1 to 64"),
        ("999x16G", "the number of modules must be 1 to 64"),
        ("32G DDR5-6000 0 channels", "the number of channels must be 1 to 64"),
        ("2x", "is not a size"),
        ("", "is not a size"),
        ("32G " + "DDR5-6000 " * 1000, "is not RAM such as 32G"),
        ("9" * 100_000, "is not a size"),
    ],
)
def test_memory_of_hostile_text_is_a_usage_error(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        memory_of(text)
    assert len(str(caught.value)) < 200
