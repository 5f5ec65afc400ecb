"""machine/gpu_memory.py: the memory of a process that GPUs' drivers keep in RAM, from their counters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.machine.trees import machine, plant, recorded

from edgekit.machine.gpu_memory import MemoryInRam
from edgekit.machine.gpus import dedicated_slots
from edgekit.machine.pdh import ProcessMemory, gpu_process_memory
from edgekit.machine.surroundings import Surroundings
from edgekit.machine.types import System, this_system
from edgekit.units import GIB, KIB, MIB

PID = 4242
AMD_CARD, AMD_GRAPHICS, INTEL_CARD = "0000:03:00.0", "0000:0e:00.0", "0000:04:00.0"

# As Linux 6.14 writes them, without the lines for engines.
AMDGPU = """\
pos:\t0
flags:\t02100002
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t{slot}
pasid:\t32785
drm-total-cpu:\t0
drm-resident-cpu:\t0
drm-total-gtt:\t{gtt}
drm-shared-gtt:\t0
drm-resident-gtt:\t{gtt}
drm-total-vram:\t8 GiB
drm-resident-vram:\t8 GiB
drm-memory-vram:\t8388608 KiB
drm-memory-gtt: \t1 KiB
drm-memory-cpu: \t0 KiB
amd-evicted-vram:\t0 KiB
"""
# As Linux 6.1 writes them.
OLD_AMDGPU = """\
drm-driver:\tamdgpu
drm-client-id:\t7
drm-pdev:\t0000:03:00.0
drm-memory-vram:\t2068 KiB
drm-memory-gtt: \t8192 KiB
drm-memory-cpu: \t1024 KiB
"""
XE = """\
drm-driver:\txe
drm-client-id:\t3
drm-pdev:\t0000:04:00.0
drm-total-system:\t2 MiB
drm-resident-system:\t1 MiB
drm-total-gtt:\t192 KiB
drm-resident-gtt:\t192 KiB
drm-total-vram0:\t23992 KiB
drm-resident-vram0:\t23992 KiB
drm-resident-stolen:\t0
"""
I915 = """\
drm-driver:\ti915
drm-client-id:\t9
drm-pdev:\t0000:04:00.0
drm-total-local0:\t512 MiB
drm-resident-local0:\t256 MiB
drm-resident-system0:\t1234567
"""
FILE = "pos:\t0\nflags:\t0100000\nmnt_id:\t36\nino:\t4\n"


def amdgpu(gtt: str, *, client: int = 1, slot: str = AMD_CARD) -> str:
    return AMDGPU.format(gtt=gtt, client=client, slot=slot)


def looking(
    folder: Path, tree: str, infos: dict[str, str], *, pid: int = PID
) -> tuple[MemoryInRam, Surroundings]:
    """A probe on a recorded machine on which a process has these entries in fdinfo."""
    here = machine(folder, recorded(tree))
    plant(here.root, {f"/proc/{pid}/fdinfo/{name}": text for name, text in infos.items()})
    return MemoryInRam(here), here


@pytest.mark.parametrize(
    ("infos", "size_bytes"),
    [
        ({"0": FILE, "7": amdgpu("22 MiB")}, 22 * MIB),
        ({"7": amdgpu("22 MiB"), "8": amdgpu("22 MiB")}, 22 * MIB),  # one client, opened twice
        ({"7": amdgpu("22 MiB"), "8": amdgpu("1 GiB", client=2)}, GIB + 22 * MIB),
        ({"7": amdgpu("4096")}, 4096),  # a number without a unit is bytes
        ({"7": OLD_AMDGPU}, 9216 * KIB),
        ({"7": amdgpu("22 MiB", slot=AMD_GRAPHICS)}, None),  # graphics in the processor
        ({"7": amdgpu("22 MiB", slot="0000:ff:00.0")}, None),
        ({"0": FILE}, None),
        ({}, None),
        ({"7": amdgpu("99999999999999999999 KiB")}, 0),
        ({"7": amdgpu("lots")}, 0),
        ({"7": "drm-driver:\tamdgpu\n" + "x" * 100_000}, None),
    ],
    ids=[
        "one client", "same client", "two clients", "bytes", "old kernel", "integrated", "unknown card", "no GPU",
        "nothing", "huge", "no number", "long",
    ],
)  # fmt: skip
def test_memory_in_ram_of_an_amd_card(
    tmp_path: Path, infos: dict[str, str], size_bytes: int | None
) -> None:
    probe, _ = looking(tmp_path, "synthetic_rx7900xtx", infos)
    assert probe.look(PID) == size_bytes


@pytest.mark.parametrize(
    ("info", "size_bytes"), [(XE, MIB + 192 * KIB), (I915, 1_234_567)], ids=["xe", "i915"]
)
def test_memory_in_ram_of_an_intel_card(tmp_path: Path, info: str, size_bytes: int) -> None:
    probe, here = looking(tmp_path, "synthetic_arc_b580", {"5": info})
    assert dedicated_slots(here) == {INTEL_CARD}
    assert probe.look(PID) == size_bytes


def test_memory_in_ram_of_a_gpu_that_shares_the_ram_is_unknown(tmp_path: Path) -> None:
    probe, here = looking(tmp_path, "synthetic_strix_halo", {"7": amdgpu("20 GiB")})
    assert dedicated_slots(here) == frozenset()
    assert probe.look(PID) is None


@pytest.fixture
def in_a_child(tmp_path: Path) -> Surroundings:
    """A recorded machine on which the process has started 5001, and that 5002, as Ollama's server does."""
    tree = recorded("synthetic_rx7900xtx")
    return machine(tmp_path, {**tree, "psutil": {"children": (5001, 5002)}})


