"""macOS' own numbers (sysctl) -> an Apple chip's GPU, and how much of the one memory it may wire."""

from __future__ import annotations

from edgekit.basis import Basis
from edgekit.machine.bandwidth import known_bandwidth
from edgekit.machine.surroundings import Findings, Surroundings
from edgekit.machine.tree import number_in, printable
from edgekit.machine.types import Device, System, Vendor
from edgekit.units import GIB, MIB

_PAGE_BYTES = 16384
# What Metal recommends (recommendedMaxWorkingSetSize) as engines logged it: from this much memory
# on, this share of it. The test has the logs. macOS 26 gives more; between two sizes that were
# seen the smaller share holds. Large ones keep 48 GiB: 256 GiB logged 208, 512 logged 464.
_TWO_THIRDS = (11184811, 2**24)  # as a float of 32 bits has it: of 24 GiB one page more than 16 GiB
_SHARES = ((36 * GIB, 3, 4), (0, *_TWO_THIRDS))
_SHARES_26 = (
    (128 * GIB, 84, 100),
    (64 * GIB, 81, 100),
    (32 * GIB, 78, 100),
    (16 * GIB, 74, 100),
    (0, *_TWO_THIRDS),
)
_RAISED_IN = 26
_MOST_KEPT_BYTES = 48 * GIB
_LARGEST_LOGGED_26_BYTES = 128 * GIB
# MTLDevice.maxBufferLength: 4 GiB of 8 (working set 5.3), 36 of 64 (48), 27 of 48 (36); llama.cpp pull requests 1706
# and 1826, exo issue 1048.
_BUFFER_SHARE = (3, 4)


def longest_buffer_bytes(device: Device) -> int | None:
    """The longest buffer that Metal gives a device; None where that is not known."""
    if device.vendor is not Vendor.APPLE or device.limit_bytes is None:
        return None
    return device.limit_bytes * _BUFFER_SHARE[0] // _BUFFER_SHARE[1]


def default_working_set_bytes(total_bytes: int, *, macos: int = 0) -> int:
    """What the GPU of an Apple chip may use of this memory by default.

    `macos` is its major version; where that is unknown, the smaller share of older versions counts.
    """
    before = max(_share(_SHARES, total_bytes), total_bytes - _MOST_KEPT_BYTES)
    if macos < _RAISED_IN:
        return before
    since = _share(_SHARES_26, total_bytes)
    if total_bytes <= _LARGEST_LOGGED_26_BYTES:
        return since
    return max(_share(_SHARES_26, _LARGEST_LOGGED_26_BYTES), min(since, before))


def working_set_because(limit_bytes: int, total_bytes: int) -> str:
    percent = round(100 * limit_bytes / total_bytes)
    return f"macOS lets the GPU use {percent} % of the memory by default (iogpu.wired_limit_mb)"


def _share(shares: tuple[tuple[int, int, int], ...], total_bytes: int) -> int:
    """Rounded up to a page."""
    part, whole = next((part, whole) for least, part, whole in shares if total_bytes >= least)
    return -(-total_bytes * part // (whole * _PAGE_BYTES)) * _PAGE_BYTES


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
    """'26.5.2' -> 26; 0 where it is not told."""
    major = _text(here, "kern.osproductversion").partition(".")[0]
    return number_in(major) or 0


def _text(here: Surroundings, name: str) -> str:
    value = here.sysctl(name) or b""
    return printable(value.split(b"\0")[0].decode("utf-8", "replace"), 96)


def _number(here: Surroundings, name: str) -> int | None:
    """Four or eight bytes, the least first: every Apple chip counts that way."""
    value = here.sysctl(name)
    return int.from_bytes(value, "little") if value and len(value) in {4, 8} else None
