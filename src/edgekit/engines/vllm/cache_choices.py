"""The cache types that vLLM is offered, the most accurate first."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.task import CacheChoice, Placement, Task
from edgekit.bill.types import Load
from edgekit.engines.vllm.budget import devices
from edgekit.engines.vllm.types import VllmSetup

DTYPES = ("auto", "fp8")
FP8_CAPABILITY = (8, 9)  # Ada and later compute in fp8


def cache_choices(task: Task, _placement: Placement | None = None) -> Iterator[CacheChoice]:
    if "kv_cache_dtype" in task.start.settled:
        given = task.start.setup.kv_cache_dtype
        yield CacheChoice(name=given, place=0, flags="", asked=True, is_eight_bit=given == "fp8")
        return
    known = (card.capability for card in devices(task.machine) if card.capability)
    has_fp8 = min(known, default=FP8_CAPABILITY) >= FP8_CAPABILITY
    for place, name in enumerate(DTYPES if has_fp8 else DTYPES[:1]):
        yield CacheChoice(
            name=name,
            place=place,
            flags=f"--kv-cache-dtype {name}",
            is_eight_bit=name == "fp8",
            setup={} if name == "auto" else {"kv_cache_dtype": name},
        )


def cache_name(_load: Load, setup: VllmSetup) -> str:
    """By the name that choices have."""
    return setup.kv_cache_dtype
