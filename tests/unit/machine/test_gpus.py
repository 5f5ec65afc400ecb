"""Detection of the GPUs of AMD, Intel and Apple."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.machine.trees import HOST, machine, recorded

from edgekit.machine.devices import default_working_set_bytes
from edgekit.machine.gpus import find_amd, find_apple, find_intel
from edgekit.machine.surroundings import Findings, Surroundings
from edgekit.machine.types import Device, HostMemory, System, Vendor
from edgekit.units import GIB, MIB, Basis

# -- amd --------------------------------------------------------------------------------------------

AMD_CARD = "/sys/class/drm/card1/device"
AMD_APU = "/sys/class/drm/card0/device"


def radeon(**changed: str) -> dict[str, Any]:
    tree = recorded("synthetic_rx7900xtx")
    tree["files"].update({f"{AMD_CARD}/{name}": text for name, text in changed.items()})
    return tree


def without(tree: dict[str, Any], part: str) -> dict[str, Any]:
    """The tree without the files whose path contains `part`."""
    tree["files"] = {path: text for path, text in tree["files"].items() if part not in path}
    return tree


def test_find_amd_card(tmp_path: Path) -> None:
    """24,560 MiB, of which 560 are in use."""
    assert find_amd(machine(tmp_path, without(radeon(), "card0"))) == Findings(
        devices=(
            Device(
                name="AMD Radeon RX 7900 XTX",
                vendor=Vendor.AMD,
                index=0,
                total_bytes=24_560 * MIB,
                free_bytes=24_000 * MIB,
                bandwidth_bytes_per_s=960 * 10**9,
                architecture="rdna3",
                fp32_flops=614 * 10**11,
                fp16_flops=1230 * 10**11,
                matrix_flops=1230 * 10**11,
                basis=Basis.EXACT,
                because="amdgpu mem_info_vram_total and _used",
            ),
        ),
    )


def test_amd_integrated_gpu_shares_the_ram(tmp_path: Path) -> None:
    """GTT (32 GiB, 30 MiB in use) is more than the carve-out (512 MiB, 40 in use): one pool of both."""
    (device,) = find_amd(machine(tmp_path, without(radeon(), "card1"))).devices
    assert device.unified
    assert (device.total_bytes, device.free_bytes) == (HOST.total_bytes, HOST.usable_bytes)
    assert device.limit_bytes == 32 * GIB - 30 * MIB + 512 * MIB - 40 * MIB


def test_find_amd_strix_halo(tmp_path: Path) -> None:
    """96 GiB mappable less 1 GiB, and a carve-out of 4 GiB less 300 MiB. The host of 64 GiB caps what is free."""
    (device,) = find_amd(machine(tmp_path, recorded("synthetic_strix_halo"))).devices
    assert (device.name, device.unified) == ("AMD Radeon 8060S", True)
    assert (device.limit_bytes, device.free_bytes) == (99 * GIB - 300 * MIB, 50 * GIB)
    assert device.bandwidth_bytes_per_s == 256 * 10**9
    assert (device.architecture, device.matrix_flops) == ("rdna3.5", 59.4e12)
    assert device.own_bytes == 4 * GIB - 300 * MIB
    assert (
        "may map 96.00 GiB of the RAM (GTT, ttm.pages_limit), of which 95.00 GiB is free"
        in device.limit_because
    )


KFD = "/sys/class/kfd/kfd/topology/nodes"


def unknown_card(properties: str) -> dict[str, Any]:
    """A card that is not in the table, and amdkfd's properties of it."""
    tree = without(radeon(product_name="AMD Radeon RX 1\n"), "card0")
    (node,) = {path for path in tree["files"] if path.startswith(f"{AMD_CARD}/drm/renderD")}
    tree["files"][f"{KFD}/0/properties"] = "cpu_cores_count 16\ndrm_render_minor 0\n"
    minor = node.split("/renderD")[1].split("/")[0]
    tree["files"][f"{KFD}/1/properties"] = f"drm_render_minor {minor}\n{properties}"
    return tree


