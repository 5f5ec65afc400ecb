"""A plan that spills, and a folder -> whether its cold pages are back in time, by what the disk was measured to do."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgekit.bill.spill import PAGE_TOKENS, SPILL_FROM_TOKENS, Purpose, Store, plan_spill
from edgekit.engines.native.run.pages import PageFile
from edgekit.errors import KvSpillUnsupportedError
from edgekit.machine.surroundings import text_of
from edgekit.units import MIB, format_bytes

if TYPE_CHECKING:
    from edgekit.engines.native.setup import StreamPlan

MEASURED_BYTES = 16 * MIB
_PIECE_BYTES = MIB
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpeed:
    write_bytes_per_s: float
    read_bytes_per_s: float


def check_gate(
    plan: StreamPlan,
    folder: Path,
    purpose: Purpose,
    *,
    spill_from_tokens: int = SPILL_FROM_TOKENS,
) -> DiskSpeed:
    """KvSpillUnsupportedError, with the numbers, where a step of the full window would wait too long.

    A page by the plan's own rule, then all that one step reads back and the pages that it may write, at the
    folder's own speed.
    """
    pages = plan.resident_pages or 0
    layers = sum(not plan.slides(layer) for layer in range(len(plan.cells)))
    bytes_per_token = layers * plan.cell_bytes
    spill = plan_spill(
        context_tokens=plan.context_tokens,
        bytes_per_token=bytes_per_token,
        resident_budget_bytes=pages * PAGE_TOKENS * bytes_per_token,
        store=Store.NVME,
        purpose=purpose,
        room_bytes=_room_bytes(folder),
        spill_from_tokens=spill_from_tokens,
    )
    _refuse_memory(folder)
    speed = measure(folder)
    read_ms = spill.spilled_bytes * 1000 / speed.read_bytes_per_s
    write_ms = spill.page_bytes * 1000 / speed.write_bytes_per_s
    if read_ms + write_ms > purpose.limit_ms:
        raise KvSpillUnsupportedError(
            f"a KV cache of {plan.context_tokens:,} tokens with only "
            f"{spill.resident_tokens:,} in memory would be too slow: each step reads "
            f"{format_bytes(spill.spilled_bytes)} back from {folder} in {read_ms:,.0f} ms "
            f"(measured at {speed.read_bytes_per_s / 1e6:,.0f} MB/s) and writes up to "
            f"{format_bytes(spill.page_bytes)} in {write_ms:,.0f} ms "
            f"({speed.write_bytes_per_s / 1e6:,.0f} MB/s); the limit for {purpose.value} "
            f"is {purpose.limit_ms:,} ms. Use fewer tokens, keep more of them in memory, "
            "or use a folder on a faster disk (TMPDIR)"
        )
    return speed


def measure(folder: Path) -> DiskSpeed:
    """Writes and reads a file of 16 MiB, past the system's own memory where it lets us."""
    piece = np.frombuffer(os.urandom(_PIECE_BYTES), np.uint8).copy()
    file = PageFile(folder)
    try:
        begin = time.perf_counter()
        for offset in range(0, MEASURED_BYTES, _PIECE_BYTES):
            file.write(offset, piece)
        file.flush()
        middle = time.perf_counter()
        for offset in range(0, MEASURED_BYTES, _PIECE_BYTES):
            file.read(offset, piece)
        end = time.perf_counter()
    finally:
        file.close()
    return DiskSpeed(
        write_bytes_per_s=MEASURED_BYTES / max(middle - begin, 1e-9),
        read_bytes_per_s=MEASURED_BYTES / max(end - middle, 1e-9),
    )


def _room_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise KvSpillUnsupportedError(
            f"cannot spill the KV cache to {folder}: {error.strerror or error}; use another folder"
        ) from error


def _refuse_memory(folder: Path) -> None:
    """A folder that lies in memory would take what the plan says is free."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    for line in (text_of(Path("/proc/self/mountinfo")) or "").splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.partition(" ")[0]
        if len(words) > 2 and words[2] == wanted and kind in _IN_MEMORY:
            raise KvSpillUnsupportedError(
                f"{folder} is in RAM ({kind}), so spilling the KV cache there saves no "
                "memory; use a folder on a disk"
            )
