"""A machine -> the documented JSON (docs/json.md): whole bytes, stable names, null for unknown."""

from __future__ import annotations

from typing import Any

from edgekit.machine.devices import KnownDevice, listed_devices
from edgekit.machine.types import Budget, Device, HostMemory, Machine, Pool, PoolKind
from edgekit.report.bill_json import SCHEMA
from edgekit.report.calibrate_json import measured_json
from edgekit.report.check_words import limit_on, reserve_words
from edgekit.report.usable import Usable, usable_by_engines


def hardware_json(machine: Machine) -> dict[str, Any]:
    """The whole answer: what there is, and what each engine may use of it."""
    engines = {usable.engine: _usable(usable, machine) for usable in usable_by_engines(machine)}
    return {"schema": SCHEMA, "machine": machine_json(machine), "engines": engines}


def machine_json(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "system": machine.system.value,
        "processor": machine.processor or None,
        "cores": machine.cores,
        "what_if": machine.what_if,
        "host": None if machine.host is None else _host(machine.host),
        "devices": [_device(device) for device in machine.devices],
        "calibration": measured_json(machine.measured),
        "notes": list(machine.notes),
    }


def _host(host: HostMemory) -> dict[str, Any]:
    return {
        "total_bytes": host.total_bytes,
        "free_bytes": host.free_bytes,
        "usable_bytes": host.usable_bytes,
        "swap_total_bytes": host.swap_total_bytes,
        "swap_free_bytes": host.swap_free_bytes,
        "bandwidth_bytes_per_s": host.bandwidth_bytes_per_s,
        "bandwidth_because": host.bandwidth_because or None,
        "limits": [
            {
                "name": limit.name,
                "limit_bytes": limit.limit_bytes,
                "used_bytes": limit.used_bytes,
                "left_bytes": limit.left_bytes,
            }
            for limit in host.limits
        ],
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "vendor": device.vendor.value,
        "index": device.index,
        "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes,
        "unified": device.unified,
        "limit_bytes": device.limit_bytes,
        "limit_because": device.limit_because or None,
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "capability": _capability(device),
        "partition": device.partition or None,
        "users": [
            {"pid": user.pid, "name": user.name or None, "used_bytes": user.used_bytes}
            for user in device.users
        ],
        "basis": device.basis.value,
        "because": device.because or None,
    }


def _capability(device: Device | KnownDevice) -> list[int] | None:
    return None if device.capability is None else list(device.capability)


def devices_json() -> dict[str, Any]:
    """The table that --device chooses from."""
    return {"schema": SCHEMA, "devices": [_known(device) for device in listed_devices()]}


def _known(device: KnownDevice) -> dict[str, Any]:
    return {
        "name": device.name,
        "kind": device.kind.value,
        "vendor": device.vendor.value,
        "memory_bytes": device.memory_bytes,
        "usable_bytes": device.usable_bytes,
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "capability": _capability(device),
        "released": device.released or None,
        "usual": device.usual,
        "basis": device.basis.value,
        "source": device.source,
    }


def _usable(usable: Usable, machine: Machine) -> dict[str, Any]:
    if usable.error is not None:
        return {"error": {"type": type(usable.error).__name__, "message": str(usable.error)}}
    return {
        "devices": [device.name for device in usable.devices],
        "budgets": [
            {
                **budget_json(budget),
                "told": reserve_words(budget, limit_on(budget, machine))
                + (f": {budget.blocked}" if budget.blocked else ""),
            }
            for budget in usable.budgets
        ],
    }


def budget_json(budget: Budget) -> dict[str, Any]:
    return {
        "name": budget.name,
        "pools": [pool.label for pool in sorted(budget.pools, key=_devices_first)],
        "total_bytes": budget.total_bytes,
        "free_bytes": budget.free_bytes,
        "reserve_bytes": budget.reserve_bytes,
        "because": budget.because,
        "limit_bytes": budget.limit_bytes,
        "limit_because": budget.limit_because or None,
        "blocked": budget.blocked or None,
        "available_bytes": budget.available_bytes,
    }


def _devices_first(pool: Pool) -> tuple[bool, int]:
    return pool.kind is PoolKind.HOST, pool.index
