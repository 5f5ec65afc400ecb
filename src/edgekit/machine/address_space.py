"""NVIDIA's cards and a limit on address space (ulimit -v) -> what CUDA can reach of them.

Measured on an H200: a context maps 13 GiB of addresses, and every allocation adds its size, 1:1. With less cuInit
fails. ulimit -d does not touch CUDA.
"""

from __future__ import annotations

from dataclasses import replace

from edgekit.basis import Basis
from edgekit.machine.process_limits import ADDRESS_SPACE
from edgekit.machine.surroundings import Findings
from edgekit.machine.types import Device, HostMemory
from edgekit.units import GIB, format_bytes

CONTEXT_BYTES = 13 * GIB


def within_address_space(devices: tuple[Device, ...], host: HostMemory | None) -> Findings:
    """The same devices where nothing is limited; none where CUDA could not start."""
    limits = () if host is None else host.limits
    left = min((one.left_bytes for one in limits if one.name == ADDRESS_SPACE), default=None)
    if left is None or not devices:
        return Findings(devices=devices)
    found = f"{ADDRESS_SPACE} leaves {format_bytes(left)} of address space, and CUDA needs 13 GiB to start"
    if left <= CONTEXT_BYTES:
        why = f"{found}: NVIDIA GPUs are not counted. Fix: ulimit -v unlimited."
        return Findings(notes=(why,))
    each = (left - CONTEXT_BYTES) // len(devices)
    held = tuple(_held(device, each) for device in devices)
    if held == devices:
        return Findings(devices=devices)
    why = (
        f"{found}: {format_bytes(each)} is left for each NVIDIA GPU, minus what the process maps in RAM. "
        "Fix: ulimit -v unlimited."
    )
    return Findings(devices=held, notes=(why,))


def _held(device: Device, most_bytes: int) -> Device:
    if device.free_bytes <= most_bytes:
        return device
    if device.unified:  # its budget is the RAM, up to this limit
        device = replace(device, limit_bytes=most_bytes, limit_because=ADDRESS_SPACE)
    because = f"{device.because}, within {ADDRESS_SPACE}"
    return replace(device, free_bytes=most_bytes, basis=Basis.MODELLED, because=because)
