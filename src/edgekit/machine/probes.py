"""The probes, one a kind, and what they make of this machine. What is not here is an empty answer, else a note."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from edgekit.machine.calibration import measured_on
from edgekit.machine.gpus import find_amd, find_apple, find_intel
from edgekit.machine.host import (
    core_count,
    find_host,
    processor_name,
    shared_memory_notes,
    without_gpu_memory,
)
from edgekit.machine.nvidia import Seen, find_nvidia, hidden_note, visible
from edgekit.machine.surroundings import Findings, Surroundings, in_wsl
from edgekit.machine.types import Device, HostMemory, Machine, System, Vendor, is_arm
from edgekit.terminal import one_line

T = TypeVar("T")
_NO_NOTES: tuple[str, ...] = ()

PROBES: tuple[tuple[str, Callable[[Surroundings], Findings]], ...] = (
    ("NVIDIA GPUs", find_nvidia),
    ("AMD GPUs", find_amd),
    ("Intel GPUs", find_intel),
    ("Apple chips", find_apple),
)


def look(here: Surroundings | None = None) -> Machine:
    here = here or Surroundings()
    host, host_notes = _host(here)
    here = replace(here, host=host)
    findings = [_asked(kind, probe, here) for kind, probe in PROBES]
    seen = tuple(device for found in findings for device in found.devices)
    devices, left_out = choose(seen, here.environment)
    host, shared = _tried((here.host, _NO_NOTES), lambda: _settled(here, devices))
    notes = tuple(note for found in findings for note in found.notes)
    found = Machine(
        name="this machine",
        system=here.system,
        processor=_tried("", lambda: processor_name(here)),
        arm=is_arm() or any(device.vendor is Vendor.APPLE for device in devices),
        cores=_tried(None, lambda: core_count(here)),
        host=host,
        devices=devices,
        notes=(
            *host_notes,
            *notes,
            *left_out,
            *shared,
            *(() if devices else _unseen_note(here)),
        ),
    )
    return _tried(found, lambda: _calibrated(found, here))


def _calibrated(machine: Machine, here: Surroundings) -> Machine:
    """The machine with what was measured on it before, or with a note on why that cannot be read."""
    stored = here.calibration()
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
        )
    return replace(machine, host=host, measured=measured)


def _host(here: Surroundings) -> tuple[HostMemory | None, tuple[str, ...]]:
    try:
        return find_host(here)
    except Exception as error:  # noqa: BLE001 - what a probe meets is a note, whatever it is
        return None, (_failure("RAM", error),)


def _settled(
    here: Surroundings, devices: tuple[Device, ...]
) -> tuple[HostMemory | None, tuple[str, ...]]:
    """The host again, now that its devices are known: some have their memory counted in it."""
    if here.host is None:
        return None, ()
    host, twice = without_gpu_memory(here.host, devices, here.root)
    return host, (*twice, *shared_memory_notes(host, devices, here.root))


def _asked(kind: str, probe: Callable[[Surroundings], Findings], here: Surroundings) -> Findings:
    try:
        return probe(here)
    except Exception as error:  # noqa: BLE001 - what a probe meets is a note, whatever it is
        return Findings(notes=(_failure(kind, error),))


def _tried(otherwise: T, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - a name and a number that are only shown
        return otherwise


def _failure(what: str, error: Exception) -> str:
    said = one_line(f"{type(error).__name__}: {error}", 200)
    return (
        f"Detecting {what} failed ({said}), so none is counted. Please report this; until then describe "
        "the machine with --ram and --vram."
    )


def _unseen_note(here: Surroundings) -> tuple[str, ...]:
    """Where we do not look, nothing found is no answer."""
    if here.system is System.MACOS or (here.system is System.LINUX and not in_wsl(here)):
        return ()
    where = "In WSL2" if in_wsl(here) else f"On {here.system.value}"
    return (f"{where} only NVIDIA GPUs are detected: describe others with --vram.",)


_VULKAN = "GGML_VK_VISIBLE_DEVICES"
_BY_VULKAN = (Vendor.AMD, Vendor.INTEL)
_ORDER = (
    f"{_VULKAN} is applied in the order of the PCI slots, AMD's GPUs first; vulkaninfo --summary shows "
    "Vulkan's own order."
)
_OF_ROCM = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # the second counts what the first left


def choose(devices: tuple[Device, ...], environment: Mapping[str, str]) -> Findings:
    seen = _visible(devices, environment)
    cards, left = _cards_first(seen.devices)
    rocm = _rocm_notes(devices, environment)
    return Findings(devices=cards, notes=(*seen.notes, *rocm, *left))


def _visible(devices: tuple[Device, ...], environment: Mapping[str, str]) -> Findings:
    """Vulkan numbers the cards of all makers in an order of its own: of several the note says so."""
    mine = tuple(device for device in devices if device.vendor in _BY_VULKAN)
    wish = environment.get(_VULKAN)
    if wish is None or not mine:
        return Findings(devices=devices)
    seen = tuple(Seen(replace(device, index=place)) for place, device in enumerate(mine))
    shown = visible(wish, seen)
    notes = hidden_note(_VULKAN, wish, seen, shown)
    if notes and shown:
        notes += (_ORDER,)
    others = (device for device in devices if device.vendor not in _BY_VULKAN)
    return Findings(devices=(*others, *(mine[one.index] for one in shown)), notes=notes)


def _rocm_notes(devices: tuple[Device, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
    if not any(device.vendor is Vendor.AMD for device in devices):
        return ()
    return tuple(
        f"{name}={one_line(environment[name])} applies to ROCm only: through Vulkan, as counted here, "
        f"llama.cpp sees every GPU. {_VULKAN} hides some from Vulkan."
        for name in _OF_ROCM
        if name in environment
    )


def _cards_first(
    devices: tuple[Device, ...],
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Beside a card, whosever it is, an integrated one stays unused: llama.cpp leaves it out too."""
    inside = tuple(device for device in devices if device.unified or device.integrated)
    cards = tuple(device for device in devices if device not in inside)
    if not cards or not inside:
        return devices, ()
    left = ", ".join(device.name for device in inside)
    return cards, (f"{left} is integrated and not used next to {cards[0].name}.",)
