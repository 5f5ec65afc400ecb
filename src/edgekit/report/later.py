"""A verdict -> what may grow on the host after the start, and how to keep it within what is left there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgekit.memory.types import HOST, Component, MemoryLine
from edgekit.plan.types import PreflightResult
from edgekit.report.bill import later_lines
from edgekit.units import MIB, format_bytes


def later_rows(result: PreflightResult) -> Iterator[str]:
    """A line where something may grow: with what is left, and where that is too little, the flags that hold it."""
    lines = [line for line in later_lines(result.estimate) if line.pool == HOST]
    if not lines:
        return
    grows = _grows(lines)
    left = left_on_host(result)
    if left is None:
        yield f"{grows} on the host, whose memory is not known"
    elif sum(line.size_bytes for line in lines) <= left:
        yield f"{grows} on the host, where {format_bytes(left)} are left"
    else:
        yield f"{grows} on the host, where only {format_bytes(left)} are left: {_flags(lines, result.way.setup, left)}"


def left_on_host(result: PreflightResult) -> int | None:
    """Available there and not required at the start; None where the host is not known."""
    left = [
        use.budget.available_bytes - use.required_bytes
        for use in result.uses
        if HOST in use.budget.pools
    ]
    return max(0, min(left)) if left else None


def _grows(lines: list[MemoryLine]) -> str:
    parts = [f"{format_bytes(line.size_bytes)} of {line.component.value}" for line in lines]
    return f"up to {' and '.join(parts)} may grow"


def _flags(lines: list[MemoryLine], setup: Any, left: int) -> str:
    """llama-server's two limits, in MiB and in checkpoints of a slot. Prompts get half of what is left if need be."""
    checkpoints = sum(line.size_bytes for line in lines if line.component is Component.CHECKPOINTS)
    prompts = max(left - checkpoints, left // 2) // MIB
    room = min(prompts, getattr(setup, "cache_ram_mib", prompts))
    words = f"--cache-ram {room}"
    if checkpoints > left - room * MIB:
        one = checkpoints // setup.ctx_checkpoints  # of every slot
        words += f" --ctx-checkpoints {(left - room * MIB) // one}"
    return f"start with {words} to stay within that"
