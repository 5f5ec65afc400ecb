"""KV-cache spilling: which pages stay in memory, which go to RAM or disk, and whether one can be read back in time.

Cold pages of 256 tokens go to RAM or to an NVMe disk, for contexts over 65,536 tokens only. The limit applies to the
worst case: reading back one cold page. If that takes too long it is an error, never a slow success. The rates come from
elizaOS's memo on context scaling (ASSUMED); they are not measured on this machine.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from edgekit.errors import KvSpillUnsupportedError, UsageError
from edgekit.units import LARGEST, Basis, format_bytes

PAGE_TOKENS = 256
SPILL_FROM_TOKENS = 65_536  # a cache up to this length is never spilled
LEAST_PAGES = 2  # that stay in memory: the page being written and the one being read back


class Store(enum.Enum):
    """Where cold pages go."""

    HOST_RAM = "RAM"
    NVME = "NVMe"

    @property
    def bytes_per_s(self) -> int:
        return _RATES[self]


_RATES = {Store.HOST_RAM: 12_000_000_000, Store.NVME: 1_500_000_000}  # RAM is read over PCIe


class Purpose(enum.Enum):
    """What the user is doing, which determines how long reading back a page may take."""

    VOICE = "voice"
    TEXT = "text"

    @property
    def limit_ms(self) -> int:
        return _LIMITS_MS[self]


_LIMITS_MS = {Purpose.VOICE: 200, Purpose.TEXT: 1500}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """A cache split into a resident and a spilled part. Nothing is spilled if all of it fits."""

    context_tokens: int
    bytes_per_token: int
    resident_tokens: int
    store: Store
    purpose: Purpose
    basis: Basis = Basis.ASSUMED

    @property
    def spilled_tokens(self) -> int:
        return self.context_tokens - self.resident_tokens

    @property
    def is_needed(self) -> bool:
        return self.spilled_tokens > 0

    @property
    def spilled_pages(self) -> int:
        return -(-self.spilled_tokens // PAGE_TOKENS)

    @property
    def resident_bytes(self) -> int:
        return self.resident_tokens * self.bytes_per_token

    @property
    def spilled_bytes(self) -> int:
        """Bytes of the spilled pages; a partly filled page takes the space of a full one."""
        return self.spilled_pages * self.page_bytes

    @property
    def page_bytes(self) -> int:
        return PAGE_TOKENS * self.bytes_per_token

    @property
    def restore_ms(self) -> float:
        """The time to read one cold page back, in the worst case."""
        return self.page_bytes * 1000 / self.store.bytes_per_s

    @property
    def is_in_time(self) -> bool:
        """Whether a page is read back in time. In integers, so that exactly 200 ms passes a limit of 200 ms."""
        return self.page_bytes * 1000 <= self.store.bytes_per_s * self.purpose.limit_ms

    @property
    def restore_text(self) -> str:
        return (
            f"one page of {PAGE_TOKENS} tokens x {self.bytes_per_token:,} B = {format_bytes(self.page_bytes)} from "
            f"{self.store.value} at {self.store.bytes_per_s / 1e9:g} GB/s takes {self.restore_ms:,.1f} ms; "
            f"the limit for {self.purpose.value} is {self.purpose.limit_ms:,} ms"
        )


def plan_spill(
    *,
    context_tokens: int,
    bytes_per_token: int,
    resident_budget_bytes: int,
    store: Store,
    purpose: Purpose = Purpose.TEXT,
    store_free_bytes: int | None = None,
    spill_from_tokens: int = SPILL_FROM_TOKENS,
) -> Spill:
    """Splits a cache between memory and the store. Raises KvSpillUnsupportedError if it must not be spilled.

    `resident_budget_bytes` is the cache's budget where the model computes, `store_free_bytes` the free capacity of the
    store (None: unknown, not checked).
    """
    for name, number, least in (
        ("the context", context_tokens, 1),
        ("the bytes per token", bytes_per_token, 1),
        ("the budget", resident_budget_bytes, 0),
    ):
        if not least <= number <= LARGEST:
            raise UsageError(f"{name} must be {least:,} to {LARGEST:,} (got {number:,})")
    cache_bytes = context_tokens * bytes_per_token
    resident_tokens = context_tokens
    if cache_bytes > resident_budget_bytes:  # only full pages stay in memory
        page_bytes = PAGE_TOKENS * bytes_per_token
        resident_tokens = resident_budget_bytes // page_bytes * PAGE_TOKENS
    spill = Spill(
        context_tokens=context_tokens,
        bytes_per_token=bytes_per_token,
        resident_tokens=resident_tokens,
        store=store,
        purpose=purpose,
    )
    refusal = _refusal(spill, store_free_bytes, spill_from_tokens) if spill.is_needed else ""
    if refusal:
        raise KvSpillUnsupportedError(
            f"a cache of {context_tokens:,} tokens x {bytes_per_token:,} B = {format_bytes(cache_bytes)} "
            f"does not fit in {format_bytes(resident_budget_bytes)}, and {refusal}"
        )
    return spill


def _refusal(spill: Spill, store_free_bytes: int | None, spill_from_tokens: int) -> str:
    """Why the cache must not be spilled; empty if it may be."""
    if spill.context_tokens <= spill_from_tokens:
        return f"only contexts over {spill_from_tokens:,} tokens can spill: use a shorter context"
    if spill.resident_tokens < LEAST_PAGES * PAGE_TOKENS:
        least = format_bytes(LEAST_PAGES * spill.page_bytes)
        return f"at least {LEAST_PAGES} pages ({least}) must stay in memory: use a smaller model"
    if not spill.is_in_time:
        return f"reading a spilled page back would take too long: {spill.restore_text}; use a shorter context"
    if store_free_bytes is not None and spill.spilled_bytes > store_free_bytes:
        return (
            f"{format_bytes(spill.spilled_bytes)} of spilled pages do not fit in the "
            f"{format_bytes(max(0, store_free_bytes))} left in {spill.store.value}: use a shorter context"
        )
    return ""
