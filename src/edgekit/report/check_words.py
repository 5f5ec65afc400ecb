"""Words of a verdict: sizes, shares, contexts, names of memories, speeds (with no more digits than they deserve)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from edgekit.bill.verdict import COMFORTABLE_PERCENT, Speed, Status, Usage, Verdict
from edgekit.machine.types import HOST, Budget, Device, Machine, PoolKind
from edgekit.units import GIB, MIB, format_bytes

VERDICTS = {Status.PASSED: "Fits", Status.WARNING: "Tight", Status.FAILED: "Does not fit"}
K_TOKENS = 1024


def is_blocked(result: Verdict) -> bool:
    """Whether the engine would not start, however small the model."""
    return any(use.budget.blocked for use in result.uses)


def is_beyond(result: Verdict) -> bool:
    """Whether the context is longer than the model's own: `max_context` never is."""
    return result.can_load and result.context_tokens > result.max_context


def context_words(tokens: int) -> str:
    """'32K', '1M'; what is not a whole number of them: '12,345 tokens'."""
    for unit, letter in ((K_TOKENS**2, "M"), (K_TOKENS, "K")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens // unit:,}{letter}"
    return f"{tokens:,} tokens"


def rounded_context_words(tokens: int) -> str:
    """The same, rounded down to whole K."""
    return context_words(tokens - tokens % K_TOKENS if tokens > K_TOKENS else tokens)


def card_names(cards: Iterable[Device]) -> str:
    """'RTX 4090', '2x RTX 3090', 'RTX 4090 + RTX 3060'."""
    names = [card.name for card in cards]
    return " + ".join(
        f"{names.count(name)}x {name}" if names.count(name) > 1 else name
        for name in dict.fromkeys(names)
    )


def budget_names(uses: Sequence[Usage]) -> list[str]:
    """Cards of one name are told apart by their number."""
    names = [use.budget.name for use in uses]
    return [
        f"{name} #{_number(use)}" if names.count(name) > 1 else name
        for name, use in zip(names, uses, strict=True)
    ]


def _number(use: Usage) -> int:
    return min((p.index for p in use.budget.pools if p.kind is PoolKind.DEVICE), default=0)


def sizes_words(part_bytes: int, whole_bytes: int) -> str:
    """'6.1 of 11.5 GiB'; what one decimal would show as nothing has its own unit: '52 MiB of 11.5 GiB'."""
    step, unit = (GIB, "GiB") if max(part_bytes, whole_bytes) >= GIB else (MIB, "MiB")
    whole = f"{whole_bytes / step:,.1f} {unit}"
    if 0 < part_bytes * 10 < step:
        return f"{max(part_bytes / MIB, 0.1):.{1 if part_bytes < MIB else 0}f} MiB of {whole}"
    return f"{part_bytes / step:,.1f} of {whole}"


def share_words(use: Usage) -> str:
    """'53 %', never on the other side of a threshold than the verdict; '' where nothing is available."""
    if use.utilization == float("inf"):
        return ""
    percent = use.utilization * 100
    if 0 < percent < 1:
        return "<1 %"
    rounded = round(percent)
    if (rounded == COMFORTABLE_PERCENT and use.status is Status.WARNING) or (
        rounded == 100 and percent > 100
    ):
        finer = round(percent, 1)
        return f"just over {rounded} %" if finer == rounded else f"{percent:.1f} %"
    return f"{rounded:,} %"


def reserve_words(budget: Budget, limit: str = "") -> str:
    """'23.50 GiB free minus 1 GiB reserve'. `limit` names what leaves so little."""
    free, because = format_bytes(budget.free_bytes), budget.because
    if budget.blocked:
        return f"{free} of {format_bytes(budget.total_bytes)} free"
    if budget.is_limited:
        on_cpu = f", plus {format_bytes(budget.cpu_bytes)} on the CPU" if budget.cpu_bytes else ""
        return f"{free} free; {budget.limit_because or 'the system limits the GPU'}{on_cpu}"
    if not budget.reserve_bytes:
        return because or f"{free} free"
    # some reasons open with the amount themselves: '20 % of 36.00 GiB for macOS'
    amount = "" if because[:1].isdigit() else f"{format_bytes(budget.reserve_bytes)} "
    return f"{free} free{f' within {limit},' if limit else ''} minus {amount}{because}"


def limit_on(budget: Budget, machine: Machine) -> str:
    """The name of what holds a process below the machine's own memory; '' where nothing does."""
    limit = machine.host.tightest if machine.host is not None and HOST in budget.pools else None
    return "" if limit is None else limit.name


LEAST_TOKENS_PER_S = 0.05  # shown as less than 0.1


def about_words(rates: tuple[float, float]) -> str:
    """(24, 60) -> 'about 38 tokens/s': the geometric middle."""
    middle = math.sqrt(math.prod(rates))
    if middle < LEAST_TOKENS_PER_S:
        return "less than 0.1 tokens/s"
    return f"about {_figure(middle)} tokens/s"


def range_words(rates: tuple[float, float]) -> str:
    """'24 to 60'; '' where the ends look alike."""
    slow, fast = map(_figure, rates)
    return f"{slow} to {fast}" if slow != fast else ""


def rate_words(rates: tuple[float, float]) -> str:
    """'about 38 tokens/s (24 to 60)'."""
    between = range_words(rates)
    return f"{about_words(rates)} ({between})" if between else about_words(rates)


def typical_figure(rates: tuple[float, float]) -> str:
    """'38'."""
    return about_words(rates).removeprefix("about ").removesuffix(" tokens/s")


def _figure(rate: float) -> str:
    """Two digits that count, below one a single one: '1,200', '35', '3.5', '0.4'."""
    if rate < 0.95:  # what is rounded to 1.0 has two
        return f"{rate:.1f}"
    rounded = round(rate, 1 - math.floor(math.log10(rate)))
    return f"{rounded:,.1f}" if rounded < 10 else f"{rounded:,.0f}"


def speed_row(speed: Speed | None, *, embeds: bool = False, is_slow: bool = False) -> str:
    """Answers, prompts, how that is known, and why."""
    if speed is None:
        return "not known"
    prompts = "" if speed.prefill is None else rate_words(speed.prefill)
    if embeds:
        return f"reads {prompts or 'at an unknown speed'}; {speed.basis.value}: {speed.because}"
    words = rate_words(speed.decode)
    words += ", slower than reading speed" if is_slow else ""
    words += f"; prompts {prompts}" if prompts else ""
    return f"{words}; {speed.basis.value}{f': {speed.because}' if speed.because else ''}"
