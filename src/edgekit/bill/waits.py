"""How long a user waits: until the first token of an answer, and until the weights are read from disk."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgekit.machine.types import Machine
from edgekit.units import Basis

# ASSUMED of a disk that was not measured: an NVMe disk with 4 lanes of PCIe 3 reads 3.5 GB/s at best.
NVME_BYTES_PER_S = 3 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """Seconds from a prompt to the first token of the answer: a typical value and its 80 % interval."""

    prompt_tokens: int
    typical_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTime:
    """How long the weights take to be read from disk. They are read from RAM if they were read before."""

    size_bytes: int
    read_bytes_per_s: int
    basis: Basis
    because: str = ""  # "measured here on 2026-11-16"

    @property
    def seconds(self) -> float:
        return self.size_bytes / self.read_bytes_per_s


def first_token(prefill: tuple[float, float] | None, prompt_tokens: int) -> FirstToken | None:
    """The time to read the prompt at these tokens per second, slow and fast. None if the speed is unknown."""
    if prefill is None or not 0 < prefill[0] <= prefill[1]:
        return None
    slow, fast = prefill
    if not math.isfinite(prompt_tokens / slow):
        return None
    return FirstToken(
        prompt_tokens=prompt_tokens,
        typical_s=prompt_tokens / math.sqrt(slow * fast),
        low_s=prompt_tokens / fast,
        high_s=prompt_tokens / slow,
    )


def load_time(size_bytes: int, machine: Machine) -> LoadTime | None:
    """The time to read weights of this size, at the disk speed that `edgekit calibrate` measured or at a usual one.

    None without weights, and for a phone, which has no such disk.
    """
    if not size_bytes or machine.is_phone:
        return None
    measured = None if machine.measured is None or machine.what_if else machine.measured.host
    disk = None if measured is None else measured.disk
    if disk is not None and disk.read_bytes_per_s > 0:
        return LoadTime(
            size_bytes=size_bytes,
            read_bytes_per_s=disk.read_bytes_per_s,
            basis=Basis.MODELLED,
            because=f"measured here on {disk.date}",
        )
    return LoadTime(size_bytes=size_bytes, read_bytes_per_s=NVME_BYTES_PER_S, basis=Basis.ASSUMED)
