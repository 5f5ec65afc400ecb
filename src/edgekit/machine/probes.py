"""The probes, one a kind, and what they make of this machine. What is not here is an empty answer, else a note."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from edgekit.machine.amd import find_amd
from edgekit.machine.apple import find_apple
from edgekit.machine.calibration import measured_on
from edgekit.machine.chosen import choose
from edgekit.machine.intel import find_intel
from edgekit.machine.numa import without_gpu_memory
from edgekit.machine.nvidia import find_nvidia
from edgekit.machine.ram import find_host
from edgekit.machine.shared_memory import shared_memory_notes
from edgekit.machine.surroundings import Findings, Surroundings, in_wsl
from edgekit.machine.system import core_count, processor_name
from edgekit.machine.tree import printable
from edgekit.machine.types import Device, HostMemory, Machine, System, Vendor, is_arm

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
    said = printable(f"{type(error).__name__}: {error}", 200)
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
