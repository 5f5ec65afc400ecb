"""What an engine and the system report, next to what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekit.bill.types import Component, MemoryEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBytes:
    """Bytes as far as a rounded number tells them: somewhere from low to high, both included."""

    low_bytes: int
    high_bytes: int

    @property
    def middle_bytes(self) -> int:
        return (self.low_bytes + self.high_bytes) // 2

    @property
    def resolution_bytes(self) -> int:
        """How far the truth may be from the middle."""
        return (self.high_bytes - self.low_bytes + 1) // 2

    def off_by(self, size_bytes: int) -> int:
        """Bytes by which `size_bytes` lies above (or below: negative) what was measured."""
        return max(size_bytes - self.high_bytes, 0) + min(size_bytes - self.low_bytes, 0)

    def meets(self, other: MeasuredBytes) -> bool:
        return self.low_bytes <= other.high_bytes and other.low_bytes <= self.high_bytes

    def __add__(self, other: MeasuredBytes) -> MeasuredBytes:
        return MeasuredBytes(
            low_bytes=self.low_bytes + other.low_bytes,
            high_bytes=self.high_bytes + other.high_bytes,
        )


NOTHING = MeasuredBytes(low_bytes=0, high_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One part of the bill, predicted and measured."""

    part: str
    predicted_bytes: int
    measured: MeasuredBytes
    allowed_bytes: int  # beyond the resolution of what the engine told

    @property
    def difference_bytes(self) -> int:
        return self.measured.off_by(self.predicted_bytes)

    @property
    def difference_share(self) -> float:
        return self.difference_bytes / max(self.measured.middle_bytes, 1)

    @property
    def within(self) -> bool:
        return abs(self.difference_bytes) <= self.allowed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Memory that a process really held at one moment, as the system counts it."""

    when: str
    resident_bytes: int
    anonymous_bytes: int | None = None  # its own: caches, results, copied weights
    file_bytes: int | None = None  # mapped from files: weights that can be dropped and read again
    model_bytes: int | None = None  # ... of these the model's own
    swapped_bytes: int = 0  # its own too, on the disk just then


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """The speed that the engine itself reports."""

    prompt_tokens: int
    new_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What the real engine says it allocates."""

    through: str  # "xllamacpp", "llama-fit-params"
    version: str
    parts: Mapping[Component, MeasuredBytes] = field(repr=False)
    resolved: Mapping[str, str] = field(default_factory=dict)  # n_ctx, n_seq_max ... as it has them
    devices: tuple[str, ...] = ()  # GPUs it would use
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The prediction next to the engine's report: every part and the total."""

    label: str
    estimate: MemoryEstimate = field(repr=False)
    rules_version: str  # of the engine that the prediction's rules were checked against
    mode: str  # how the engine was started
    backend: str
    on_devices: bool  # whether it uses more than the CPU
    answer: EngineReport
    rows: tuple[ComparedRow, ...]
    total: ComparedRow
    vocabulary: int = 0  # tokens in the file: the engine has tables of them
    resident: tuple[Resident, ...] = ()
    beside_bytes: int | None = None  # RAM that the process took in addition to its bill, if known
    paced: Paced | None = None
    notes: tuple[str, ...] = ()

    @property
    def within(self) -> bool:
        return all(row.within for row in self.rows)
