"""What MLX may use of a machine: one budget, the unified memory, for the whole model."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.types import Placement, Task
from edgekit.engines.choices import devices_of, known_ram, ram_budget
from edgekit.engines.mlx.setups import MlxSetup
from edgekit.errors import HardwareError
from edgekit.machine.types import Budget, Device, Machine, System, Vendor
from edgekit.units import GIB, format_bytes

SMALL_BYTES = 16 * GIB  # Macs up to this size have a fixed reserve, larger ones a share
SMALL_RESERVE_BYTES = 3 * GIB
RESERVE_PERCENT = 20


def devices(machine: Machine) -> tuple[Device, ...]:
    return devices_of(machine, (Vendor.APPLE,))


def check_runs(machine: Machine) -> None:
    """Raises HardwareError where the machine is not a Mac with Apple silicon."""
    if not devices(machine):
        here = f"this is: {machine.name}"
        if not machine.what_if:
            here = "this machine is not one (--device checks another machine)"
        raise HardwareError(f"MLX needs a Mac with Apple silicon; {here}")


def budgets(machine: Machine) -> tuple[Budget, ...]:
    """The unified memory, without the reserve for macOS."""
    host = known_ram(machine)
    if machine.system is System.LINUX:  # the CPU build
        return (ram_budget(host, devices(machine)[:1], 0, ""),)
    total = host.total_bytes
    because = f"{RESERVE_PERCENT} % of {format_bytes(total)} for macOS"
    if total <= SMALL_BYTES:
        because = "3 GiB for macOS (Macs with up to 16 GiB)"
    return (ram_budget(host, devices(machine)[:1], reserve_bytes(total), because),)


def reserve_bytes(total_bytes: int) -> int:
    """The part of a unified memory of this size that is left to macOS."""
    if total_bytes <= SMALL_BYTES:
        return SMALL_RESERVE_BYTES
    return total_bytes * RESERVE_PERCENT // 100


def placements(task: Task) -> Iterator[Placement]:
    """The only placement: the GPU uses the same memory as the CPU."""
    cards = devices(task.machine)
    yield Placement(
        setup=task.start.setup or MlxSetup(),
        budgets=budgets(task.machine),
        cards=cards[:1],
        because=f"in the unified memory of {cards[0].name}",
        whole=True,
    )
