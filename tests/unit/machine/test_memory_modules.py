"""Memory modules from SMBIOS tables made by hand, udev's records, instruction sets, and the bandwidth of this RAM."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import LONG
from tests.unit.machine.trees import machine, plant

from edgekit.machine.instructions import find_instructions
from edgekit.machine.memory_modules import (
    MAX_MODULES,
    MemoryModule,
    installed_bandwidth,
    memory_modules,
    modules_bandwidth,
    modules_of,
)
from edgekit.machine.probes import detect
from edgekit.machine.processors import find_processor
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.types import System
from edgekit.units import GIB, Basis

DDR3, DDR4, DDR5, LPDDR5 = 0x18, 0x1A, 0x22, 0x23
END = bytes([127, 4, 0, 0, 0, 0])
BIOS = (
    bytes([0, 8, 0, 0, 1, 2, 0, 0]) + b"American Megatrends\0F1\0\0"
)  # a structure of another type


def module(
    kind: int = DDR5,
    speed: int = 5600,
    configured: int | None = None,
    *,
    size_mib: int = 16_384,
    width: int = 64,
    length: int = 0x5C,
    extended: int = 0,
) -> bytes:
    """A structure of type 17 with its strings, cut to `length` as in older versions of SMBIOS."""
    configured = speed if configured is None else configured
    fixed = struct.pack(
        "<BBHHHHHHBBBBBHHBBBBBIHHHH", 17, length, 0x40, 0x10, 0xFFFE, width + 8, width, size_mib, 9, 0, 1, 2, kind, 0x80,
        speed, 3, 4, 5, 6, 1, 0, configured, 1100, 1100, 1100,
    )  # fmt: skip
    fixed = fixed.ljust(0x54, b"\0") + struct.pack("<II", extended, extended)
    return fixed[:length] + b"DIMM_A2\0P0 CHANNEL A\0Kingston\0123\0none\0KF560C36\0\0"


def table(structures: Iterable[bytes]) -> bytes:
    return BIOS + b"".join(structures) + END


@pytest.mark.parametrize(
    ("structures", "expected"),
    [
        ([module()], [("DDR5", 5600, 64)]),
        ([module(), module(size_mib=0), module()], [("DDR5", 5600, 64)] * 2),  # an empty slot
        ([module(DDR5, 4800, 6000)], [("DDR5", 6000, 64)]),  # overclocked
        ([module(DDR5, 6000, 4800)], [("DDR5", 4800, 64)]),  # four modules are slower
        ([module(DDR4, 3200, 1600)], [("DDR4", 3200, 64)]),  # the clock, not the transfers
        (
            [module(DDR3, 1333, length=0x1B)],
            [("DDR3", 1333, 64)],
        ),  # SMBIOS 2.3: no configured speed
        ([module(DDR5, 0)], []),  # unknown, as QEMU reports
        ([module(DDR5, 7)], []),
        ([module(0x02, 3200)], [("", 3200, 64)]),  # kind unknown
        ([module(LPDDR5, 6400, width=32)] * 4, [("LPDDR5", 6400, 32)] * 4),
        ([module(LPDDR5, 0xFFFF, 0xFFFF, extended=8533)], [("LPDDR5", 8533, 64)]),
        ([module(size_mib=0xFFFF)], []),  # size unknown
        ([module(size_mib=0x7FFF)], [("DDR5", 5600, 64)]),  # 32 GiB and more: extended size
        ([module(width=0xFFFF - 8)], [("DDR5", 5600, 0)]),
        ([], []),
    ],
)
def test_modules_of_an_smbios_table(
    structures: list[bytes], expected: list[tuple[str, int, int]]
) -> None:
    assert modules_of(table(structures)) == tuple(MemoryModule(*row) for row in expected)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\0",
        bytes([17, 0, 0, 0]),  # a length of zero must not loop
        bytes([17, 255, 0, 0]),
        module()[:40],
        b"\0\0" * 500_000,
        bytes([17, 4, 0, 0, 0, 0]) * 100_000,
        BIOS[:-1],
    ],
)
def test_damaged_table_has_no_modules(damaged: bytes) -> None:
    assert modules_of(damaged) == ()


def test_number_of_modules_is_bounded() -> None:
    assert len(modules_of(table([module()] * (MAX_MODULES + 50)))) == MAX_MODULES


@settings(max_examples=1000 if LONG else 100)
@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    modules_of(data)
    modules_of(module()[:20] + data)
    modules_of(table([data]))


UDEV = """\
I:1
E:MEMORY_ARRAY_NUM_DEVICES=4
E:MEMORY_DEVICE_0_PRESENT=0
E:MEMORY_DEVICE_0_SPEED_MTS=3000
E:MEMORY_DEVICE_1_DATA_WIDTH=64
E:MEMORY_DEVICE_1_SIZE=17179869184
E:MEMORY_DEVICE_1_TYPE=DDR4
E:MEMORY_DEVICE_1_SPEED_MTS=3200
E:MEMORY_DEVICE_1_CONFIGURED_SPEED_MTS=3000
E:MEMORY_DEVICE_3_DATA_WIDTH=64
E:MEMORY_DEVICE_3_SIZE=17179869184
E:MEMORY_DEVICE_3_TYPE=DDR4
E:MEMORY_DEVICE_3_CONFIGURED_SPEED_MTS=3000
E:MEMORY_DEVICE_4_TYPE=DDR4
E:MEMORY_DEVICE_4_CONFIGURED_SPEED_MTS=99999999999999999999999999
"""


def test_modules_from_udev(tmp_path: Path) -> None:
    surroundings = machine(tmp_path, {"files": {"run/udev/data/+dmi:id": UDEV}})
    assert memory_modules(surroundings) == (MemoryModule("DDR4", 3000, 64),) * 2


def test_firmware_table_comes_before_udev(tmp_path: Path) -> None:
    surroundings = machine(tmp_path, {"files": {"run/udev/data/+dmi:id": UDEV}})
    path = tmp_path / "sys/firmware/dmi/tables/DMI"
    path.parent.mkdir(parents=True)
    path.write_bytes(table([module()]))
    assert memory_modules(surroundings) == (MemoryModule("DDR5", 5600, 64),)


def test_modules_of_windows(tmp_path: Path) -> None:
    raw = b"\0\x03\x05\0" + struct.pack("<I", 1000) + table([module(), module()])
    windows = replace(machine(tmp_path, system=System.WINDOWS), firmware_table=lambda: raw)
    assert memory_modules(windows) == (MemoryModule("DDR5", 5600, 64),) * 2
    assert memory_modules(machine(tmp_path, system=System.WINDOWS)) == ()
    assert memory_modules(machine(tmp_path, system=System.MACOS)) == ()


@pytest.mark.parametrize(
    ("modules", "cpu", "sockets", "mb_per_s", "because", "basis"),
    [
        ([("DDR5", 6000, 64)] * 2, "Ryzen 7 7700", 1, 2 * 6000 * 8, "2 channels of DDR5-6000", Basis.MODELLED),
        ([("DDR5", 3600, 64)] * 4, "Ryzen 7 7700", 1, 2 * 3600 * 8, "2 channels of DDR5-3600", Basis.MODELLED),
        ([("DDR5", 5600, 64)], "Ryzen 7 7700", 1, 5600 * 8, "1 channel of DDR5-5600", Basis.MODELLED),
        ([("DDR5", 5600, 32)] * 2, "Ryzen 7 7700", 1, 2 * 5600 * 8, "2 channels of DDR5-5600", Basis.MODELLED),
        ([("DDR5", 4800, 64)] * 24, "EPYC 9654", 2, 24 * 4800 * 8, "24 channels of DDR5-4800", Basis.MODELLED),
        ([("LPDDR5", 6400, 32)] * 4, "Ryzen 7 6800U", 1, 2 * 6400 * 8, "2 channels of LPDDR5-6400", Basis.MODELLED),
        ([("LPDDR5", 6400, 0)] * 4, "Ryzen 7 6800U", 1, 2 * 6400 * 8, "2 channels (assumed) of LPDDR5-6400", Basis.ASSUMED),
        ([("DDR4", 3200, 64)] * 4, None, 1, 2 * 3200 * 8, "2 channels (assumed) of DDR4-3200", Basis.ASSUMED),
        ([("DDR4", 2933, 64)] * 12, None, 1, 12 * 2933 * 8, "12 channels of DDR4-2933", Basis.MODELLED),
        ([("DDR4", 3200, 64), ("DDR4", 2400, 64)], None, 1, 2 * 2400 * 8, "2 channels of DDR4-2400", Basis.MODELLED),
    ],
)  # fmt: skip
def test_bandwidth_of_modules(
    *,
    modules: list[tuple[str, int, int]],
    cpu: str | None,
    sockets: int,
    mb_per_s: int,
    because: str,
    basis: Basis,
) -> None:
    processor = None if cpu is None else find_processor(cpu)
    found = modules_bandwidth(tuple(MemoryModule(*row) for row in modules), processor, sockets)
    assert found is not None
    assert (found.bytes_per_s, found.basis) == (mb_per_s * 10**6, basis)
    assert found.because == f"{because}, as the firmware reports"


# -- recorded /proc/cpuinfo ----------------------------------------------------------------------

RYZEN_7700 = """\
processor	: 0
model name	: AMD Ryzen 7 7700 8-Core Processor
physical id	: 0
flags		: fpu sse sse2 ssse3 fma sse4_1 sse4_2 avx f16c avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16 avx512_vnni
"""
XEON_8480 = """\
processor	: 0
model name	: Intel(R) Xeon(R) Platinum 8480+
physical id	: 0
flags		: fpu sse sse2 sse4_1 sse4_2 avx f16c avx2 avx512f avx512bw avx_vnni avx512_vnni amx_bf16 amx_tile amx_int8