def test_arithmetic_speed_of_an_amd_card_not_in_the_table(tmp_path: Path) -> None:
    """192 SIMDs, two for each of 96 compute units of 64 cores, at 2,500 MHz: an RX 7900 XTX under another name."""
    properties = (
        "simd_count 192\nsimd_per_cu 2\ngfx_target_version 110000\nmax_engine_clk_fcompute 2500\n"
    )
    (device,) = find_amd(machine(tmp_path, unknown_card(properties))).devices
    assert (device.architecture, device.fp32_flops) == ("rdna3", 96 * 64 * 4 * 2500 * 10**6)


@pytest.mark.parametrize(
    ("properties", "architecture"),
    [
        ("gfx_target_version 120001\n", "rdna4"),
        ("gfx_target_version 120001\nsimd_count 9999999999\nsimd_per_cu 0\n", "rdna4"),
        ("gfx_target_version 990000\nsimd_count 64\nsimd_per_cu 2\n", ""),
        ("gfx_target_version many\n", ""),
        ("\0\n \n\n", ""),
    ],
)
def test_arithmetic_speed_from_implausible_amd_properties_is_unknown(
    tmp_path: Path, properties: str, architecture: str
) -> None:
    tree = unknown_card(f"{properties}max_engine_clk_fcompute 2500\n")
    (device,) = find_amd(machine(tmp_path, tree)).devices
    assert (device.architecture, device.fp32_flops) == (architecture, None)


def test_amd_carve_out_larger_than_gtt_is_own_memory(tmp_path: Path) -> None:
    """96 GiB set in the BIOS are no longer the host's: two memories, not one."""
    tree = recorded("synthetic_strix_halo")
    tree["files"][f"{AMD_CARD}/mem_info_vram_total"] = f"{96 * GIB}\n"
    tree["files"][f"{AMD_CARD}/mem_info_gtt_total"] = f"{16 * GIB}\n"
    (device,) = find_amd(machine(tmp_path, tree)).devices
    assert (device.unified, device.integrated) == (False, True)
    assert (device.total_bytes, device.free_bytes) == (96 * GIB, 96 * GIB - 300 * MIB)


def test_amd_mi300a_is_unified(tmp_path: Path) -> None:
    tree = without(radeon(gpu_metrics="x\0\x01\x05", mem_info_vram_total=f"{96 * GIB}\n"), "card0")
    tree["files"][f"{AMD_CARD}/uevent"] = (
        "DRIVER=amdgpu\nPCI_ID=1002:74A0\nPCI_SLOT_NAME=0000:01:00.0\n"
    )
    (device,) = find_amd(machine(tmp_path, tree)).devices
    assert (device.unified, device.limit_bytes) == (True, 32 * GIB - 100 * MIB)


def test_amd_old_integrated_gpu_has_its_carve_out(tmp_path: Path) -> None:
    """Without gpu_metrics it cannot be told from a card, so only its carve-out counts."""
    tree = without(radeon(), "card1")
    del tree["files"][f"{AMD_APU}/gpu_metrics"]
    (device,) = find_amd(machine(tmp_path, tree)).devices
    assert (device.unified, device.total_bytes) == (False, 512 * MIB)


