"""The cache types that mlx-lm is offered, the most accurate first."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.task import CacheChoice, Placement, Task
from edgekit.bill.types import Load
from edgekit.engines.mlx.types import MlxSetup

BITS = (None, 8, 4)


def cache_choices(task: Task, _placement: Placement | None = None) -> Iterator[CacheChoice]:
    if "kv_bits" in task.start.settled:
        given = task.start.setup.kv_bits
        yield CacheChoice(
            name=f"{given} bit", place=0, flags="", asked=True, is_eight_bit=given == 8
        )
        return
    for place, bits in enumerate(BITS):
        yield CacheChoice(
            name=f"{bits or 16} bit",
            place=place,
            flags="" if bits is None else f"--kv-bits {bits} --quantized-kv-start 0",
            is_eight_bit=bits == 8,
            setup={} if bits is None else {"kv_bits": bits, "quantized_kv_start": 0},
        )


def cache_name(_load: Load, setup: MlxSetup) -> str:
    """By the name that choices have."""
    return f"{setup.kv_bits or 16} bit"