processor	: 1
model name	: Intel(R) Xeon(R) Platinum 8480+
physical id	: 1
"""
RASPBERRY_PI_5 = """\
processor	: 0
BogoMIPS	: 108.00
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU part	: 0xd0b

Model		: Raspberry Pi 5 Model B Rev 1.0
"""


def with_cpuinfo(root: Path, cpuinfo: str, **files: str) -> Surroundings:
    memory = {"total": 32 * GIB, "available": 30 * GIB}
    psutil: dict[str, Any] = {"virtual_memory": memory, "cpu_count": 8}
    tree = {"files": {"proc/cpuinfo": cpuinfo, **files}, "psutil": psutil}
    return machine(root, tree, answers={})


@pytest.mark.parametrize(
    ("cpuinfo", "instructions", "mb_per_s", "because"),
    [
        (RYZEN_7700, "sse avx f16c avx2 avx512 avx512_vnni", 2 * 5200 * 8, "2 channels of DDR5-5200, assumed"),
        (XEON_8480, "sse avx f16c avx2 avx512 avx512_vnni avx_vnni amx", 16 * 4800 * 8, "2 sockets, each with 8 channels"),
        (RASPBERRY_PI_5, "neon dotprod", 17_100, "official figure for Raspberry Pi 5"),
    ],
)  # fmt: skip
def test_detection_from_recorded_cpuinfo(
    *, tmp_path: Path, cpuinfo: str, instructions: str, mb_per_s: int, because: str
) -> None:
    found = detect(with_cpuinfo(tmp_path, cpuinfo))
    assert found.instructions == frozenset(instructions.split())
    assert found.host is not None
    assert found.host.bandwidth_bytes_per_s == mb_per_s * 10**6
    assert found.host.bandwidth_because.startswith(because)


def test_virtual_machine_does_not_count_its_invented_modules(tmp_path: Path) -> None:
    virtual = RYZEN_7700.replace("fpu", "fpu hypervisor")
    surroundings = with_cpuinfo(tmp_path, virtual, **{"run/udev/data/+dmi:id": UDEV})
    bandwidth = installed_bandwidth(surroundings, "AMD Ryzen 7 7700 8-Core Processor")
    assert bandwidth is not None
    assert bandwidth.because.startswith("2 channels of DDR5-5200, assumed")
    assert installed_bandwidth(surroundings, "Intel(R) Xeon(R) Processor @ 2.10GHz") is None


def test_virtual_machine_does_not_count_its_invented_sockets(tmp_path: Path) -> None:
    one, two = (
        installed_bandwidth(with_cpuinfo(tmp_path / name, cpuinfo), "Intel Xeon Platinum 8480+")
        for name, cpuinfo in (
            ("virtual", XEON_8480.replace("fpu", "fpu hypervisor")),
            ("real", XEON_8480),
        )
    )
    assert one is not None
    assert two is not None
    assert two.bytes_per_s == 2 * one.bytes_per_s


def test_board_is_named_by_its_device_tree(tmp_path: Path) -> None:
    surroundings = with_cpuinfo(tmp_path, "Features : fp asimd asimddp\n")
    plant(tmp_path, {"proc/device-tree/model": "Orange Pi 5 Plus\0"})
    found = detect(surroundings)
    assert found.processor == "Orange Pi 5 Plus"
    assert found.host is not None
    assert found.host.bandwidth_bytes_per_s == 4224 * 8 * 10**6


def test_instructions_of_windows_and_macos(tmp_path: Path) -> None:
    windows = replace(
        machine(tmp_path, system=System.WINDOWS),
        processor_feature={38, 39, 40, 41}.__contains__,
    )
    # Windows does not report VNNI: the table adds it.
    name = "AMD Ryzen 7 7700 8-Core Processor"
    expected = {"sse", "avx", "avx2", "f16c", "avx512", "avx512_vnni"}
    assert find_instructions(windows, name) == expected
    assert find_instructions(windows, "unknown") == expected - {"avx512_vnni"}
    mac = machine(
        tmp_path,
        {"sysctl": {"hw.optional.neon": 1, "hw.optional.arm.FEAT_DotProd": 1, "hw.optional.arm.FEAT_I8MM": 0}},
        system=System.MACOS,
    )  # fmt: skip
    assert find_instructions(mac, "Apple M1") == {"neon", "dotprod"}
    assert find_instructions(machine(tmp_path), "unknown") == frozenset()
