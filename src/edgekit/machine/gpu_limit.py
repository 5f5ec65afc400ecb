"""A machine with unified memory -> the command that lets its GPU use more of it, and the machine afterwards.

macOS: iogpu.wired_limit_mb. Linux with an AMD APU: ttm.pages_limit, which sets how much RAM amdgpu may map (GTT; kernel
sources, ttm_tt.c and amdgpu_ttm.c). NVIDIA's boards (DGX Spark, Jetson) have no such limit, Mesa's for Intel is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgekit.machine.types import Device, Machine, System, Vendor
from edgekit.units import GIB, MIB, format_bytes

# What stays with the system: an eighth, as people leave 8 of 64 GB, and never less than P12 gives a small Mac.
KEPT_SHARE = 8
LEAST_KEPT_BYTES = 3 * GIB
PAGE_BYTES = 4096  # of x86-64, where AMD's APUs are
# amd.com/en/blogs/2025/faqs-amd-variable-graphics-memory-...: up to 75 %, 96 of 128 GB
_VARIABLE_GRAPHICS_MEMORY = (3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedLimit:
    """What to run (or to set), and what it gives."""

    how: str  # "sudo sysctl iogpu.wired_limit_mb=57344"
    is_command: bool  # whether `how` can be typed into a shell
    setting: str  # "iogpu.wired_limit_mb=57344", "ttm.pages_limit=28573696"; "" where there is none
    short_note: str  # when it works
    note: str  # the same in full, and how it is undone
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
    """All that the system does not need, for the GPU; None where there is no limit to raise, or no more to gain."""
    place, device = next(
        ((n, one) for n, one in enumerate(machine.devices) if one.limit_bytes is not None),
        (0, None),
    )
    if machine.host is None or device is None or device.limit_bytes is None:
        return None
    total = machine.host.total_bytes
    most = total - max(total // KEPT_SHARE, LEAST_KEPT_BYTES)
    if device.vendor is Vendor.APPLE:
        raised = _wired(device, machine, most // MIB)
    elif device.vendor is Vendor.AMD and machine.system is System.LINUX:
        raised = _mapped(device, machine, most // GIB)
    elif device.vendor is Vendor.AMD and machine.system is System.WINDOWS:
        raised = _carved_out(device, machine, total)
    else:
        return None
    if raised.limit_bytes <= device.limit_bytes:
        return None
    devices = list(machine.devices)
    devices[place] = replace(device, limit_bytes=raised.limit_bytes, limit_because=raised.setting)
    return replace(raised, machine=replace(machine, devices=tuple(devices)))


def _wired(device: Device, machine: Machine, mib: int) -> RaisedLimit:
    setting = f"iogpu.wired_limit_mb={mib}"
    return RaisedLimit(
        how=f"sudo sysctl {setting}",
        is_command=True,
        setting=setting,
        short_note="until the next restart",
        note="lasts until the next restart; sudo sysctl iogpu.wired_limit_mb=0 restores the default",
        before_bytes=device.limit_bytes or 0,
        limit_bytes=mib * MIB,
        machine=machine,
    )


def _mapped(device: Device, machine: Machine, gib: int) -> RaisedLimit:
    setting = f"ttm.pages_limit={gib * GIB // PAGE_BYTES}"
    return RaisedLimit(
        how=f"sudo amd-ttm --set {gib}",
        is_command=True,
        setting=setting,
        short_note="after a restart; needs the package amd-debug-tools",
        note="takes effect after a restart; sudo amd-ttm --clear restores the default. amd-ttm is in the package "
        f"amd-debug-tools; the kernel parameter {setting} does the same",
        before_bytes=device.limit_bytes or 0,
        limit_bytes=gib * GIB + device.own_bytes,
        machine=machine,
    )


def _carved_out(device: Device, machine: Machine, total_bytes: int) -> RaisedLimit:
    part, whole = _VARIABLE_GRAPHICS_MEMORY
    return RaisedLimit(
        how="Variable Graphics Memory at its highest (AMD Software, Performance, Tuning)",
        is_command=False,
        setting="",
        short_note="after a restart",
        note="takes effect after a restart",
        before_bytes=device.limit_bytes or 0,
        limit_bytes=total_bytes * part // whole,
        machine=machine,
    )
