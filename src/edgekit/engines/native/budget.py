"""What the built-in engine may use of a machine: the RAM less what its process takes."""

from __future__ import annotations

from edgekit.engines.budgets import known_ram, ram_budget
from edgekit.errors import UsageError
from edgekit.machine.types import Budget, Machine
from edgekit.units import KIB, MIB

# Besides the bill: Python, numpy, tokenizers and the command itself (51 MiB measured on Linux), and for each thread its
# stack and small arrays (encoder/plan.py measures them).
PROCESS_BYTES = 64 * MIB
THREAD_BYTES = 256 * KIB


def budgets(machine: Machine, *, vocabulary_bytes: int = 0, threads: int = 1) -> tuple[Budget, ...]:
    """The RAM alone. The bill is exact, so only what the process itself takes is held back."""
    reserve = PROCESS_BYTES + threads * THREAD_BYTES + vocabulary_bytes
    because = "for Python, its libraries and the vocabulary"
    if not vocabulary_bytes:
        because = "for Python and its libraries (plus the vocabulary)"
    return (ram_budget(known_ram(machine), (), reserve, because),)


def check_limits(reserve_bytes: int | None, _max_use: float | None) -> None:
    """Raises UsageError for a reserve."""
    if reserve_bytes is not None:
        raise UsageError(
            "--reserve does not apply to the built-in engine, whose estimate covers the whole process"
        )