def test_amd_memory_partition_nps4_divides_the_memory(tmp_path: Path) -> None:
    tree = radeon(current_memory_partition="NPS4\n", product_name="AMD Instinct MI300X\n")
    (device,) = find_amd(machine(tmp_path, without(tree, "card0"))).devices
    assert (device.partition, device.basis) == ("NPS4", Basis.MODELLED)
    assert (device.total_bytes, device.free_bytes) == (24_560 * MIB // 4, 24_000 * MIB // 4)


@pytest.mark.parametrize("partition", ["NPS1\n", "NPS9\n", "NPS\n", "x"])
def test_amd_memory_partition_nps1_or_invalid_divides_nothing(
    tmp_path: Path, partition: str
) -> None:
    tree = without(radeon(current_memory_partition=partition), "card0")
    (device,) = find_amd(machine(tmp_path, tree)).devices
    assert device.total_bytes == 24_560 * MIB


@pytest.mark.parametrize("garbage", ["", "many\n", "-5\n", "0\n", f"{2**63}\n"])
def test_amd_card_that_does_not_report_its_memory_is_a_note(tmp_path: Path, garbage: str) -> None:
    findings = find_amd(machine(tmp_path, without(radeon(mem_info_vram_total=garbage), "card0")))
    assert findings.devices == ()
    assert findings.notes[0].endswith("does not report its memory: not counted.")


def test_amd_card_not_passed_to_the_container_is_a_note(tmp_path: Path) -> None:
    """/sys shows every card of the machine; /dev only those that were passed in."""
    tree = without(without(radeon(), "card0"), "/dev/dri")
    findings = find_amd(machine(tmp_path, tree))
    assert findings.devices == ()
    assert "/dev/dri/renderD128 does not exist" in findings.notes[0]


def test_amd_driver_without_render_node_is_a_note(tmp_path: Path) -> None:
    tree = without(without(radeon(), "card0"), "renderD")
    assert "has no render node" in find_amd(machine(tmp_path, tree)).notes[0]


def test_find_amd_finds_nothing_on_other_systems(tmp_path: Path) -> None:
    assert find_amd(machine(tmp_path, radeon(), system=System.WINDOWS)) == Findings()


# -- intel ------------------------------------------------------------------------------------------

INTEL_CARD = "/sys/class/drm/card1"


def arc(pci: str = "8086:E20B", *, bar_bytes: int = 16 * GIB, tile: bool = False) -> dict[str, Any]:
    """A card with a BAR of this size, with or without the file that states its memory."""
    tree = recorded("synthetic_arc_b580")
    files = tree["files"]
    files[f"{INTEL_CARD}/device/uevent"] = f"DRIVER=xe\nPCI_ID={pci}\nPCI_SLOT_NAME=0000:04:00.0\n"
    first = files[f"{INTEL_CARD}/device/resource"].splitlines()[:2]
    last = f"0x{2**38:016x} 0x{2**38 + bar_bytes - 1:016x} 0x000000000014220c"
    files[f"{INTEL_CARD}/device/resource"] = "\n".join([*first, last]) + "\n"
    if not tile:
        del files[f"{INTEL_CARD}/device/tile0/physical_vram_size_bytes"]
    return tree


def test_intel_card_with_xe(tmp_path: Path) -> None:
    """12 GiB according to its file, of which a sixteenth is assumed to be in use."""
    findings = find_intel(machine(tmp_path, recorded("synthetic_arc_b580")))
    _, device = findings.devices
    assert (device.name, device.unified, device.basis) == ("Intel Arc B580", False, Basis.ASSUMED)
    assert (device.total_bytes, device.free_bytes) == (12 * GIB, 12 * GIB * 15 // 16)
    assert device.because.startswith("xe physical_vram_size_bytes;")
    assert findings.notes == ()


@pytest.mark.parametrize(
    ("pci", "bar_bytes", "total_bytes"),
    [
        ("8086:E20B", 16 * GIB, 12 * GIB),  # B580: the BAR is the next power of two
        ("8086:E20B", 256 * MIB, 12 * GIB),  # without resizable BAR
        ("8086:E223", 32 * GIB, 32 * GIB),  # Arc Pro B70
        ("8086:56A0", 16 * GIB, 16 * GIB),  # A770, sold with 8 and with 16
        ("8086:56A0", 8 * GIB, 8 * GIB),
        ("8086:56A0", 256 * MIB, 8 * GIB),  # either: the smaller counts
        ("8086:FFFF", 16 * GIB, 8 * GIB),  # unknown: half of its BAR is certain
    ],
)
def test_intel_card_without_reported_memory(
    tmp_path: Path, pci: str, bar_bytes: int, total_bytes: int
) -> None:
    _, device = find_intel(machine(tmp_path, arc(pci, bar_bytes=bar_bytes))).devices
    assert device.total_bytes == total_bytes


def test_intel_unknown_card_with_small_bar_is_a_note(tmp_path: Path) -> None:
    tree = arc("8086:FFFF", bar_bytes=256 * MIB)
    tree["files"] = {path: text for path, text in tree["files"].items() if "card0" not in path}
    findings = find_intel(machine(tmp_path, tree))
    assert findings.devices == ()
    assert findings.notes == (
        "Intel GPU ffff (0000:04:00.0) does not report its memory: not counted.",
    )


def test_intel_card_has_the_memory_of_lmem_total_bytes(tmp_path: Path) -> None:
    tree = arc("8086:56C0")
    tree["files"][f"{INTEL_CARD}/lmem_total_bytes"] = f"{15 * GIB}\n"
    _, device = find_intel(machine(tmp_path, tree)).devices
    assert (device.total_bytes, device.name) == (15 * GIB, "Intel Data Center GPU Flex 170")


@pytest.mark.parametrize(
    ("host", "limit_bytes"),
    [
        (HOST, 48 * GIB),  # three quarters of 64 GiB
        (HostMemory(total_bytes=4 * GIB, free_bytes=3 * GIB), 2 * GIB),  # half of 4 GiB
    ],
)
def test_intel_integrated_graphics(tmp_path: Path, host: HostMemory, limit_bytes: int) -> None:
    tree = arc()
    tree["files"] = {path: text for path, text in tree["files"].items() if "card1" not in path}
    (device,) = find_intel(machine(tmp_path, tree, host=host)).devices
    assert (device.unified, device.basis) == (True, Basis.MODELLED)
    assert (device.total_bytes, device.free_bytes) == (host.total_bytes, host.usable_bytes)
    assert device.limit_bytes == limit_bytes


@pytest.mark.parametrize("resource", ["", "0x0 0x0\n", "a b c\nd\ne f\n", "0x0\n0x0\n0x5\n", "\0"])
def test_intel_card_with_invalid_bar_is_not_found(tmp_path: Path, resource: str) -> None:
    tree = arc("8086:FFFF")
    tree["files"][f"{INTEL_CARD}/device/resource"] = resource
    findings = find_intel(machine(tmp_path, tree))
    assert [device.name for device in findings.devices] == ["Intel integrated graphics"]


# -- apple ------------------------------------------------------------------------------------------

# GiB of memory: recommendedMaxWorkingSetSize in MB (10^6), as in public logs of llama.cpp on
# macOS before 26 (its GPU family ends with Metal3) ...
LOGGED = {
    8: 5726.63,  # M1
    16: 11453.25,  # M1 Pro, M3, M4
    24: 17179.89,  # M2, M3
    32: 22906.50,  # M1 Pro, M2 Max
    36: 28991.03,  # M3 Max
    48: 38654.71,  # M3 Max
    64: 51539.61,  # M1 Max, M2 Max
    96: 77309.41,  # M2 Max: 73,728 MiB
    128: 103079.22,  # M3 Max, M4 Max
    256: 223338.30,  # M3 Ultra: 208 GiB
    512: 498216.21,  # M3 Ultra: 464 GiB
}
# ... and from macOS 26 on (Metal4), where iogpu.wired_limit_mb was not set.
LOGGED_26 = {
    16: 12713.12,  # M3, M4
    18: 14302.25,  # M3 Pro
    24: 19069.67,  # M4, M5 Pro
    32: 26800.60,  # M4
    36: 30150.67,  # M3 Max
    48: 40200.90,  # M4 Pro
    64: 55662.79,  # M3 Max
    128: 115448.73,  # M3 Max, M4 Max, M5 Max
}


@pytest.mark.parametrize("gib", LOGGED)
def test_working_set_as_logged(gib: int) -> None:
    assert f"{default_working_set_bytes(gib * GIB) / 1e6:.2f}" == f"{LOGGED[gib]:.2f}"


@pytest.mark.parametrize("gib", LOGGED_26)
def test_working_set_as_logged_on_macos_26(gib: int) -> None:
    assert f"{default_working_set_bytes(gib * GIB, macos=26) / 1e6:.2f}" == f"{LOGGED_26[gib]:.2f}"


@pytest.mark.parametrize(("gib", "exact"), [(48, 40_200_896_512), (64, 55_662_788_608)])
def test_working_set_as_mlx_reports_it(gib: int, exact: int) -> None:
    """Rounded up to a page of 16 KiB: 0.78 x 48 GiB = 40,200,893,890.56."""
    assert default_working_set_bytes(gib * GIB, macos=26) == exact


@given(total=st.integers(GIB, 1024 * GIB), more=st.integers(0, 64 * GIB))
def test_working_set_grows_with_the_memory(total: int, more: int) -> None:
    for macos in (0, 15, 26):
        share = default_working_set_bytes(total, macos=macos)
        assert total // 2 < share < total
        assert share <= default_working_set_bytes(total + more, macos=macos)
    # Larger machines have no logs of macOS 26, so that a cautious share is assumed there.
    if total <= 256 * GIB:
        assert default_working_set_bytes(total) <= default_working_set_bytes(total, macos=26)


@pytest.mark.parametrize(
    ("gib", "share"), [(192, 144 * GIB), (256, 208 * GIB), (512, 512 * GIB * 84 // 100)]
)
def test_working_set_of_unlogged_sizes(gib: int, share: int) -> None:
    """The smaller of 84 % of the memory and all but 48 GiB."""
    result = default_working_set_bytes(gib * GIB, macos=26)
    assert 0 <= result - share < 16384  # rounded up to a page


def mac(**changed: Any) -> dict[str, Any]:
    tree = recorded("synthetic_mac")
    tree["sysctl"].update({name.replace("__", "."): value for name, value in changed.items()})
    return tree


def test_find_apple_gpu(tmp_path: Path) -> None:
    (device,) = find_apple(machine(tmp_path, mac(), system=System.MACOS)).devices
    assert (device.name, device.unified, device.basis) == ("Apple M3 Max", True, Basis.MODELLED)
    assert (device.total_bytes, device.free_bytes) == (36 * GIB, 36 * GIB)  # HOST has 50 GiB free
    assert device.bandwidth_bytes_per_s == 300 * 10**9
    assert (device.fp32_flops, device.matrix_flops) == (10.6e12, None)
    assert device.limit_bytes == 27 * GIB  # three quarters, as the macOS version is unknown


@pytest.mark.parametrize(
    ("version", "limit_bytes"),
    [
        ("15.6.1", 27 * GIB),
        ("26.5.2", default_working_set_bytes(36 * GIB, macos=26)),
        ("", 27 * GIB),
        ("beta", 27 * GIB),
    ],
)
def test_apple_limit_depends_on_the_macos_version(
    tmp_path: Path, version: str, limit_bytes: int
) -> None:
    surroundings = machine(tmp_path, mac(kern__osproductversion=version), system=System.MACOS)
    (device,) = find_apple(surroundings).devices
    assert (device.limit_bytes, device.basis) == (limit_bytes, Basis.MODELLED)


def test_apple_wired_limit_that_is_set_applies(tmp_path: Path) -> None:
    surroundings = machine(tmp_path, mac(iogpu__wired_limit_mb=30_000), system=System.MACOS)
    (device,) = find_apple(surroundings).devices
    assert (device.limit_bytes, device.basis) == (30_000 * MIB, Basis.MODELLED)
    assert "free and inactive pages" in device.because
    assert device.limit_because == "iogpu.wired_limit_mb is set to 30000"


def test_apple_wired_limit_is_at_most_the_memory(tmp_path: Path) -> None:
    surroundings = machine(tmp_path, mac(iogpu__wired_limit_mb=10**6), system=System.MACOS)
    assert find_apple(surroundings).devices[0].limit_bytes == 36 * GIB


def test_find_apple_finds_nothing_on_an_intel_mac(tmp_path: Path) -> None:
    surroundings = machine(tmp_path, mac(hw__optional__arm64=0), system=System.MACOS)
    assert find_apple(surroundings) == Findings()


def test_apple_unreadable_memory_is_a_note(tmp_path: Path) -> None:
    findings = find_apple(machine(tmp_path, mac(), system=System.MACOS, host=None))
    assert (findings.devices, len(findings.notes)) == ((), 1)


def test_find_apple_finds_nothing_on_other_systems(tmp_path: Path) -> None:
    assert find_apple(machine(tmp_path, mac())) == Findings()


def test_sysctl_of_an_unknown_name_is_none() -> None:
    """None both on a Mac, where the name is unknown, and elsewhere, where sysctl is missing."""
    assert Surroundings().sysctl("edgekit.no.such.name") is None
