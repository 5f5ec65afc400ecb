"""A verdict -> what may grow in RAM after the start, and the limits that keep it within what is left."""

from __future__ import annotations

from collections.abc import Iterator

from edgekit.bill.types import Component, MemoryLine
from edgekit.bill.verdict import Verdict
from edgekit.engines.llamacpp.flags import FLAGS
from edgekit.machine.types import HOST
from edgekit.units import MIB, format_bytes

LEAST_PROMPTS_MIB = 64


def growing_lines(result: Verdict) -> tuple[MemoryLine, ...]:
    """llama-server's prompt cache and checkpoints: both are empty at the start."""
    lines = result.estimate.lines
    return tuple(line for line in lines if not line.reserved and line.size_bytes and line.pool == HOST)  # fmt: skip


def left_on_host(result: Verdict) -> int | None:
    """Usable RAM that is not required at the start; None where the RAM is unknown."""
    left = [
        use.budget.unreserved_bytes - use.required_bytes
        for use in result.uses
        if HOST in use.budget.pools
    ]
    return max(0, min(left)) if left else None


def growth_limits(result: Verdict) -> dict[str, int]:
    """llama-server's two limits, in MiB and in checkpoints of a slot; none where all that may grow has room.

    Prompts get half of what is left if need be.
    """
    lines, left, setup = growing_lines(result), left_on_host(result), result.way.setup
    if left is None or sum(line.size_bytes for line in lines) <= left:
        return {}
    checkpoints = sum(line.size_bytes for line in lines if line.component is Component.CHECKPOINTS)
    prompts = min(max(left - checkpoints, left // 2) // MIB, setup.cache_ram_mib)
    prompts = prompts if prompts >= LEAST_PROMPTS_MIB else 0  # less holds no conversation
    limits = {} if prompts == setup.cache_ram_mib else {"cache_ram": prompts}
    if checkpoints > left - prompts * MIB:
        one = checkpoints // setup.ctx_checkpoints  # of every slot
        limits["ctx_checkpoints"] = (left - prompts * MIB) // one
    return limits


def later_rows(verdict: Verdict) -> Iterator[str]:
    """One row where something may grow: what is left, and the flags that limit it where that is too little."""
    lines = growing_lines(verdict)
    if not lines:
        return
    parts = [f"{format_bytes(line.size_bytes)} of {line.component.value}" for line in lines]
    grows, left = f"RAM use may grow by up to {' and '.join(parts)}", left_on_host(verdict)
    limits = growth_limits(verdict)
    if left is None:
        yield f"{grows}, and the size of the RAM is unknown"
    elif not limits:
        yield f"{grows}; {format_bytes(left)} is left"
    else:
        long = {flag.key: flag.names[-1] for flag in FLAGS}
        words = " ".join(f"{long[key]} {number}" for key, number in limits.items())
        yield f"{grows}, but only {format_bytes(left)} is left: {words} limits it"
