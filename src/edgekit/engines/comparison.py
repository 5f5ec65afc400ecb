"""What an engine and the system report, next to what was predicted."""

from __future__ import annotations

from dataclasses import dataclass


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