def test_memory_in_ram_includes_children(in_a_child: Surroundings) -> None:
    infos = {PID: amdgpu("1 MiB"), 5002: amdgpu("300 MiB", client=2)}
    plant(in_a_child.root, {f"/proc/{pid}/fdinfo/3": info for pid, info in infos.items()})
    assert MemoryInRam(in_a_child).look(PID) == 301 * MIB


def test_memory_in_ram_on_windows_includes_children(in_a_child: Surroundings) -> None:
    memory = counters(p5002_A18D=(8 * GIB, 70 * MIB), p6000_A18D=(8 * GIB, GIB))
    here = replace(in_a_child, system=System.WINDOWS, gpu_process_memory=lambda: memory)
    assert MemoryInRam(here).look(PID) == 70 * MIB


def test_memory_in_ram_of_a_process_that_is_gone(tmp_path: Path) -> None:
    probe, _ = looking(tmp_path, "synthetic_rx7900xtx", {"7": amdgpu("1 MiB")})
    assert probe.look(PID + 1) is None


def counters(**sizes: tuple[int, int]) -> dict[str, ProcessMemory]:
    return {
        f"pid_{name.removeprefix('p').replace('_', '_luid_0x00000000_0x0000', 1)}_phys_0": ProcessMemory(
            dedicated_bytes=dedicated, shared_bytes=shared
        )
        for name, (dedicated, shared) in sizes.items()
    }


@pytest.mark.parametrize(
    ("memory", "size_bytes"),
    [
        (counters(p4242_A18D=(8 * GIB, 70 * MIB), p4242_95CA=(0, GIB)), 70 * MIB),
        (counters(p4242_A18D=(8 * GIB, MIB), p4242_B000=(4 * GIB, MIB)), 2 * MIB),
        (counters(p42_A18D=(8 * GIB, GIB), p42420_A18D=(8 * GIB, GIB)), None),
        (counters(p4242_A18D=(MIB, GIB)), None),
        ({"": ProcessMemory(GIB, GIB), "_Total": ProcessMemory(GIB, GIB)}, None),
        ({}, None),
    ],
    ids=["a card and graphics", "two cards", "other processes", "graphics only", "other instances", "no counters"],
)  # fmt: skip
def test_memory_in_ram_on_windows(
    tmp_path: Path, memory: dict[str, ProcessMemory], size_bytes: int | None
) -> None:
    here = replace(machine(tmp_path, system=System.WINDOWS), gpu_process_memory=lambda: memory)
    assert MemoryInRam(here).look(PID) == size_bytes


def test_gpu_process_memory_is_empty_on_other_systems() -> None:
    if this_system() is System.WINDOWS:
        pytest.skip("this is Windows")
    assert gpu_process_memory() == {}
