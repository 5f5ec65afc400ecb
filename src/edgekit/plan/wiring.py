"""A Mac's limit on what the GPU may wire -> what a higher one would give, and how it is set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgekit.hardware.budgets import mlx_reserve_bytes
from edgekit.hardware.types import Machine, Vendor
from edgekit.plan.planned import Decision, Lever
from edgekit.units import MIB


def raised_limit(machine: Machine) -> Machine | None:
    """The machine with all wired that the system does not need itself; None where that is no more than now."""
    host = machine.host
    if host is None or not any(one.limit_bytes is not None for one in machine.devices):
        return None
    most = (host.total_bytes - mlx_reserve_bytes(host.total_bytes)) // MIB * MIB
    devices = tuple(
        replace(one, limit_bytes=most)
        if one.vendor is Vendor.APPLE and one.limit_bytes is not None and one.limit_bytes < most
        else one
        for one in machine.devices
    )
    return replace(machine, devices=devices) if devices != machine.devices else None


def decide_limit(
    machine: Machine, tokens: int, longest_on: Callable[[Machine], int]
) -> Decision | None:
    """Told where it would lengthen the window, and never counted on: it has to be set again after every start."""
    raised = raised_limit(machine)
    if raised is None:
        return None
    longer = longest_on(raised)
    if longer <= tokens:
        return None
    limit = next(one.limit_bytes for one in raised.devices if one.limit_bytes is not None) // MIB
    return Decision(
        lever=Lever.LIMIT,
        value=f"iogpu.wired_limit_mb={limit}",
        because=f"sudo sysctl iogpu.wired_limit_mb={limit} lets the GPU wire more, until the next start: "
        f"up to {longer:,} tokens then",
    )
