"""The GPU's default limit on unified memory, and the command that raises it.

macOS: iogpu.wired_limit_mb. Linux with an AMD APU: ttm.pages_limit, which sets how much RAM amdgpu may map (GTT; kernel
sources, ttm_tt.c and amdgpu_ttm.c). NVIDIA's boards (DGX Spark, Jetson) have no such limit; Mesa's for Intel is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgekit.machine.types import Device, Machine, System, Vendor
from edgekit.units import GIB, MIB, format_bytes

# Left for the system: an eighth (people commonly leave 8 of 64 GB), and at least 3 GiB, as on a small Mac.
KEPT_SHARE = 8
LEAST_KEPT_BYTES = 3 * GIB
PAGE_BYTES = 4096  # of x86-64, where AMD's APUs are
# amd.com/en/blogs/2025/faqs-amd-variable-graphics-memory-...: up to 75 %, 96 of 128 GB
_VARIABLE_GRAPHICS_MEMORY = (3, 4)

_APPLE_PAGE_BYTES = 16384
# Metal's recommendedMaxWorkingSetSize as logged by engines: (memory from, share of it). The logs are in the test.
# macOS 26 allows more; between two logged sizes the smaller share applies. Large machines leave 48 GiB to the
# system: 256 GiB logged 208, 512 logged 464.
_TWO_THIRDS = (11184811, 2**24)  # as a 32-bit float: of 24 GiB one page more than 16 GiB
_SHARES = ((36 * GIB, 3, 4), (0, *_TWO_THIRDS))
_SHARES_26 = (
    (128 * GIB, 84, 100),
    (64 * GIB, 81, 100),
    (32 * GIB, 78, 100),
    (16 * GIB, 74, 100),
    (0, *_TWO_THIRDS),
)
_RAISED_IN = 26  # macOS
_MOST_KEPT_BYTES = 48 * GIB
_LARGEST_LOGGED_26_BYTES = 128 * GIB
# MTLDevice.maxBufferLength: 4 GiB of 8 (working set 5.3), 36 of 64 (48), 27 of 48 (36); llama.cpp pull requests 1706
# and 1826, exo issue 1048.
_BUFFER_SHARE = (3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedLimit:
    """The command or setting that raises the limit, and the machine afterwards."""

    how: str  # "sudo sysctl iogpu.wired_limit_mb=57344"
    is_command: bool  # `how` can be typed into a shell
    setting: str  # "iogpu.wired_limit_mb=57344", "ttm.pages_limit=28573696"; "" where there is none
    short_note: str  # when it takes effect
    note: str  # in full, with how to undo it
    before_bytes: int  # what the GPU may use now
    limit_bytes: int  # what it may use afterwards
    machine: Machine  # the machine afterwards

    def sentence(self, outcome: str = "") -> str:
        """'sudo sysctl iogpu.wired_limit_mb=57344 lets the GPU use 56.00 GiB instead of 48.00 GiB (until the next
        restart): fits at 32K'. Without an outcome `note` follows.
        """
        before, after = format_bytes(self.before_bytes), format_bytes(self.limit_bytes)
        found = f"{self.how} lets the GPU use {after} instead of {before}"
        return f"{found} ({self.short_note}): {outcome}" if outcome else found


def raised_limit(machine: Machine) -> RaisedLimit | None:
    """The limit that leaves the system only what it needs; None if there is no limit to raise or nothing to gain."""
    place, device = next(
        ((n, one) for n, one in enumerate(machine.devices) if one.limit_bytes is not None),
        (0, None),
    )
    if machine.host is None or device is None or device.limit_bytes is None:
        return None
    total_bytes = machine.host.total_bytes
    most_bytes = total_bytes - max(total_bytes // KEPT_SHARE, LEAST_KEPT_BYTES)
    is_command = True
    if device.vendor is Vendor.APPLE:
        mib = most_bytes // MIB
        setting = f"iogpu.wired_limit_mb={mib}"
        how = f"sudo sysctl {setting}"
        short_note = "until the next restart"
        note = (
            "lasts until the next restart; sudo sysctl iogpu.wired_limit_mb=0 restores the default"
        )
        limit_bytes = mib * MIB
    elif device.vendor is Vendor.AMD and machine.system is System.LINUX:
        gib = most_bytes // GIB
        setting = f"ttm.pages_limit={gib * GIB // PAGE_BYTES}"
        how = f"sudo amd-ttm --set {gib}"
        short_note = "after a restart; needs the package amd-debug-tools"
        note = (
            "takes effect after a restart; sudo amd-ttm --clear restores the default. amd-ttm is in the package "
            f"amd-debug-tools; the kernel parameter {setting} does the same"
        )
        limit_bytes = gib * GIB + device.own_bytes
    elif device.vendor is Vendor.AMD and machine.system is System.WINDOWS:
        setting = ""
        how = "Variable Graphics Memory at its highest (AMD Software, Performance, Tuning)"
        is_command = False
        short_note = "after a restart"
        note = "takes effect after a restart"
        part, whole = _VARIABLE_GRAPHICS_MEMORY
        limit_bytes = total_bytes * part // whole
    else:
        return None
    if limit_bytes <= device.limit_bytes:
        return None
    devices = list(machine.devices)
    devices[place] = replace(device, limit_bytes=limit_bytes, limit_because=setting)
    return RaisedLimit(
        how=how,
        is_command=is_command,
        setting=setting,
        short_note=short_note,
        note=note,
        before_bytes=device.limit_bytes,
        limit_bytes=limit_bytes,
        machine=replace(machine, devices=tuple(devices)),
    )


def longest_buffer_bytes(device: Device) -> int | None:
    """The longest buffer that Metal allocates on a device; None if unknown."""
    if device.vendor is not Vendor.APPLE or device.limit_bytes is None:
        return None
    return device.limit_bytes * _BUFFER_SHARE[0] // _BUFFER_SHARE[1]


def default_working_set_bytes(total_bytes: int, *, macos: int = 0) -> int:
    """The memory that the GPU of an Apple chip may use by default.

    `macos` is the major version; if unknown (0), the smaller share of older versions applies.
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
    """The share for this size, rounded up to a page."""
    part, whole = next((part, whole) for least, part, whole in shares if total_bytes >= least)
    return -(-total_bytes * part // (whole * _APPLE_PAGE_BYTES)) * _APPLE_PAGE_BYTES


_HEAP_SMALL_BYTES = 4 * GIB  # anv_device.c: half of up to 4 GiB, three quarters of more


def mesa_heap_bytes(ram_bytes: int) -> tuple[int, str]:
    """The heap that Mesa's Vulkan driver gives an integrated GPU, and why."""
    part, whole = (1, 2) if ram_bytes <= _HEAP_SMALL_BYTES else (3, 4)
    because = f"Mesa's Vulkan driver lets the GPU use {part}/{whole} of the RAM"
    return ram_bytes * part // whole, because
