"""macOS' own numbers (sysctl) -> an Apple chip's GPU."""

from __future__ import annotations

from edgekit.basis import Basis
from edgekit.machine.bandwidth import known_bandwidth
from edgekit.machine.gpu_limit import default_working_set_bytes, working_set_because
from edgekit.machine.surroundings import Findings, Surroundings
from edgekit.machine.tree import number_in, printable
from edgekit.machine.types import Device, System, Vendor
from edgekit.units import MIB


def find_apple(here: Surroundings) -> Findings:
    """Nothing on a Mac with an Intel processor: its graphics are not looked at."""
    if here.system is not System.MACOS or _number(here, "hw.optional.arm64") != 1:
        return Findings()
    if here.host is None:
        why = "The GPU of this Mac shares the RAM, whose size could not be read."
        return Findings(notes=(why,))
    name = chip_name(here) or "Apple GPU"
    total_bytes = _number(here, "hw.memsize") or here.host.total_bytes
    limit_bytes, because = _limit(here, total_bytes)
    device = Device(
        name=name,
        vendor=Vendor.APPLE,
        total_bytes=total_bytes,
        free_bytes=min(here.host.usable_bytes, total_bytes),
        unified=True,
        limit_bytes=limit_bytes,
        limit_because=because,
        bandwidth_bytes_per_s=known_bandwidth(name, total_bytes),
        basis=Basis.MODELLED,  # macOS has no figure for memory that could be had without swapping
        because="shares the RAM (sysctl hw.memsize); free memory is modelled as free and inactive pages",
    )
    return Findings(devices=(device,))


def chip_name(here: Surroundings) -> str:
    """'Apple M3 Max'; empty where there is no such kernel."""
    return _text(here, "machdep.cpu.brand_string")


def _limit(here: Surroundings, total_bytes: int) -> tuple[int, str]:
    wired_mib = _number(here, "iogpu.wired_limit_mb")
    if wired_mib:
        because = f"iogpu.wired_limit_mb is set to {wired_mib}"
        return min(wired_mib * MIB, total_bytes), because
    limit_bytes = default_working_set_bytes(total_bytes, macos=_macos(here))
    return limit_bytes, working_set_because(limit_bytes, total_bytes)


def _macos(here: Surroundings) -> int:
    """'26.5.2' -> 26; 0 where it is unknown."""
    major = _text(here, "kern.osproductversion").partition(".")[0]
    return number_in(major) or 0


def _text(here: Surroundings, name: str) -> str:
    value = here.sysctl(name) or b""
    return printable(value.split(b"\0")[0].decode("utf-8", "replace"), 96)


def _number(here: Surroundings, name: str) -> int | None:
    """Four or eight bytes, the least first: every Apple chip counts that way."""
    value = here.sysctl(name)
    return int.from_bytes(value, "little") if value and len(value) in {4, 8} else None
