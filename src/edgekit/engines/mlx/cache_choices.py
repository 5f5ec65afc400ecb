"""The cache types that mlx-lm is offered, the most accurate first."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.task import CacheChoice, Task

BITS = (None, 8, 4)


def cache_choices(task: Task) -> Iterator[CacheChoice]:
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
