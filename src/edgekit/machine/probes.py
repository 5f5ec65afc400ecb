"""Runs the probe of each kind of hardware and combines the results into a Machine.

Missing hardware is an empty result; a failed probe is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from edgekit.errors import one_line
from edgekit.machine.calibration import measured_on
from edgekit.machine.gpus import find_amd, find_apple, find_intel
from edgekit.machine.host import (
    core_count,
    find_host,
    processor_name,
    shared_memory_notes,
    without_gpu_memory,
)
from edgekit.machine.instructions import find_instructions
from edgekit.machine.memory_modules import installed_bandwidth
from edgekit.machine.nvidia import find_nvidia, visible_devices
from edgekit.machine.processors import with_bandwidth
from edgekit.machine.surroundings import Findings, Surroundings, in_wsl
from edgekit.machine.types import Device, Machine, System, Vendor, is_arm
from edgekit.units import Basis

PROBES: tuple[tuple[str, Callable[[Surroundings], Findings]], ...] = (
    ("NVIDIA GPUs", find_nvidia),
    ("AMD GPUs", find_amd),
    ("Intel GPUs", find_intel),
    ("Apple chips", find_apple),
)


def detect(surroundings: Surroundings | None = None) -> Machine:
    """Probe this machine. Never raises: whatever could not be read is in `notes`."""
    surroundings = surroundings or Surroundings()
    notes: list[str] = []
    try:
        host, host_notes = find_host(surroundings)
        surroundings = replace(surroundings, host=host)  # GPUs may share the host's memory
        notes += host_notes
    except Exception as error:  # noqa: BLE001 - whatever a probe raises becomes a note
        surroundings = replace(surroundings, host=None)
        notes.append(_failure_note("RAM", error))
    devices: tuple[Device, ...] = ()
    for kind, probe in PROBES:
        try:
            findings = probe(surroundings)
        except Exception as error:  # noqa: BLE001 - whatever a probe raises becomes a note
            notes.append(_failure_note(kind, error))
        else:
            devices += findings.devices
            notes += findings.notes
    devices, choice_notes = choose(devices, surroundings.environment)
    notes += choice_notes
    machine = Machine(
        name="this machine",
        system=surroundings.system,
        arm=is_arm() or any(device.vendor is Vendor.APPLE for device in devices),
        host=surroundings.host,
        devices=devices,
    )
    if surroundings.host is not None:
        with suppress(Exception):  # corrections and notes are optional
            host, gpu_notes = without_gpu_memory(surroundings.host, devices, surroundings.root)
            shared_notes = shared_memory_notes(host, devices, surroundings.root)
            machine = replace(machine, host=host)
            notes += (*gpu_notes, *shared_notes)
    is_linux = surroundings.system is System.LINUX and not in_wsl(surroundings)
    if not devices and not is_linux and surroundings.system is not System.MACOS:
        where = "In WSL2" if in_wsl(surroundings) else f"On {surroundings.system.value}"
        notes.append(f"{where} only NVIDIA GPUs are detected: describe others with --vram.")
    machine = replace(machine, notes=tuple(notes))
    with suppress(Exception):  # for display only
        machine = replace(machine, processor=processor_name(surroundings))
    with suppress(Exception):  # for display only
        machine = replace(machine, cores=core_count(surroundings))
    with suppress(Exception):  # for the expected speed only
        found = find_instructions(surroundings, machine.processor)
        machine = replace(machine, instructions=found)
    with suppress(Exception):  # for the expected speed only
        bandwidth = installed_bandwidth(surroundings, machine.processor, devices)
        if bandwidth is not None and machine.host is not None:
            machine = replace(machine, host=with_bandwidth(machine.host, bandwidth))
    with suppress(Exception):
        machine = _calibrated(machine, surroundings)
    return machine


def _failure_note(what: str, error: Exception) -> str:
    reason = one_line(f"{type(error).__name__}: {error}", 200)
    return (
        f"Detecting {what} failed ({reason}), so none is counted. Please report this; until then describe "
        "the machine with --ram and --vram."
    )


def _calibrated(machine: Machine, surroundings: Surroundings) -> Machine:
    """The machine with its measurements by `edgekit calibrate`, or with a note on why they cannot be read."""
    stored = surroundings.calibration()
    if stored.problem:
        machine = replace(machine, notes=(*machine.notes, stored.problem))
    measured = measured_on(machine, stored.calibration)
    if measured is None:
        return machine
    host = machine.host
    if host is not None and measured.host is not None and measured.host.bandwidth_bytes_per_s:
        host = replace(
            host,
            bandwidth_bytes_per_s=measured.host.bandwidth_bytes_per_s,
            bandwidth_because=f"measured here on {measured.host.date}",
            bandwidth_basis=Basis.EXACT,
        )
    return replace(machine, host=host, measured=measured)


# -- the devices that llama.cpp would use --------------------------------------------------------

_VULKAN = "GGML_VK_VISIBLE_DEVICES"  # AMD's and Intel's GPUs are modelled through Vulkan
_BY_VULKAN = (Vendor.AMD, Vendor.INTEL)
_VULKAN_ORDER = (
    f"{_VULKAN} is applied in the order of the PCI slots, AMD's GPUs first; vulkaninfo --summary shows "
    "Vulkan's own order."
)
_ROCM = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # the second indexes what the first leaves


def choose(devices: tuple[Device, ...], environment: Mapping[str, str]) -> Findings:
    """Devices that no variable hides, without integrated GPUs if there is a card, and notes on the unused ones."""
    notes: list[str] = []
    by_vulkan = tuple(device for device in devices if device.vendor in _BY_VULKAN)
    value = environment.get(_VULKAN)
    chosen = devices
    if value is not None and by_vulkan:
        # Vulkan numbers the GPUs of both makers together, their drivers separately.
        numbered = tuple(replace(device, index=index) for index, device in enumerate(by_vulkan))
        shown, hidden_notes = visible_devices(_VULKAN, value, numbered)
        notes += hidden_notes
        if hidden_notes and shown:
            notes.append(_VULKAN_ORDER)
        other_vendors = (device for device in devices if device.vendor not in _BY_VULKAN)
        chosen = (*other_vendors, *(by_vulkan[device.index] for device in shown))
    if any(device.vendor is Vendor.AMD for device in devices):
        notes += (
            f"{name}={one_line(environment[name])} applies to ROCm only: through Vulkan, as counted here, "
            f"llama.cpp sees every GPU. {_VULKAN} hides some from Vulkan."
            for name in _ROCM
            if name in environment
        )
    integrated = tuple(device for device in chosen if device.unified or device.integrated)
    cards = tuple(device for device in chosen if device not in integrated)
    if cards and integrated:  # llama.cpp does not use them together either
        names = ", ".join(device.name for device in integrated)
        notes.append(f"{names} is integrated and not used next to {cards[0].name}.")
        chosen = cards
    return Findings(devices=chosen, notes=tuple(notes))
